package messagestore

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
)

func FuzzStreamName(f *testing.F) {
	for _, seed := range []string{
		"account-123", "account:command+position-123+AAA", "", "-", "a-", "a-+b", "a--", "a:b:c-1", "a-\x00", "a-\xff", "caf\u00e9-1", " a-1", "a-1\u2028", "a-\u200d", "A-1+2++3", "a:-1",
	} {
		f.Add(seed)
	}
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, s string) {
		category := Category(s)
		err := category.Validate()
		if err == nil {
			rebuilt := Category(category.Entity())
			for _, name := range category.Types() {
				rebuilt = rebuilt.WithType(name)
			}
			require.Equal(t, category, rebuilt)
			require.ErrorIs(t, StreamName(s).Validate(), ErrInvalid, "a name is a category's or a stream's, not both")
		} else {
			require.ErrorIs(t, err, ErrInvalid)
			require.Less(t, len(err.Error()), 400)
			require.NotContains(t, err.Error(), "\n")
		}

		name := StreamName(s)
		err = name.Validate()
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			require.Less(t, len(err.Error()), 400)
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.True(t, utf8.ValidString(s))
		require.LessOrEqual(t, len(s), text.MaxNameBytes)
		require.NotContains(t, s, "\x00")
		require.NoError(t, name.Category().Validate())
		require.Equal(t, name.IDs()[0], name.CardinalID())
		if parts := strings.Split(name.ID(), "+"); !slices.ContainsFunc(parts, foreign) {
			require.Equal(t, name, name.Category().Stream(name.IDs()[0]).With(name.IDs()[1:]...))
		} else {
			require.Len(t, name.IDs(), len(parts))
		}
		for _, size := range []int{1, 2, 3, maxGroupSize} {
			member := name.GroupMember(size)
			require.True(t, 0 <= member && member < size)
			if longer := name.With("x"); longer.Validate() == nil {
				require.Equal(t, member, longer.GroupMember(size))
			}
		}
	})
}

// Accepted data is valid JSON, and every function of this package works on it.
func FuzzValidateJSON(f *testing.F) {
	for _, seed := range testkit.SeedJSONTexts() {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := validateJSON("data", raw)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorIs(t, err, ErrInvalid)
			require.Less(t, len(err.Error()), 1000)
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.True(t, json.Valid(raw))
		require.True(t, utf8.Valid(raw))
		var object map[string]any
		require.NoError(t, unmarshalExact(raw, &object))
		canonical := testkit.Do(exactjson.Canonical(raw))(t)
		require.NotContains(t, string(canonical), `\u0000`+"\x00")
		require.NoError(t, validateJSON("data", canonical), "%s", canonical)
		require.True(t, exactjson.Equal(raw, canonical))
	})
}

func TestNumbersOfTooManyDigitsAreRefused(t *testing.T) {
	for number, valid := range map[string]bool{
		strings.Repeat("9", 131_072): true, "-1" + strings.Repeat("0", 131_072): false, "0." + strings.Repeat("1", 16_383): true, "0." + strings.Repeat("1", 16_384): false,
	} {
		require.Equal(t, valid, validateJSON("data", []byte(`{"a":`+number+`}`)) == nil, "%.3s and %d bytes more", number, len(number)-3)
	}
}

// A body that encodes itself may return anything to encoding/json. The fast validator judges the
// output as the full one does.
func FuzzEncodedJSONIsValidatedAsAnyIs(f *testing.F) {
	for _, seed := range testkit.SeedJSONTexts() {
		f.Add([]byte(seed))
	}
	f.Add([]byte("{\"a\":\"<>&\\u2028\xe2\x80\xa9\"}"))  // escapes
	f.Add([]byte(`{"\ud800":"\u0000"}`))                 // half a pair
	f.Add([]byte(`{"n":-1E+131072,"n":[1e400,0.1e-3]}`)) // numbers
	f.Fuzz(func(t *testing.T, raw []byte) {
		encoded, err := exactjson.Marshal(json.RawMessage(raw))
		if err != nil {
			require.False(t, json.Valid(raw))
			return
		}
		require.True(t, json.Valid(encoded), "%q", encoded)
		require.Equal(t, validateJSON("data", encoded), validateEncoded("data", encoded))
		again := testkit.Do(json.Marshal(Metadata{Extra: map[string]json.RawMessage{"x": raw}}))(t)
		require.True(t, json.Valid(again), "%q", again)
	})
}

// Metadata of any client can be read, and is written back as it was read.
func FuzzMetadata(f *testing.F) {
	for _, seed := range append(testkit.SeedJSONTexts(),
		`{"causationMessageStreamName":"a-1","causationMessagePosition":0,"causationMessageGlobalPosition":7,"correlationStreamName":"b-1","replyStreamName":"c","properties":{"a":1.10},"localProperties":{"b":null},"schemaVersion":"1","x":{}}`,
		`{"causationMessageStreamName":"a-1","causationMessagePosition":"0"}`, `{"causationMessagePosition":1e30,"properties":[],"localProperties":null,"schemaVersion":1}`,
		`{"causationMessageStreamName":"","causationMessagePosition":1,"causationMessageGlobalPosition":-1}`, `{"schemaVersion":"","properties":{}}`, `{"SCHEMAVERSION":"1"}`,
	) {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m Metadata
		err := json.Unmarshal(raw, &m)
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			require.Error(t, err)
			require.True(t, ParseMetadata(raw).IsZero())
			return
		}
		require.NoError(t, err, "every object is metadata")

		encoded := testkit.Do(json.Marshal(m))(t)
		read := ParseMetadata(encoded)
		require.Equal(t, string(encoded), string(testkit.Do(json.Marshal(read))(t)))

		// No member is invented, and none is lost but empty ones.
		var kept map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(encoded, &kept))
		for name, value := range object {
			if utf8.ValidString(name) && string(value) != `""` && string(value) != `{}` && string(value) != "null" {
				if _, err := exactjson.Canonical(value); err == nil && utf8.Valid(raw) {
					require.True(t, exactjson.Equal(value, kept[name]), "%q: %s became %s", name, value, kept[name])
				}
			}
			delete(kept, name)
		}
		require.Empty(t, kept)
	})
}

// The short way of reading metadata ends where the long one does, or does not go there.
func FuzzMetadataIsScannedAsEncodingJSONReadsIt(f *testing.F) {
	for _, seed := range append(testkit.SeedJSONTexts(), scannedMetadata...) {
		f.Add([]byte(seed))
	}
	for _, seed := range append(testkit.SeedJSONTexts(), unscannedMetadata...) {
		f.Add([]byte(seed))
	}
	for _, data := range testkit.SeedJSON("a") {
		f.Add([]byte(`{"properties":` + data + `}`))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		scanned, ok := scanMetadata(string(raw))
		if !ok {
			require.Equal(t, Metadata{}, scanned)
			return
		}
		var m Metadata
		require.NoError(t, json.Unmarshal(raw, &m))
		require.Equal(t, m, scanned)
	})
}

// Metadata that the scanner reads.
var scannedMetadata = []string{
	`{}`, ` { } `, `{"causationMessageStreamName":"a-1","causationMessagePosition":0,"causationMessageGlobalPosition":999999999999999999}`,
	`{"causationMessageStreamName": "a-1", "causationMessagePosition": 3, "causationMessageGlobalPosition": 7, "correlationStreamName": "b-1", "replyStreamName": "c", "schemaVersion": "1"}`,
	`{"properties":{"traceparent":"00-1-2-01","":""},"localProperties":{}}`, "{  \"schemaVersion\" : \"caf\u00e9 \u2028\x7f\" }", `{"correlationStreamName":"","replyStreamName":"x"}`,
	`{"replyStreamName":"x","replyStreamName":"y","properties":{"a":"1"},"properties":{"b":"2","b":"3"}}`,
	`{"causationMessagePosition":1,"causationMessageGlobalPosition":2,"causationMessageStreamName":"a-1","causationMessagePosition":3}`,
}

// Metadata that the scanner leaves to encoding/json.
var unscannedMetadata = []string{
	"{\n}", "{}\t", ``, ` `, `null`, `[]`, `"x"`, `1`, `{`, `{}{}`, `{} x`, `{,}`, `{"schemaVersion"}`, `{"schemaVersion":"1",}`, `{"schemaVersion":"1"`, `{"schemaVersion":"1`, `{"schemaVersion":`, `{"schemaVersion":"1":}`,
	`{"schemaVersion":"\n"}`, "{\"schemaVersion\":\"\n\"}", "{\"schemaVersion\":\"\xff\"}", `{"schemaVersion":1}`, `{"schemaVersion":null}`, `{"x":1}`, `{"x":"1"}`, `{"SchemaVersion":"1"}`, `{"schemaVersio\u006e":"1"}`,
	`{"causationMessageStreamName":"a-1","causationMessagePosition":0}`, `{"causationMessagePosition":0,"causationMessageGlobalPosition":0}`, `{"causationMessageStreamName":"a-1"}`,
	`{"causationMessageStreamName":"","causationMessagePosition":1,"causationMessageGlobalPosition":1}`,
	`{"causationMessageStreamName":"a-1","causationMessagePosition":-0,"causationMessageGlobalPosition":1}`, `{"causationMessageStreamName":"a-1","causationMessagePosition":01,"causationMessageGlobalPosition":1}`,
	`{"causationMessageStreamName":"a-1","causationMessagePosition":1.0,"causationMessageGlobalPosition":1}`, `{"causationMessageStreamName":"a-1","causationMessagePosition":1e1,"causationMessageGlobalPosition":1}`,
	`{"causationMessageStreamName":"a-1","causationMessagePosition":9223372036854775808,"causationMessageGlobalPosition":1}`, `{"causationMessageStreamName":"a-1","causationMessagePosition":,"causationMessageGlobalPosition":1}`,
	`{"causationMessageStreamName":"a-1","causationMessageStreamName":"b-1","causationMessagePosition":1}`,
	`{"properties":{"a":1}}`, `{"properties":{"a":null}}`, `{"properties":{"a":{}}}`, `{"properties":[]}`, `{"properties":null}`, `{"localProperties":"x"}`, `{"localProperties":{"a":"b"`,
}

func TestMetadataAsItMostlyIsIsScanned(t *testing.T) {
	for _, raw := range scannedMetadata {
		_, ok := scanMetadata(raw)
		require.True(t, ok, "%s", raw)
	}
	for _, raw := range unscannedMetadata {
		_, ok := scanMetadata(raw)
		require.False(t, ok, "%s", raw)
	}
	full := Metadata{
		CausationStream: "a-1", CausationPosition: 1, CausationGlobalPosition: 2, CorrelationStream: "b", ReplyStream: "c", SchemaVersion: "1",
		Properties: Properties{"a": "b"}, Local: Properties{"c": "d"},
	}
	encoded := testkit.Do(json.Marshal(full))(t)
	scanned, ok := scanMetadata(string(encoded))
	require.True(t, ok, "what the library writes, %s", encoded)
	require.Equal(t, full, scanned)
}

func TestPlainTextIsToldWhereverTheOtherByteIs(t *testing.T) {
	for length := range 20 {
		require.True(t, isPlain(strings.Repeat("x", length)))
		for at := range length {
			for b := range 256 {
				text := []byte(strings.Repeat("x", length))
				text[at] = byte(b)
				require.Equal(t, b >= ' ' && b != '\\' && b < utf8.RuneSelf, isPlain(string(text)), "%q", text)
			}
			text := strings.Repeat("x", at) + "\u00e9" + strings.Repeat("x", length-at)
			require.True(t, isPlain(text), "%q", text)
			require.False(t, isPlain(text+"\\"), "%q", text)
		}
	}
}

func unmarshalExact(raw []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	return d.Decode(into)
}

// foreign reports whether a part of an identifier is no id's, as other clients may write.
func foreign(part string) bool {
	_, ok := text.UnescapeID(part)
	return !ok
}

// An identifier from outside is one part of the name, and comes back as it was.
func FuzzAnIdentifierIsOnePart(f *testing.F) {
	for _, id := range append(testkit.SeedNames(), "1+AAA", "ann+x@y.cz", "100%", "%2B", "%2b", "12D+seats+k99", " a ", "a b", "\u00e9", "\u202e", "", "+", "\u3000") {
		f.Add(id, "123")
	}
	f.Fuzz(func(t *testing.T, id, other string) {
		name := Category("seat:command").Stream(id)
		if err := name.Validate(); err != nil {
			require.True(t, id == "" || !utf8.ValidString(id) || len(name) > text.MaxNameBytes, "%q: %v", id, err)
			return
		}
		require.Equal(t, Category("seat:command"), name.Category())
		require.Equal(t, []string{id}, name.IDs())
		require.Equal(t, id, name.CardinalID())
		require.Equal(t, id != other, name != Category("seat:command").Stream(other), "two ids have two names")
		part, ok := text.UnescapeID(name.ID())
		require.True(t, ok)
		require.Equal(t, id, part)
		if compound := Category("seat").Stream("1").With(id, "x"); compound.Validate() == nil {
			require.Equal(t, []string{"1", id, "x"}, compound.IDs())
		}
	})
}

// A part is some id's, in one way, or no id's.
func FuzzAPartIsOfOneIdentifier(f *testing.F) {
	for _, part := range []string{"a", "%41", "%2B", "%2b", "%", "%4", "+", "%sha256:00", "a%20", "%20a", "a%20b", "%C3%A9", "%FF", "%E2%80%AE", ""} {
		f.Add(part)
	}
	f.Fuzz(func(t *testing.T, part string) {
		if id, ok := text.UnescapeID(part); ok {
			require.Equal(t, part, text.EscapeID(id))
		}
	})
}
