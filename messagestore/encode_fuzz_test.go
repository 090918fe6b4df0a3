package messagestore

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/tier"
)

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
		got := must.Do(Decode[fuzzed](&Message{Type: record.Type, Data: record.Data}))(t)
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
	for _, seed := range tier.SeedJSONTexts() {
		f.Add("Opened", []byte(seed))
	}
	for _, data := range tier.SeedJSON("a") {
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
	for _, seed := range append(tier.SeedJSONTexts(),
		`{"amount":1,"text":"x","list":"AQI=","when":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f","any":{"a":1e308},"raw":[1],"self":{}}`,
		`{"amount":9223372036854775808}`, `{"amount":1.5}`, `{"amount":"1"}`, `{"when":"nope"}`, `{"list":[256]}`, `{"any":{"a":1e400}}`, `{"AMOUNT":3}`,
		`{"amount":`+strings.Repeat("7", 2000)+`}`,
	) {
		f.Add("Target", "account-1", []byte(seed))
	}
	f.Add("Other\nlevel=error", "cat-\nfake", []byte(`{}`))
	for _, data := range tier.SeedJSON("a") {
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
	for _, seed := range tier.SeedJSONTexts() {
		f.Add([]byte(seed), 6)
	}
	f.Add([]byte(`{"a":{"b":[1,{"c":2}]},"":[[[[[[[[[[1]]]]]]]]]]}`), 20)
	for _, data := range tier.SeedJSON("a") {
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
	for _, data := range tier.SeedJSON("a") {
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
		conflict := must.As[*IDConflictError](t, err)
		require.Equal(t, strconv.FormatInt(position, 10), strconv.FormatInt(int64(conflict.Position), 10))
		if ours, err := encodeMetadata(m.Metadata); err == nil {
			require.False(t, exactjson.Equal(w.Records[0].Data, m.Data) && exactjson.Equal(w.Records[0].Metadata, ours))
		}
	})
}
