package storetest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of fidelity: that data, metadata, types and times are read as they were written.
var fidelityTests = []test{
	{"S7/Numbers", 0, func(t *testing.T, f *fixture) {
		for _, number := range []string{
			"12345678901234567890.123456789", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9007199254740993",
			"1e400", "-1e400", "1e-400", "123456789e300", "0", "-0", "0.0", "1.0", "1.10", "1e2", "1E+2", "0.1e-3", "0.1", "0.30000000000000004", "5e-324", "1.7976931348623157e308",
			strings.Repeat("9", 1000), "0." + strings.Repeat("0", 500) + "1",
		} {
			f.survive(t, `{"n":`+number+`}`, `{"n":[`+number+`,{"n":`+number+`}]}`)
		}
	}},
	{"S7/Text", 0, func(t *testing.T, f *fixture) {
		var planes strings.Builder
		for plane := rune(0); plane <= 16; plane++ {
			for _, r := range []rune{0x0041, 0x00E9, 0x2028, 0x4E2D, 0xD7FF, 0xE000, 0xF600, 0xFFFD} {
				planes.WriteRune(plane<<16 | r&0xFFFF)
			}
		}
		texts := []string{
			"", " ", "é", "e\u0301", "<a href='x'>&amp;</a>", "\\", `"`, "/", "\\u0000", "\t\n\r\b\f\x01\x1f\x7f", "\u2028\u2029\ufeff\u200d\u202e",
			"'; DROP TABLE messages;--", "%s $1 ? :x", "👩‍👩‍👧‍👦", "\U0010FFFF", planes.String(),
		}
		for _, text := range texts {
			encoded := testkit.Do(json.Marshal(map[string]string{text: text, "x" + text: text + "x"}))(t)
			f.survive(t, string(encoded))
		}
		f.survive(t, `{"escaped":"\ud83d\ude00 \u00e9 \/ \u2028"}`)
	}},
	{"S7/Shapes", 0, func(t *testing.T, f *fixture) {
		deep := strings.Repeat(`{"a":`, 511) + "{}" + strings.Repeat("}", 511)
		wide := strings.Builder{}
		for i := range 2000 {
			fmt.Fprintf(&wide, `,"key%d":%d`, i, i)
		}
		f.survive(t,
			`{}`, `{"a":{}}`, `{"a":[]}`, `{"a":null}`, `{"a":true,"b":false}`, `{"":""}`, `{"a":[null,[],{},[[1]],"",0]}`,
			deep, `{"a":`+strings.Repeat("[", 511)+strings.Repeat("]", 511)+`}`, "{"+wide.String()[1:]+"}",
			"\n{ \"b\" : 1 ,\t\"a\" : [ 1 , 2 ] }\r\n")
	}},
	{"S7/LargeMessage", 0, func(t *testing.T, f *fixture) {
		const size = 900 << 10
		pattern := strings.Repeat("0123456789abcdefé€", size/21)
		f.survive(t, `{"a":"`+pattern[:size/2]+`","b":{"c":"`+strings.Repeat("x", size/3)+`"}}`)

		most := `{"a":"` + strings.Repeat("m", messagestore.MaxMessageBytes-8) + `"}`
		require.Len(t, most, messagestore.MaxMessageBytes)
		f.survive(t, most)
	}},
	{"S7/Metadata", 0, func(t *testing.T, f *fixture) {
		full := fullMetadata()
		f.survivesAs(t, full, full)
		for _, one := range []messagestore.Metadata{
			{CausationStream: full.CausationStream, CausationPosition: 1, CausationGlobalPosition: 1 << 60},
			{CorrelationStream: full.CorrelationStream},
			{ReplyStream: full.ReplyStream},
			{Properties: full.Properties},
			{Local: full.Local},
			{SchemaVersion: full.SchemaVersion},
			{Extra: full.Extra},
		} {
			f.survivesAs(t, one, one)
		}
	}},
	// The first message of a stream is at position 0, and is a cause like any other.
	{"S7/MetadataOfPositionZero", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.fill(t, stream, 1)
		first := f.read(t, stream)[0]
		f.write(t, stream, 0, messagestore.Follow(first, Opened{}))

		second := f.read(t, stream)[1]
		require.Equal(t, messagestore.Metadata{CausationStream: stream, CausationPosition: 0, CausationGlobalPosition: first.GlobalPosition}, second.Metadata)
		require.True(t, second.Metadata.Follows(first))
		require.Empty(t, second.Metadata.Extra)
	}},
	{"S7/MetadataOfOtherClients", 0, func(t *testing.T, f *fixture) {
		r := record("Opened", `{"name":"x"}`)
		r.Metadata = json.RawMessage(`{"userId":7,"schemaVersion":3,"properties":null,"correlationStreamName":"process-1","nested":{"a":[1.50]}}`)
		testkit.Do(f.driver.Append(t.Context(), messagestore.Append{Stream: f.stream(), Expected: messagestore.NoStream, Records: []messagestore.Encoded{r}}))(t)

		m := f.read(t, f.stream())[0].Metadata
		require.Equal(t, messagestore.StreamName("process-1"), m.CorrelationStream)
		for name, want := range map[string]string{"userId": `7`, "schemaVersion": `3`, "nested": `{"a":[1.5]}`} {
			require.True(t, exactjson.Equal(json.RawMessage(want), m.Extra[name]), "%s came back as %s", name, m.Extra[name])
		}
		require.Len(t, f.readCategory(t, f.category, messagestore.Filter{Correlation: "process"}), 1)
	}},
	{"S7/NoMetadataIsNone", 0, func(t *testing.T, f *fixture) {
		f.survivesAs(t, messagestore.Metadata{}, messagestore.Metadata{})
	}},
	{"S7/Types", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		types := []string{
			"Opened", "opened", "OPENED", "a", "Opened Again", "é", "e\u0301", "O'pened", `O"pened`, "%", "_", "*", "a-b+c:d", "$1", "{a,b}", "NULL", "\U0001F600",
			strings.Repeat("t", text.MaxNameBytes),
		}
		for _, messageType := range types {
			f.write(t, stream, messagestore.AnyVersion, raw(messageType, `{}`))
		}
		for i, m := range f.read(t, stream) {
			require.Equal(t, types[i], m.Type)
			require.Equal(t, messagestore.Version(i), testkit.Do(f.driver.Last(t.Context(), stream, types[i]))(t).Position)
			require.Equal(t, []uuid.UUID{m.ID}, ids(f.readCategory(t, f.category, messagestore.Filter{Types: []string{types[i]}})))
		}
	}},
	{"S7/Times", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.fill(t, stream, 3)
		f.write(t, stream, 2, opened(3)...)

		var before time.Time
		for _, m := range f.read(t, stream) {
			require.Equal(t, time.UTC, m.Time.Location())
			require.Equal(t, m.Time.Truncate(time.Microsecond), m.Time, "times are in microseconds")
			require.False(t, m.Time.Before(before), "the times of a stream do not go backwards")
			require.WithinDuration(t, time.Now(), m.Time, time.Hour, "the store's clock is about ours")
			before = m.Time
		}
	}},
	{"S7/EveryReadSaysTheSame", 0, func(t *testing.T, f *fixture) {
		stream := f.stream("é", "1")
		f.write(t, stream, messagestore.NoStream, Opened{Name: "first"},
			messagestore.Envelope{Body: messagestore.Raw{Type: "Opened", Data: json.RawMessage(` {"b": 1.0, "a": "\u00e9"}`)}, Metadata: fullMetadata()})
		messages := f.read(t, stream)
		require.Len(t, messages, 2)
		for _, m := range messages {
			require.Equal(t, stream, m.Stream)
		}

		backwards := testkit.Do(f.driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, From: messagestore.EndOfStream, Backwards: true, Limit: 10}))(t)
		require.Equal(t, []*messagestore.Message{messages[1], messages[0]}, backwards)

		require.Equal(t, messages, f.readCategory(t, f.category, messagestore.Filter{}))

		require.Equal(t, messages, testkit.Do(f.driver.Find(t.Context(), stream, ids(messages)))(t))

		last := testkit.Do(f.driver.Last(t.Context(), stream, ""))(t)
		require.Equal(t, messages[1], last)
		last = testkit.Do(f.driver.Last(t.Context(), stream, "Opened"))(t)
		require.Equal(t, messages[1], last)
	}},
}

// survive writes data and demands it back from a stream, equal as JSON.
func (f *fixture) survive(t *testing.T, data ...string) {
	t.Helper()
	stream := f.stream(uuid.NewString())
	for _, d := range data {
		f.write(t, stream, messagestore.AnyVersion, raw("Opened", d))
	}
	messages := f.read(t, stream)
	require.Len(t, messages, len(data))
	for i, m := range messages {
		require.True(t, exactjson.Equal(json.RawMessage(data[i]), m.Data), "%.200s came back as %.200s", data[i], m.Data)
	}
}

func fullMetadata() messagestore.Metadata {
	return messagestore.Metadata{
		CausationStream: "account:command-123", CausationPosition: 11, CausationGlobalPosition: 111,
		CorrelationStream: "transfer-é-1", ReplyStream: "account:reply",
		Properties:    messagestore.Properties{"tenant": "a", "n": json.Number("12345678901234567890.5"), "deep": map[string]any{"list": []any{"x", nil, true, json.Number("1")}}},
		Local:         messagestore.Properties{"attempt": json.Number("3")},
		SchemaVersion: "2.1",
		Extra:         map[string]json.RawMessage{"userId": json.RawMessage(`"u-1"`), "ratio": json.RawMessage(`1e400`)},
	}
}

// survivesAs writes a message with metadata and demands it back from every read.
func (f *fixture) survivesAs(t *testing.T, metadata, want messagestore.Metadata) {
	t.Helper()
	stream := f.stream(uuid.NewString())
	f.write(t, stream, messagestore.NoStream, messagestore.Envelope{Body: Opened{}, Metadata: metadata})
	messages := f.read(t, stream)
	require.Len(t, messages, 1)
	require.Equal(t, want, messages[0].Metadata)
}
