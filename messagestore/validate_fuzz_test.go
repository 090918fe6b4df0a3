package messagestore

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
)

// requireShort checks a refusal: one visible line, which does not grow with the value, of the kind
// that callers match.
func requireShort(t *testing.T, err, kind error) {
	t.Helper()
	require.NotNil(t, refusal(t, err, kind))
}

func refusal(t *testing.T, err, kind error) *InvalidError {
	t.Helper()
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, err, kind)
	invalid := testkit.As[*InvalidError](t, err)
	require.NotEmpty(t, invalid.Field)
	require.NotEmpty(t, invalid.Rule)
	require.Less(t, len(err.Error()), 1000)
	require.True(t, utf8.ValidString(err.Error()))
	require.NotContains(t, invalid.Field+invalid.Value, "\n")
	for _, r := range err.Error() {
		require.True(t, unicode.IsGraphic(r), "%q", err)
	}
	return invalid
}

// The grammar of names once more, in another notation.
var (
	categoryForm = regexp.MustCompile(`^[^-:+\p{Z}\p{C}]+(:[^-:+\p{Z}\p{C}]+(\+[^-:+\p{Z}\p{C}]+)*)?$`)
	idForm       = regexp.MustCompile(`^[^+\p{Zl}\p{Zp}\p{Cc}\p{Cf}]+(\+[^+\p{Zl}\p{Zp}\p{Cc}\p{Cf}]+)*$`)
	typeForm     = regexp.MustCompile(`^[^\p{Z}\p{Cc}\p{Cf}]([^\p{Zl}\p{Zp}\p{Cc}\p{Cf}]*[^\p{Z}\p{Cc}\p{Cf}])?$`)
	endsInSpace  = regexp.MustCompile(`\p{Z}$`)
)

func FuzzNamesHaveTheirGrammar(f *testing.F) {
	f.Add("account:command+position-123+AAA")
	f.Add("dibs:Tombstone")
	f.Add("a-b c")
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, s string) {
		bounded := utf8.ValidString(s) && len(s) <= text.MaxNameBytes
		// Unassigned characters and those of private use do not count as \p{C} here.
		category, id, _ := strings.Cut(s, "-")
		isCategory := func(s string) bool { return categoryForm.MatchString(strings.Map(assigned, s)) }

		err := Category(s).Validate()
		require.Equal(t, bounded && isCategory(s), err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
			require.Equal(t, strings.Contains(s, "-"), strings.Contains(err.Error(), "and is the name of a stream"))
		}
		err = StreamName(s).Validate()
		require.Equal(t, bounded && isCategory(category) && idForm.MatchString(id) && !endsInSpace.MatchString(s), err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
			require.Equal(t, bounded && isCategory(s), strings.Contains(err.Error(), "and is a category"))
		}
		err = validateType(s)
		require.Equal(t, bounded && typeForm.MatchString(s) && !strings.HasPrefix(s, "dibs:"), err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
		}
		require.Equal(t, bounded && typeForm.MatchString(s), validateKnownType(s) == nil)
		require.Equal(t, err == nil || strings.HasPrefix(s, "dibs:") && bounded && typeForm.MatchString(s), quoteName(s) == s, "what is valid is shown as it is, and nothing else")
	})
}

// assigned maps code points without a meaning in Unicode to a letter.
func assigned(r rune) rune {
	if unicode.In(r, unicode.C, unicode.Z) && !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Z) || !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.C) {
		return 'x'
	}
	return r
}

// A refused value of any Go type is shown as one short line.
func FuzzARefusedValueIsShownShort(f *testing.F) {
	f.Add("cat-\nlevel=error fake", 3)
	f.Add(strings.Repeat("x", 47)+"\u00e9", -1)
	for _, name := range testkit.SeedNames() {
		f.Add(name, len(name))
	}
	f.Fuzz(func(t *testing.T, value string, number int) {
		kind := errors.New("a kind")
		want := ""
		if len(value) <= 48 {
			want = strconv.QuoteToGraphic(value)
		}
		for _, v := range []any{value, []byte(value), json.RawMessage(value), StreamName(value), Category(value), errors.New(value), Raw{Type: value}, []string{value, value}, map[string]string{value: value}, &value} {
			e := NewInvalidError("field", v, "rule")
			e.Kind = kind
			invalid := refusal(t, e, kind)
			require.Equal(t, -1, invalid.Index)
			require.LessOrEqual(t, len(invalid.Value), 48*len(`\x00`)+len(`""… (9223372036854775807 bytes)`))
			if _, isText := v.(string); isText && want != "" {
				require.Equal(t, want, invalid.Value)
				require.Equal(t, value, testkit.Do(strconv.Unquote(invalid.Value))(t))
			}
		}
		e := NewInvalidError("field", number, "rule")
		e.Kind = kind
		invalid := refusal(t, at(number, e), kind)
		require.Equal(t, number, invalid.Index)
		require.Equal(t, strconv.Itoa(number), invalid.Value)
	})
}

func FuzzNumbersHaveTheirBounds(f *testing.F) {
	for _, n := range []int64{math.MinInt64, -3, -2, -1, 0, 1, 2, 1024, 1025, 10_000, 10_001, 32_768, math.MaxInt32 + 1, math.MaxInt64} {
		f.Add(n, int(n), int(n), "account", 1)
		f.Add(int64(0), 1, 2, "a-1", int(min(max(n, 0), 200)))
	}
	f.Add(int64(1<<63-1), 1<<63-1, 1<<63-1, "account", 101) // greatest
	f.Add(int64(-1<<63), -1<<63, -1, "account", 1)          // least
	f.Fuzz(func(t *testing.T, n int64, size, member int, correlation string, types int) {
		requireBound := func(ok bool, err, kind error, value string) {
			t.Helper()
			require.Equal(t, ok, err == nil, "%v", err)
			if err != nil {
				require.Equal(t, value, refusal(t, err, kind).Value)
			}
		}
		decimal := strconv.FormatInt(n, 10)
		requireBound(n >= -2, validateExpected(Version(n)), ErrInvalid, decimal)
		requireBound(n >= 0, validateFrom(Version(n)), ErrInvalid, decimal)
		requireBound(n >= 0, validateFrom(GlobalPosition(n)), ErrInvalid, decimal)
		requireBound(1 <= size && size <= MaxReadMessages, validateLimit(size), ErrInvalid, strconv.Itoa(size))
		require.Positive(t, max(1, GlobalPosition(max(n, 0)).Next()), "it does not wrap")
		require.GreaterOrEqual(t, GlobalPosition(max(n, 0)).Next(), GlobalPosition(max(n, 0)))

		filter := Filter{Correlation: Category(correlation), GroupSize: size, GroupMember: member, Types: make([]string, min(max(types, 0), 1000))}
		for i := range filter.Types {
			filter.Types[i] = "Opened"
		}
		wrong := Category(correlation).Validate()
		grouped := size == 0 && member == 0 || 1 <= size && size <= maxGroupSize && 0 <= member && member < size
		err := filter.Validate()
		require.Equal(t, (correlation == "" || wrong == nil) && len(filter.Types) <= maxFilterTypes && grouped, err == nil, "%v", err)
		if all, is := err.(interface{ Unwrap() []error }); is {
			for _, one := range all.Unwrap() {
				requireShort(t, one, ErrInvalid)
			}
		}
	})
}

// Of a hash the member is the remainder of its absolute value, exactly.
func FuzzEveryHashHasAMember(f *testing.F) {
	for _, hash := range []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64} {
		f.Add(hash, 3, "123")
		f.Add(hash, maxGroupSize, "a+b")
	}
	f.Add(int64(-1<<63), 1024, "1") // least
	f.Fuzz(func(t *testing.T, hash int64, size int, id string) {
		if size < 1 {
			return
		}
		absolute := new(big.Int).Abs(big.NewInt(hash))
		require.Equal(t, new(big.Int).Mod(absolute, big.NewInt(int64(size))).Int64(), int64(groupMember(hash, size)))

		name := Category("account").Stream(id)
		member := name.GroupMember(size)
		require.Equal(t, member, StreamName("other-"+name.cardinalPart()+"+x").GroupMember(size), "the category does not count, nor what follows the cardinal id")
	})
}

// The header of W3C's trace context, field by field.
func FuzzTraceIsOneOrRefused(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "rojo=00f067aa0ba902b7")
	f.Add("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")
	f.Add("00-00000000000000000000000000000000-b7ad6b7169203331-01", "")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n", "") // line end
	f.Add("00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01", "")   // upper case
	f.Fuzz(func(t *testing.T, parent, state string) {
		parts := strings.Split(parent, "-")
		ok := len(parts) == 4 && len(state) <= 512
		for i, size := range []int{1, 16, 8, 1} {
			if !ok {
				break
			}
			raw, err := hex.DecodeString(parts[i])
			zero := strings.Trim(parts[i], "0") == "" && size > 1
			ok = err == nil && len(raw) == size && strings.ToLower(parts[i]) == parts[i] && !zero
		}
		ok = ok && parts[0] != "ff"
		m := Metadata{Properties: Properties{"kept": "x", traceState: "old"}}
		err := m.SetTrace(parent, state)
		if parent == "" {
			require.NoError(t, err)
			require.Equal(t, Properties{"kept": "x"}, m.Properties)
			return
		}
		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
			require.Equal(t, Properties{"kept": "x", traceState: "old"}, m.Properties, "nothing is half done")
			return
		}
		gotParent, gotState := m.Trace()
		require.Equal(t, parent, gotParent)
		require.Equal(t, state, gotState)
	})
}

// The hand-written encoder gives the bytes of encoding/json.
func FuzzMetadataIsEncodedAsByEncodingJSON(f *testing.F) {
	f.Add("account-1", int64(0), "b", "1", "name", "value")
	f.Add("a-\"\\<&>\u2028\x7f\x1f\xff", int64(math.MinInt64), "\xed\xa0\x80", "\t", "<\ufffd>", "\x00")
	f.Add("a-\u202e", int64(1), "\u2028", "\ufeff", "\x7f", "\xc0\x80") // bidi
	f.Fuzz(func(t *testing.T, cause string, n int64, correlation, schema, name, value string) {
		m := Metadata{
			CausationStream: StreamName(cause), CausationPosition: Version(n), CausationGlobalPosition: GlobalPosition(n),
			CorrelationStream: StreamName(correlation), ReplyStream: StreamName(value), SchemaVersion: schema, Properties: Properties{name: value},
		}
		form := struct {
			Cause       string            `json:"causationMessageStreamName,omitempty"`
			Position    *int64            `json:"causationMessagePosition,omitempty"`
			Global      *int64            `json:"causationMessageGlobalPosition,omitempty"`
			Correlation string            `json:"correlationStreamName,omitempty"`
			Reply       string            `json:"replyStreamName,omitempty"`
			Properties  map[string]string `json:"properties"`
			Schema      string            `json:"schemaVersion,omitempty"`
		}{Cause: cause, Correlation: correlation, Reply: value, Properties: map[string]string{name: value}, Schema: schema}
		if cause != "" {
			form.Position, form.Global = &n, &n
		}
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		require.NoError(t, e.Encode(form))

		got, err := m.MarshalJSON()

		if !utf8.ValidString(cause + correlation + value + schema + name) {
			require.ErrorContains(t, err, "a string in it is not valid UTF-8")
			return
		}
		require.NoError(t, err)
		require.Equal(t, strings.TrimSuffix(want.String(), "\n"), string(got))
	})
}

type fuzzed struct {
	Text   string             `json:"text"`
	Fields map[string]string  `json:"fields"`
	Number float64            `json:"number"`
	Bytes  []byte             `json:"bytes"`
	Deep   *fuzzed            `json:"deep,omitempty"`
	Any    any                `json:"any"`
	Skip   string             `json:"-"`
	Raw    json.RawMessage    `json:"raw,omitempty"`
	Names  map[StreamName]int `json:"names,omitempty"`
}

func (fuzzed) MessageType() string { return "Fuzzed" }

// A body is recorded as it is, or refused: nothing in it changes on the way.
func FuzzABodyIsKeptOrRefused(f *testing.F) {
	f.Add("text", "name", "value", 1.5, []byte{0xff}, []byte(nil))
	f.Add("\ufffd", "\xff", "\x00", math.Inf(1), []byte{}, []byte(`{"a":"\ud800"}`))
	f.Add("\xed\xa0\x80", "", "", math.NaN(), []byte{}, []byte(`1e400`))
	f.Add("<&>\u2028", "\ufeff", "\u202e", math.Copysign(0, -1), []byte{}, []byte(`[`))
	f.Add("\ufffd", "\ufffd", "x", float64(1e+300), []byte(""), []byte(`"\ufffd"`)) // replacement that is meant
	f.Fuzz(func(t *testing.T, text, name, value string, number float64, raw, own []byte) {
		body := fuzzed{Text: text, Number: number, Bytes: raw, Skip: "\xff", Any: []any{value}, Deep: &fuzzed{Fields: map[string]string{name: value}}, Names: map[StreamName]int{StreamName(name): 1}}
		if len(own) > 0 {
			body.Raw = own
		}
		record, err := encodeMessage(body)
		valid := true
		for _, s := range []string{text, name, value} {
			valid = valid && utf8.ValidString(s) && !strings.Contains(s, "\x00")
		}
		if len(own) == 0 {
			require.Equal(t, valid && !math.IsNaN(number) && !math.IsInf(number, 0), err == nil, "%v", err)
		}
		if err != nil {
			requireRefusal(t, err, ErrInvalid)
			return
		}
		require.True(t, valid, "%s", record.Data)
		require.NotEqual(t, uuid.Nil, record.ID)
		require.LessOrEqual(t, len(record.Data)+len(record.Metadata), MaxMessageBytes)
		got := testkit.Do(Decode[fuzzed](&Message{Type: record.Type, Data: record.Data}))(t)
		require.Equal(t, text, got.Text)
		require.Equal(t, map[string]string{name: value}, got.Deep.Fields)
		require.Equal(t, []any{value}, got.Any)
		require.Equal(t, map[StreamName]int{StreamName(name): 1}, got.Names)
		require.Equal(t, math.Float64bits(number), math.Float64bits(got.Number))
		require.True(t, bytes.Equal(raw, got.Bytes))
		if len(own) > 0 {
			require.True(t, exactjson.Equal(own, got.Raw), "%s became %s", own, got.Raw)
		}
	})
}

// requireRefusal is requireShort for errors that may hold a text of encoding/json.
func requireRefusal(t *testing.T, err, kind error) {
	t.Helper()
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, err, kind)
	require.Less(t, len(err.Error()), 1000)
	require.NotContains(t, err.Error(), "\n")
}

// JSON that comes as it is: every byte is kept, and the caller's buffer is the caller's.
func FuzzRawIsKeptByteForByte(f *testing.F) {
	for _, seed := range testkit.SeedJSONTexts() {
		f.Add("Opened", []byte(seed))
	}
	for _, data := range testkit.SeedJSON("a") {
		f.Add("Opened", []byte(data))
	}
	f.Fuzz(func(t *testing.T, messageType string, data []byte) {
		given := bytes.Clone(data)
		record, err := encodeMessage(&Raw{Type: messageType, Data: given})
		require.Equal(t, validateType(messageType) == nil && validateJSON("data", data) == nil && len(data) <= MaxMessageBytes, err == nil, "%v", err)
		if err != nil {
			requireRefusal(t, err, ErrInvalid)
			return
		}
		require.Equal(t, messageType, record.Type)
		for i := range given {
			given[i] = 'x'
		}
		require.Equal(t, string(data), string(record.Data))
		require.True(t, record.Same(&Message{ID: record.ID, Type: record.Type, Data: data}, nil))
	})
}

// Written metadata is read back, field by field.
func FuzzMetadataIsReadAsItWasWritten(f *testing.F) {
	f.Add("a-1", int64(0), int64(7), "b", "c-1", "1", "name", "value", "local", "extra", []byte(`[1.10]`))
	f.Add("", int64(1), int64(-1), "\xff", "\n", " ", "\ufffd", "\x00", "\xff", "schemaVersion", []byte(`{`))
	f.Add("\u202e", int64(-1), int64(0), strings.Repeat("x", 256), "", "", "", "", "", "", []byte(`null`))
	f.Add("a-1", int64(0), int64(0), "", "", "", "x\x00", "y", "z", "e", []byte(`"x"`)) // nul
	f.Fuzz(func(t *testing.T, cause string, position, global int64, correlation, reply, schema, property, value, local, extra string, raw []byte) {
		m := Metadata{
			CausationStream: StreamName(cause), CausationPosition: Version(position), CausationGlobalPosition: GlobalPosition(global),
			CorrelationStream: StreamName(correlation), ReplyStream: StreamName(reply), SchemaVersion: schema,
			Properties: Properties{property: value}, Local: Properties{local: []any{value, nil, true}},
		}
		if extra != "" {
			m.Extra = map[string]json.RawMessage{extra: raw}
		}
		encoded, err := encodeMetadata(m)
		if err != nil {
			requireRefusal(t, err, ErrInvalid)
			return
		}
		for _, name := range []string{cause, correlation, reply, schema} {
			require.True(t, name == "" || text.NameRule(name) == "", "%q", name)
		}
		require.GreaterOrEqual(t, position, int64(0))
		require.GreaterOrEqual(t, global, int64(0))
		read := ParseMetadata(encoded)
		require.Equal(t, read, ParseMetadata(string(encoded)))
		if extra != "" {
			require.True(t, exactjson.Equal(raw, read.Extra[extra]), "%s", encoded)
		}
		read.Extra, m.Extra = nil, nil
		require.Equal(t, m, read)
	})
}

type target struct {
	Amount int64           `json:"amount"`
	Text   string          `json:"text"`
	List   []uint8         `json:"list"`
	When   uuid.UUID       `json:"when"`
	Any    map[string]any  `json:"any"`
	Raw    json.RawMessage `json:"raw"`
	Self   *target         `json:"self"`
}

func (target) MessageType() string { return "Target" }

// Data of any client decodes as encoding/json decodes it, or is a short error that shows no
// content.
func FuzzDecodeAgreesWithEncodingJSON(f *testing.F) {
	for _, seed := range append(testkit.SeedJSONTexts(),
		`{"amount":1,"text":"x","list":"AQI=","when":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f","any":{"a":1e308},"raw":[1],"self":{}}`,
		`{"amount":9223372036854775808}`, `{"amount":1.5}`, `{"amount":"1"}`, `{"when":"nope"}`, `{"list":[256]}`, `{"any":{"a":1e400}}`, `{"AMOUNT":3}`,
		`{"amount":`+strings.Repeat("7", 2000)+`}`,
	) {
		f.Add("Target", "account-1", []byte(seed))
	}
	f.Add("Other\nlevel=error", "cat-\nfake", []byte(`{}`))
	for _, data := range testkit.SeedJSON("a") {
		f.Add("Target", "account-1", []byte(data))
	}
	f.Fuzz(func(t *testing.T, messageType, stream string, data []byte) {
		r := &Message{Type: messageType, Stream: StreamName(stream), Data: data}
		got, err := Decode[target](r)
		if messageType != "Target" {
			require.ErrorIs(t, err, ErrInvalid)
			requireOneShortLine(t, err.Error())
			return
		}
		var want target
		wrong := json.Unmarshal(data, &want)
		require.Equal(t, len(data) == 0 || wrong == nil, err == nil, "%v", err)
		if err != nil {
			requireOneShortLine(t, err.Error())
			return
		}
		require.Equal(t, want, got)
	})
}

func requireOneShortLine(t *testing.T, text string) {
	t.Helper()
	require.Less(t, len(text), 1000)
	require.False(t, strings.ContainsFunc(text, unicode.IsControl), "%q", text)
}

// The path to any byte of any JSON is short.
func FuzzThePathToAByteOfJSON(f *testing.F) {
	for _, seed := range testkit.SeedJSONTexts() {
		f.Add([]byte(seed), 6)
	}
	f.Add([]byte(`{"a":{"b":[1,{"c":2}]},"":[[[[[[[[[[1]]]]]]]]]]}`), 20)
	for _, data := range testkit.SeedJSON("a") {
		f.Add([]byte(data), 7)
	}
	f.Fuzz(func(t *testing.T, raw []byte, offset int) {
		path := jsonPath(raw, offset)
		require.NotEmpty(t, path)
		require.LessOrEqual(t, len(path), 300)
		require.True(t, utf8.ValidString(path))
		require.NotContains(t, path, "\n")
	})
}

// An unknown outcome resolves to this very write if the found messages equal it, and else to a
// conflict.
func FuzzAFoundWriteIsTheOneThatWasLost(f *testing.F) {
	f.Add(`{}`, `{"properties":{"a":1.0}}`, `{ }`, `{"properties":{"a":1}}`, int64(0))
	f.Add(`{"a":1}`, ``, `{"a":2}`, ``, int64(3))
	f.Add(`{}`, `null`, `{}`, `[]`, int64(math.MaxInt64))
	for _, data := range testkit.SeedJSON("a") {
		f.Add(data, data, data+" ", data, int64(0))
	}
	f.Fuzz(func(t *testing.T, data, metadata, foundData, foundMetadata string, position int64) {
		id := uuid.UUID{15: 1}
		w := Append{Stream: "account-1", Records: []Encoded{{ID: id, Type: "T", Data: json.RawMessage(data), Metadata: json.RawMessage(metadata)}}}
		m := &Message{ID: id, Stream: "account-1", Type: "T", Position: Version(position), Data: json.RawMessage(foundData), Metadata: ParseMetadata(foundMetadata)}
		err := notOf(w, []*Message{m})
		if err == nil {
			require.True(t, exactjson.Equal(w.Records[0].Data, m.Data))
			return
		}
		conflict := testkit.As[*IDConflictError](t, err)
		require.Equal(t, strconv.FormatInt(position, 10), strconv.FormatInt(int64(conflict.Position), 10))
		if ours, err := encodeMetadata(m.Metadata); err == nil {
			require.False(t, exactjson.Equal(w.Records[0].Data, m.Data) && exactjson.Equal(w.Records[0].Metadata, ours))
		}
	})
}
