package messagestore_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

const stream = messagestore.StreamName("account-1")

// refused returns the error of a write that must not reach the driver.
func refused(t *testing.T, bodies ...messagestore.Body) error {
	t.Helper()
	_, err := untouchedStore(t).Write(t.Context(), stream, messagestore.AnyVersion, bodies...)
	require.Error(t, err)
	return err
}

type failing struct{ err error }

func (failing) MessageType() string            { return "Failing" }
func (f failing) MarshalJSON() ([]byte, error) { return nil, f.err }

// The error of a body's own encoding may be of any length, and hold anything.
func TestTheErrorOfABodysEncodingIsOneShortLine(t *testing.T) {
	t.Parallel()
	for _, long := range []string{"a\x00b\nc\x1b[31m\xff", strings.Repeat("x\n", 1<<20)} {
		err := refused(t, failing{errors.New(long)})

		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.Less(t, len(err.Error()), 1500)
		require.True(t, utf8.ValidString(err.Error()))
		require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%.100q", err.Error())
	}
}

func TestHostileTypesAreRefused(t *testing.T) {
	for name, want := range map[string]struct{ value, rule string }{
		"":                         {`""`, "must not be empty"},
		strings.Repeat("x", 1<<20): {`"` + strings.Repeat("x", 48) + `"… (1048576 bytes)`, "must be at most 255 bytes, and is 1048576"},
		"Opened\x00":               {`"Opened\x00"`, "must not contain a control or format character, and has U+0000 at byte 6"},
		"Open\ned":                 {`"Open\ned"`, "must not contain a control or format character, and has U+000A at byte 4"},
		"Opened\u202e":             {`"Opened\u202e"`, "must not contain a control or format character, and has U+202E at byte 6"},
		"Opened\xff":               {`"Opened\xff"`, "must be valid UTF-8: error at byte 6"},
		" Opened":                  {`" Opened"`, "must not begin or end with white space"},
		"Opened ":                  {`"Opened "`, "must not begin or end with white space"},
	} {
		require.Equal(t, want.rule, text.TypeRule(name))
		requireInvalid(t, refused(t, messagestore.Raw{Type: name, Data: json.RawMessage(`{}`)}), messagestore.ErrInvalid, "message type", want.value, want.rule)

		store := untouchedStore(t)
		requireInvalid(t, testkit.ErrorOf(store.LastOfType(t.Context(), stream, name)), messagestore.ErrInvalid, "message type", want.value, want.rule)
		_, err := store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: "account", Limit: 1, Filter: messagestore.Filter{Types: []string{"Opened", name}}})
		requireInvalid(t, err, messagestore.ErrInvalid, "message type", want.value, want.rule)
	}
	for _, name := range []string{"Opened", "Opened Again", "a-b+c:d", "dibs", "Dibs:Opened", "x dibs:", "é", "%", "'", strings.Repeat("x", 255)} {
		require.Empty(t, text.TypeRule(name))
	}
}

// A caller that could write a tombstone could have a consumer pass a stream over.
func TestTypesOfTheStoreItselfAreReadAndNotWritten(t *testing.T) {
	const rule = "must not be one of the store's own types, which begin with dibs:"
	for _, name := range []string{removal.TombstoneType, "dibs:", "dibs:Opened"} {
		require.Equal(t, rule, text.TypeRule(name))
		requireInvalid(t, refused(t, messagestore.Raw{Type: name, Data: json.RawMessage(`{}`)}), messagestore.ErrInvalid, "message type", strconv.Quote(name), rule)
	}
	require.ErrorIs(t, refused(t, removal.Tombstone{}), messagestore.ErrInvalid)

	store := testkit.Must(messagestore.New(memory.New(), nil))
	require.ErrorIs(t, testkit.ErrorOf(store.LastOfType(t.Context(), stream, removal.TombstoneType)), messagestore.ErrNotFound)
	testkit.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: "account", Limit: 1, Filter: messagestore.Filter{Types: []string{removal.TombstoneType}}}))(t)
}

// A message without an id gets one: no nil id reaches a driver.
func TestMessageWithoutIDGetsANewOne(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	written := testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, opened{}, messagestore.Envelope{Body: opened{}}, &messagestore.Envelope{Body: opened{}}))(t)
	seen := map[uuid.UUID]bool{uuid.Nil: true}
	for _, id := range written.IDs {
		require.False(t, seen[id])
		require.Equal(t, uuid.Version(7), id.Version())
		seen[id] = true
	}
}

func TestIDTwiceInABatchIsRefusedWithItsIndex(t *testing.T) {
	id := uuid.MustParse("0199a7a0-0000-7000-8000-000000000001")
	err := refused(t, opened{}, messagestore.Envelope{ID: id, Body: opened{}}, opened{}, messagestore.Envelope{ID: id, Body: opened{"x"}})

	index := requireInvalid(t, err, messagestore.ErrInvalid, "message id", `"0199a7a0-0000-7000-8000-000000000001"`, "must be unique in the batch, and message 1 has it too")
	require.Equal(t, 3, index)
	require.EqualError(t, err, `write account-1: invalid message 3: message id "0199a7a0-0000-7000-8000-000000000001": must be unique in the batch, and message 1 has it too`)
}

func TestHostileDataAreRefused(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 513) + "1" + strings.Repeat("}", 513)
	for data, want := range map[string]struct{ value, rule string }{
		``:                             {``, "must not be empty"},
		` `:                            {`" "`, "must not be empty"},
		`1`:                            {`"1"`, "must be a JSON object"},
		` []`:                          {`" []"`, "must be a JSON object"},
		`null`:                         {`"null"`, "must be a JSON object"},
		`"x"`:                          {`"\"x\""`, "must be a JSON object"},
		`{"a":"\u0000"}`:               {`"{\"a\":\"\\u0000\"}"`, "must not contain U+0000 at .a"},
		`{"a":{"b":[1,"x\u0000"]}}`:    {`"{\"a\":{\"b\":[1,\"x\\u0000\"]}}"`, "must not contain U+0000 at .a.b[1]"},
		`{"a":"\ud800"}`:               {`"{\"a\":\"\\ud800\"}"`, "must not contain half of a surrogate pair at .a"},
		`{"a":["x","\udc00\ud800"]}`:   {`"{\"a\":[\"x\",\"\\udc00\\ud800\"]}"`, "must not contain half of a surrogate pair at .a[1]"},
		`{"a":"\ud800\u0041"}`:         {`"{\"a\":\"\\ud800\\u0041\"}"`, "must not contain half of a surrogate pair at .a"},
		`{"a":NaN}`:                    {`"{\"a\":NaN}"`, "must be valid JSON: error at byte 6: invalid character 'N' looking for beginning of value"},
		`{"a":1,}`:                     {`"{\"a\":1,}"`, "must be valid JSON: error at byte 8: invalid character '}' looking for beginning of object key string"},
		`{'a':1}`:                      {`"{'a':1}"`, "must be valid JSON: error at byte 2: invalid character '\\'' looking for beginning of object key string"},
		`{/**/}`:                       {`"{/**/}"`, "must be valid JSON: error at byte 2: invalid character '/' looking for beginning of object key string"},
		`{}{}`:                         {`"{}{}"`, "must be valid JSON: error at byte 3: invalid character '{' after top-level value"},
		`{"a":Infinity}`:               {`"{\"a\":Infinity}"`, "must be valid JSON: error at byte 6: invalid character 'I' looking for beginning of value"},
		"\ufeff{}":                     {`"\ufeff{}"`, "must be valid JSON: error at byte 1: invalid character 'ï' looking for beginning of value"},
		`{"a":`:                        {`"{\"a\":"`, "must be valid JSON: error at byte 5: unexpected end of JSON input"},
		"{\"a\":\"\xff\"}":             {`"{\"a\":\"\xff\"}"`, "must be valid UTF-8: error at byte 6"},
		`{"a":{"n":1e200000}}`:         {`"{\"a\":{\"n\":1e200000}}"`, "must not contain a number out of range at .a.n"},
		`{"n":1e-200000}`:              {`"{\"n\":1e-200000}"`, "must not contain a number out of range at .n"},
		`{"n":1e99999999999999999999}`: {`"{\"n\":1e99999999999999999999}"`, "must not contain a number out of range at .n"},
		deep:                           {`"` + strings.ReplaceAll(deep[:48], `"`, `\"`) + `"… (3079 bytes)`, "must not be nested more than 512 deep at .a.a.a.a.a.a.a.a…"},
		`{"a":"` + strings.Repeat("x", 1<<20) + `"}`: {`"{\"a\":\"` + strings.Repeat("x", 42) + `"… (1048584 bytes)`, "must be at most 983040 bytes"},
	} {
		requireInvalid(t, refused(t, raw(data)), messagestore.ErrInvalid, "data", want.value, want.rule)
	}
}

func TestUnusualDataAreAccepted(t *testing.T) {
	keys := make(map[string]int, 50_000)
	for i := range 50_000 {
		keys[strings.Repeat("k", i%7)+string(rune('a'+i%26))+uuid.NewString()[:4]] = i
	}
	wide := testkit.Do(json.Marshal(keys))(t)
	for _, data := range []string{
		`{}`, ` {"a" : 1} `, `{"a":1,"a":2}`, `{"a":"\ud83d\ude00"}`, `{"a":"\\u0000"}`, `{"a":"\\ud800"}`, `{"n":1e400}`, `{"n":-0}`, `{"n":1e131071}`,
		`{"n":0e999999}`, strings.Repeat(`{"a":`, 511) + "{}" + strings.Repeat("}", 511), string(wide[:0]) + string(wide), `{"":0}`, `{"\u0001":"\u007f"}`,
	} {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		require.NoError(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.NoStream, raw(data))), "%.100s", data)
		require.Equal(t, data, string(testkit.Do(store.Last(t.Context(), stream))(t).Data), "it is kept byte for byte")
	}
}

type number struct {
	N float64 `json:"n"`
}

func (number) MessageType() string { return "Number" }

type anything struct {
	A any `json:"a"`
}

func (anything) MessageType() string { return "Anything" }

type list []int

func (list) MessageType() string { return "List" }

type loop struct{ Next *loop }

func (loop) MessageType() string { return "Loop" }

func TestBodiesThatDoNotEncodeAreRefused(t *testing.T) {
	circle := &loop{}
	circle.Next = circle
	for name, test := range map[string]struct {
		body        messagestore.Body
		value, rule string
	}{
		"NaN":                {number{math.NaN()}, `"Number"`, "must encode as JSON: json: unsupported value: NaN"},
		"infinity":           {number{math.Inf(1)}, `"Number"`, "must encode as JSON: json: unsupported value: +Inf"},
		"channel":            {anything{make(chan int)}, `"Anything"`, "must encode as JSON: json: unsupported type: chan int"},
		"function":           {anything{func() {}}, `"Anything"`, "must encode as JSON: json: unsupported type: func()"},
		"invalid UTF-8":      {opened{"a\xffb"}, `"Opened"`, "must encode as JSON: a string in it is not valid UTF-8"},
		"invalid UTF-8 key":  {anything{map[string]int{"\xff": 1}}, `"Anything"`, "must encode as JSON: a string in it is not valid UTF-8"},
		"invalid UTF-8 deep": {anything{[]any{"\ufffd", map[string]any{"a": &opened{"\xff"}}}}, `"Anything"`, "must encode as JSON: a string in it is not valid UTF-8"},
		"invalid UTF-8 text": {anything{texts("\xff")}, `"Anything"`, "must encode as JSON: a string in it is not valid UTF-8"},
		"invalid raw JSON":   {anything{json.RawMessage(`{`)}, `"Anything"`, "must encode as JSON: json: error calling MarshalJSON for type json.RawMessage: unexpected end of JSON input"},
		"a list":             {list{1, 2}, `"[1,2]"`, "must be a JSON object"},
		"a nil list":         {list(nil), `"null"`, "must be a JSON object"},
		"nil":                {nil, "", "must have a body"},
		"a nil pointer":      {(*opened)(nil), "", "must have a body"},
		"a nil message":      {(*messagestore.Envelope)(nil), "", "must have a body"},
		"an empty message":   {messagestore.Envelope{}, "", "must have a body"},
		"a nil raw":          {(*messagestore.Raw)(nil), "", "must have a body"},
		"a message in one":   {messagestore.Envelope{Body: messagestore.Envelope{Body: opened{}}}, `"Opened"`, "must not be a message: give its body"},
		"a pointer in one":   {messagestore.Envelope{Body: &messagestore.Envelope{Body: opened{}}}, `"Opened"`, "must not be a message: give its body"},
		"a pair of them":     {&messagestore.Envelope{Body: &messagestore.Envelope{Body: opened{}}}, `"Opened"`, "must not be a message: give its body"},
	} {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, refused(t, test.body), messagestore.ErrInvalid, "data", test.value, test.rule)
		})
	}
	require.Contains(t, refused(t, circle).Error(), "must encode as JSON: json: unsupported value: encountered a cycle")
}

type texts string

func (t texts) MarshalText() ([]byte, error) { return []byte(t), nil }

type hiding struct {
	Name    string `json:"name"`
	hidden  string
	Ignored string `json:"-"`
	Bytes   []byte `json:"bytes"`
}

func (h hiding) MessageType() string { return "Hiding" + h.hidden[:0] }

func TestBodiesEncodeAsTheyAre(t *testing.T) {
	for name, test := range map[string]struct {
		body messagestore.Body
		want string
	}{
		"a struct":            {opened{"a"}, `{"name":"a"}`},
		"a pointer":           {&opened{"a"}, `{"name":"a"}`},
		"HTML":                {opened{"<a href='x'>&</a>"}, `{"name":"<a href='x'>&</a>"}`},
		"line separators":     {opened{"\u2028"}, `{"name":"\u2028"}`},
		"replacement":         {opened{"\ufffd"}, "{\"name\":\"\ufffd\"}"},
		"a raw replacement":   {anything{[]any{json.RawMessage(`"\ufffd"`), "\ufffd"}}, "{\"a\":[\"\\ufffd\",\"\ufffd\"]}"},
		"what is left out":    {hiding{Name: "\ufffd", hidden: "\xff", Ignored: "\xff", Bytes: []byte{0xff}}, "{\"name\":\"\ufffd\",\"bytes\":\"/w==\"}"},
		"an escape's text":    {opened{`\ufffd`}, `{"name":"\\ufffd"}`},
		"raw JSON in one":     {anything{json.RawMessage(`{"b" : 12345678901234567890.10}`)}, `{"a":{"b":12345678901234567890.10}}`},
		"raw":                 {raw(` {"b" : 1.0}`), ` {"b" : 1.0}`},
		"a pointer to raw":    {&messagestore.Raw{Type: "Opened", Data: json.RawMessage(`{}`)}, `{}`},
		"in a message":        {messagestore.Envelope{Body: opened{"a"}}, `{"name":"a"}`},
		"a message's":         {&messagestore.Envelope{Body: &opened{"a"}}, `{"name":"a"}`},
		"nil in an interface": {anything{nil}, `{"a":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			store := testkit.Must(messagestore.New(memory.New(), nil))
			testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, test.body))(t)
			require.Equal(t, test.want, string(testkit.Do(store.Last(t.Context(), stream))(t).Data))
		})
	}
}

func TestHostileMetadataAreRefused(t *testing.T) {
	long := messagestore.StreamName("x-" + strings.Repeat("y", 9000))
	for name, test := range map[string]struct {
		metadata           messagestore.Metadata
		field, value, rule string
	}{
		"a correlation of 9 kB":       {messagestore.Metadata{CorrelationStream: long}, "metadata correlationStreamName", `"` + string(long[:48]) + `"… (9002 bytes)`, "must be at most 255 bytes, and is 9002"},
		"a control character":         {messagestore.Metadata{ReplyStream: "a\x00"}, "metadata replyStreamName", `"a\x00"`, "must not contain a control or format character, and has U+0000 at byte 1"},
		"invalid UTF-8":               {messagestore.Metadata{CausationStream: "a\xff"}, "metadata causationMessageStreamName", `"a\xff"`, "must be valid UTF-8: error at byte 1"},
		"a position without a stream": {messagestore.Metadata{CausationPosition: 1}, "metadata causationMessagePosition", "1", "must have a causation stream too"},
		"a global position without":   {messagestore.Metadata{CausationGlobalPosition: 1}, "metadata causationMessagePosition", "0", "must have a causation stream too"},
		"a position below 0":          {messagestore.Metadata{CausationStream: "a-1", CausationPosition: -1}, "metadata causationMessagePosition", "-1", "must be at least 0"},
		"a global position below 0":   {messagestore.Metadata{CausationStream: "a-1", CausationGlobalPosition: -1}, "metadata causationMessageGlobalPosition", "-1", "must be at least 0"},
		"a schema version":            {messagestore.Metadata{SchemaVersion: "1\n"}, "metadata schemaVersion", `"1\n"`, "must not contain a control or format character, and has U+000A at byte 1"},
		"a field of our own, null":    {messagestore.Metadata{Extra: map[string]json.RawMessage{"properties": nil}}, "metadata properties", `""`, "must not be a field that Metadata has: set that one"},
		"a field of our own":          {messagestore.Metadata{Extra: map[string]json.RawMessage{"schemaVersion": json.RawMessage(`3`)}}, "metadata schemaVersion", `"3"`, "must not be a field that Metadata has: set that one"},
		"U+0000 in a property":        {messagestore.Metadata{Properties: messagestore.Properties{"a": "\x00"}}, "metadata", `"{\"properties\":{\"a\":\"\\u0000\"}}"`, "must not contain U+0000 at .properties.a"},
		"an invalid property":         {messagestore.Metadata{Local: messagestore.Properties{"a": "\xff"}}, "metadata", "", "must encode as JSON: localProperties: a string in it is not valid UTF-8"},
		"not JSON":                    {messagestore.Metadata{Extra: map[string]json.RawMessage{"a": json.RawMessage(`{`)}}, "metadata", "", "must encode as JSON: a: json: error calling MarshalJSON for type json.RawMessage: unexpected end of JSON input"},
		"a property out of range":     {messagestore.Metadata{Properties: messagestore.Properties{"n": json.Number("1e200000")}}, "metadata", `"{\"properties\":{\"n\":1e200000}}"`, "must not contain a number out of range at .properties.n"},
	} {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, refused(t, messagestore.Envelope{Body: opened{}, Metadata: test.metadata}), messagestore.ErrInvalid, test.field, test.value, test.rule)
		})
	}
	err := refused(t, messagestore.Envelope{Body: raw(`{}`), Metadata: messagestore.Metadata{SchemaVersion: "1", Properties: messagestore.Properties{"a": strings.Repeat("x", 1<<20)}}})
	requireInvalid(t, err, messagestore.ErrInvalid, "data", `"Opened"`, "must be at most 983040 bytes with the metadata, and is 1048621")
}

// A message may come from, and go to, streams that another client named by rules of
// its own.
func TestMetadataMayNameStreamsOfOtherClients(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for _, name := range []messagestore.StreamName{"account", "account-", "-", "a b-1", "account:position"} {
		_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Envelope{Body: opened{}, Metadata: messagestore.Metadata{
			CausationStream: name, CorrelationStream: name, ReplyStream: name,
		}})
		require.NoError(t, err, "%q", name)
	}
}

func TestHostileVersionsAreRefused(t *testing.T) {
	store := untouchedStore(t)
	const rule = "must be a position from 0, NoStream (-1), AnyVersion (-2) or StreamExists (-4)"
	for expected, value := range map[messagestore.Version]string{-3: "-3", -5: "-5", math.MinInt64: "-9223372036854775808"} {
		requireInvalid(t, testkit.ErrorOf(store.Write(t.Context(), stream, expected, opened{})), messagestore.ErrInvalid, "expected version", value, rule)
		_, err := store.WriteStreams(t.Context(), messagestore.StreamWrite{Stream: stream, Expected: expected, Bodies: []messagestore.Body{opened{}}})
		requireInvalid(t, err, messagestore.ErrInvalid, "expected version", value, rule)
	}
	_, err := store.WriteStreams(t.Context(),
		messagestore.StreamWrite{Stream: "account-2", Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened{}}},
		messagestore.StreamWrite{Stream: stream, Expected: messagestore.AnyVersion})
	requireInvalid(t, err, messagestore.ErrInvalid, "expected version", `"any version"`, "must be a version if there are no messages, because such a write only checks it")
}

func TestGreatestExpectedVersionIsAConflict(t *testing.T) {
	_, err := testkit.Must(messagestore.New(memory.New(), nil)).Write(t.Context(), stream, math.MaxInt64, opened{})
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.EqualError(t, err, "write account-1: version conflict: expected 9223372036854775807, found no stream")
}

func TestHostilePositionsAndLimitsAreRefused(t *testing.T) {
	store := untouchedStore(t)
	const positionRule = "must be between 0 and 9223372036854775807"
	for position, value := range map[int64]string{-1: "-1", -5: "-5", math.MinInt64: "-9223372036854775808"} {
		for _, err := range store.ReadStream(t.Context(), stream, messagestore.Version(position)) {
			requireInvalid(t, err, messagestore.ErrInvalid, "position", value, positionRule)
		}
		for _, err := range store.ReadStreamBackwards(t.Context(), stream, messagestore.Version(position)) {
			requireInvalid(t, err, messagestore.ErrInvalid, "position", value, positionRule)
		}
		_, err := store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: "account", From: messagestore.GlobalPosition(position), Limit: 1})
		requireInvalid(t, err, messagestore.ErrInvalid, "position", value, positionRule)
	}
	const limitRule = "must be between 1 and 10000"
	for limit, value := range map[int]string{0: "0", -1: "-1", -2: "-2", 10_001: "10001", math.MaxInt64: "9223372036854775807"} {
		_, err := store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: "account", Limit: limit})
		requireInvalid(t, err, messagestore.ErrInvalid, "limit", value, limitRule)
		if limit == 0 {
			continue // a configuration's default
		}
		requireInvalid(t, testkit.ErrorOf(messagestore.New(untouched{}, &messagestore.Config{BatchSize: limit})), messagestore.ErrInvalid, "batch size", value, limitRule)
	}
}

func TestHostileFiltersAreRefused(t *testing.T) {
	types := make([]string, 101)
	for i := range types {
		types[i] = "Opened"
	}
	for name, test := range map[string]struct {
		filter             messagestore.Filter
		kind               error
		field, value, rule string
	}{
		"a member without a size": {messagestore.Filter{GroupMember: 1}, messagestore.ErrInvalid, "group member", "1", "must not be set without a group size"},
		"a member below 0":        {messagestore.Filter{GroupSize: 2, GroupMember: -1}, messagestore.ErrInvalid, "group member", "-1", "must be at least 0"},
		"a member of the size":    {messagestore.Filter{GroupSize: 2, GroupMember: 2}, messagestore.ErrInvalid, "group member", "2", "must be less than the group size, 2"},
		"a size below 0":          {messagestore.Filter{GroupSize: -1}, messagestore.ErrInvalid, "group size", "-1", "must be between 1 and 1024, or 0 for no group"},
		"a size of 32768":         {messagestore.Filter{GroupSize: 32768}, messagestore.ErrInvalid, "group size", "32768", "must be between 1 and 1024, or 0 for no group"},
		"a correlated stream":     {messagestore.Filter{Correlation: "x-1"}, messagestore.ErrInvalid, "category", `"x-1"`, "must be a category, without a dash, and is the name of a stream"},
		"too many types":          {messagestore.Filter{Types: types}, messagestore.ErrInvalid, "filter types", "101", "must be at most 100"},
	} {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, test.filter.Validate(), test.kind, test.field, test.value, test.rule)
			_, err := untouchedStore(t).ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: "account", Limit: 1, Filter: test.filter})
			requireInvalid(t, err, test.kind, test.field, test.value, test.rule)
		})
	}
	for _, filter := range []messagestore.Filter{{}, {GroupSize: 1}, {GroupSize: 1024, GroupMember: 1023}, {Types: types[:100]}, {Correlation: "a:b"}} {
		require.NoError(t, filter.Validate())
	}
}

func TestHostileBatchesAreRefused(t *testing.T) {
	many := make([]messagestore.Body, messagestore.MaxWriteMessages+1)
	for i := range many {
		many[i] = opened{}
	}
	requireInvalid(t, refused(t), messagestore.ErrInvalid, "batch", "", "must have a message")
	require.ErrorIs(t, refused(t), messagestore.ErrInvalid)
	requireInvalid(t, refused(t, []messagestore.Body(nil)...), messagestore.ErrInvalid, "batch", "", "must have a message")
	requireInvalid(t, refused(t, many...), messagestore.ErrInvalid, "batch", "1001", "must be at most 1000 messages")

	large := make([]messagestore.Body, 18)
	for i := range large {
		large[i] = raw(`{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes-100) + `"}`)
	}
	requireInvalid(t, refused(t, large...), messagestore.ErrInvalid, "batch", "17693064", "must be at most 16777216 bytes")
}

func TestBatchWithOneBadMessageIsRefusedWholeWithItsIndex(t *testing.T) {
	for i := range 4 {
		bodies := []messagestore.Body{opened{}, opened{}, opened{}, opened{}}
		bodies[i] = raw(`[]`)
		index := requireInvalid(t, refused(t, bodies...), messagestore.ErrInvalid, "data", `"[]"`, "must be a JSON object")
		require.Equal(t, i, index)
	}
	require.EqualError(t, refused(t, opened{}, raw(`[]`)), `write account-1: invalid message 1: data "[]": must be a JSON object`)
	require.EqualError(t, refused(t, messagestore.Raw{Data: json.RawMessage(`{}`)}), `write account-1: invalid message 0: message type "": must not be empty`)
}

func TestHostileBatchesOfStreamsAreRefused(t *testing.T) {
	store := untouchedStore(t)
	one := []messagestore.Body{opened{}}
	half := make([]messagestore.Body, 501)
	for i := range half {
		half[i] = opened{}
	}
	var streams []messagestore.StreamWrite
	for i := range 101 {
		streams = append(streams, messagestore.StreamWrite{Stream: messagestore.Category("account").Stream(strings.Repeat("x", i+1)), Expected: messagestore.NoStream, Bodies: one})
	}
	id := uuid.New()
	for name, test := range map[string]struct {
		writes             []messagestore.StreamWrite
		kind               error
		field, value, rule string
	}{
		"none":              {nil, messagestore.ErrInvalid, "batch", "", "must have a message"},
		"checks only":       {[]messagestore.StreamWrite{{Stream: stream, Expected: 3}}, messagestore.ErrInvalid, "batch", "", "must have a message"},
		"a stream twice":    {[]messagestore.StreamWrite{messagestore.To(stream, messagestore.NoStream, one...), messagestore.To(stream, 0, one...)}, messagestore.ErrInvalid, "batch", `"account-1"`, "must name each stream once"},
		"too many":          {streams, messagestore.ErrInvalid, "batch", "101", "must be at most 100 streams"},
		"too many messages": {[]messagestore.StreamWrite{messagestore.To(stream, 0, half...), messagestore.To("account-2", 0, half...)}, messagestore.ErrInvalid, "batch", "1002", "must be at most 1000 messages"},
		"an id twice": {
			[]messagestore.StreamWrite{messagestore.To(stream, 0, messagestore.Envelope{ID: id, Body: opened{}}), messagestore.To("account-2", 0, messagestore.Envelope{ID: id, Body: opened{}})},
			messagestore.ErrInvalid, "message id", `"` + id.String() + `"`, "must be unique in the batch, and message 0 has it too",
		},
		"past types at any version": {
			[]messagestore.StreamWrite{{Stream: stream, Expected: messagestore.AnyVersion, Bodies: one, Past: []string{"Seen"}}},
			messagestore.ErrInvalid, "expected version", `"any version"`, "must be a version or NoStream, which the past messages came after",
		},
		"after a message at no version": {
			[]messagestore.StreamWrite{{Stream: stream, Expected: messagestore.NoStream, Bodies: one, After: id}},
			messagestore.ErrInvalid, "expected version", `"no stream"`, "must be the version of the message in After",
		},
		"too many past types": {
			[]messagestore.StreamWrite{{Stream: stream, Expected: 0, Bodies: one, Past: slices.Repeat([]string{"Seen"}, 101)}},
			messagestore.ErrInvalid, "past types", "101", "must be at most 100",
		},
		"an empty past type": {
			[]messagestore.StreamWrite{{Stream: stream, Expected: 0, Bodies: one, Past: []string{""}}},
			messagestore.ErrInvalid, "message type", `""`, "must not be empty",
		},
	} {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, testkit.ErrorOf(store.WriteStreams(t.Context(), test.writes...)), test.kind, test.field, test.value, test.rule)
			_, met, err := store.TryWriteStreams(t.Context(), test.writes...)
			require.Nil(t, met)
			requireInvalid(t, err, test.kind, test.field, test.value, test.rule)
		})
	}
}

func TestErrorsAreOneLineWhateverTheInput(t *testing.T) {
	for _, hostile := range []messagestore.StreamName{"cat-\nfake log line", "cat-\x1b[31m", "cat-\u202e", messagestore.StreamName(strings.Repeat("x-\n", 1<<20))} {
		_, err := untouchedStore(t).Write(context.Background(), hostile, messagestore.AnyVersion, opened{})
		require.NotContains(t, err.Error(), "\n")
		require.NotContains(t, err.Error(), "\x1b")
		require.NotContains(t, err.Error(), "\u202e")
		require.Less(t, len(err.Error()), 300)
	}
}

// calls are the methods of a store that ask its driver.
var calls = map[string]func(ctx context.Context, s *messagestore.Store) error{
	"write": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.Write(ctx, stream, messagestore.NoStream, opened{})
		return err
	},
	"write initial": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.WriteInitial(ctx, stream, opened{})
		return err
	},
	"write streams": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.WriteStreams(ctx, messagestore.To(stream, messagestore.NoStream, opened{}))
		return err
	},
	"try to write": func(ctx context.Context, s *messagestore.Store) error {
		_, _, err := s.TryWrite(ctx, stream, messagestore.NoStream, opened{})
		return err
	},
	"resolve": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.Resolve(ctx, &messagestore.OutcomeUnknownError{})
		return err
	},
	"read stream": func(ctx context.Context, s *messagestore.Store) (err error) {
		for _, err = range s.ReadStream(ctx, stream, 0) {
			break
		}
		return err
	},
	"read stream backwards": func(ctx context.Context, s *messagestore.Store) (err error) {
		for _, err = range s.ReadStreamBackwards(ctx, stream, messagestore.EndOfStream) {
			break
		}
		return err
	},
	"read category": func(ctx context.Context, s *messagestore.Store) (err error) {
		for _, err = range s.ReadCategory(ctx, "account", 0, messagestore.Filter{}) {
			break
		}
		return err
	},
	"last": func(ctx context.Context, s *messagestore.Store) error { _, err := s.Last(ctx, stream); return err },
	"last of type": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.LastOfType(ctx, stream, "Opened")
		return err
	},
	"version": func(ctx context.Context, s *messagestore.Store) error { _, err := s.Version(ctx, stream); return err },
	"now":     func(ctx context.Context, s *messagestore.Store) error { _, err := s.Now(ctx); return err },
	"epoch":   func(ctx context.Context, s *messagestore.Store) error { _, err := s.Epoch(ctx); return err },
	"end":     func(ctx context.Context, s *messagestore.Store) error { _, err := s.End(ctx, "account"); return err },
	"position at": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.PositionAt(ctx, "account", time.Now())
		return err
	},
	"categories": func(ctx context.Context, s *messagestore.Store) error { _, err := s.Categories(ctx, ""); return err },
	"count": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.Count(ctx, messagestore.CategoryQuery{Category: "account", Limit: 1})
		return err
	},
	"check":         func(ctx context.Context, s *messagestore.Store) error { return s.Check(ctx) },
	"check reading": func(ctx context.Context, s *messagestore.Store) error { return s.CheckReading(ctx) },
}

func TestStoreWithoutADriverRefusesEveryCall(t *testing.T) {
	const rule = "must be made by New, and is the zero Store"
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, call(t.Context(), &messagestore.Store{}), messagestore.ErrInvalid, "store", "", rule)
		})
	}
	require.NoError(t, (&messagestore.Store{}).Close())
}

func TestNewTellsAllMistakes(t *testing.T) {
	for name, driver := range map[string]messagestore.Driver{"nil": nil, "a nil pointer": (*memory.Driver)(nil)} {
		store, err := messagestore.New(driver, &messagestore.Config{BatchSize: messagestore.MaxReadMessages + 1})
		require.Nil(t, store, name)
		require.EqualError(t, err, "store: invalid driver: must not be nil\ninvalid batch size 10001: must be between 1 and 10000", name)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
	}
}

func TestNilContextIsRefused(t *testing.T) {
	var none context.Context
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, call(none, store), messagestore.ErrInvalid, "context", "", "must not be nil")
		})
	}
}

func TestFollowOfNothingIsRefusedByTheWrite(t *testing.T) {
	requireInvalid(t, refused(t, messagestore.Follow(nil, opened{})), messagestore.ErrInvalid, "cause", "", "the message given to Follow must not be nil")
}

type (
	hidden        struct{ amount int }
	hiddenInside  struct{ hidden }
	hiddenPointer struct{ *hidden }
	partlyHidden  struct{ Amount, fee int }
	leftOut       struct {
		Amount int `json:"-"`
	}
	promoted       struct{ partlyHidden }
	own            struct{ amount int }
	withoutFields  struct{}
	withABlankOnly struct{ _ int }
)

func (hidden) MessageType() string         { return "Hidden" }
func (hiddenInside) MessageType() string   { return "Hidden" }
func (hiddenPointer) MessageType() string  { return "Hidden" }
func (partlyHidden) MessageType() string   { return "Hidden" }
func (leftOut) MessageType() string        { return "Hidden" }
func (promoted) MessageType() string       { return "Hidden" }
func (own) MessageType() string            { return "Hidden" }
func (own) MarshalJSON() ([]byte, error)   { return []byte("{}"), nil }
func (withoutFields) MessageType() string  { return "Hidden" }
func (withABlankOnly) MessageType() string { return "Hidden" }

// A body of which nothing would be written is a mistake that shows when it is read.
func TestBodyWithoutAnExportedFieldIsRefused(t *testing.T) {
	for _, body := range []messagestore.Body{hidden{1}, &hidden{1}, hiddenInside{hidden{1}}, hiddenPointer{&hidden{1}}} {
		requireInvalid(t, refused(t, body), messagestore.ErrInvalid, "data", `"Hidden"`,
			"must have an exported field, or nothing of it would be written: begin the names of fields with a capital letter")
	}
	for i, body := range []messagestore.Body{partlyHidden{Amount: 1, fee: 2}, leftOut{1}, promoted{partlyHidden{1, 2}}, own{1}, withoutFields{}, &withoutFields{}, withABlankOnly{}} {
		require.NoError(t, testkit.ErrorOf(testkit.Must(messagestore.New(memory.New(), nil)).Write(t.Context(), stream, messagestore.NoStream, body)), i)
	}
}

func TestConflictWithTheZeroVersionAsksWhatIsMeant(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	_, err := store.Write(t.Context(), stream, 0, opened{})
	require.EqualError(t, err, "write account-1: version conflict: expected 0, found no stream (version 0 expects one message: is NoStream meant, or AnyVersion?)")
	require.EqualError(t, testkit.ErrorOf(store.Write(t.Context(), stream, 3, opened{})), "write account-1: version conflict: expected 3, found no stream")
}

func TestStreamOfACategoryWithADashIsRefused(t *testing.T) {
	_, err := untouchedStore(t).Write(t.Context(), messagestore.Category("my-seat").Stream("1"), messagestore.NoStream, opened{})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "my-seat")
}
