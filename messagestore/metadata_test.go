package messagestore_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

func TestMetadataHasMessageDBsNames(t *testing.T) {
	full := messagestore.Metadata{
		CausationStream: "account-1", CausationPosition: 0, CausationGlobalPosition: 0, CorrelationStream: "transfer-1", ReplyStream: "account:reply",
		Properties: messagestore.Properties{"html": "<&>", "n": json.Number("12345678901234567890.10")}, Local: messagestore.Properties{"a": nil}, SchemaVersion: "2",
		Extra: map[string]json.RawMessage{"z": json.RawMessage(`1.0`), "user \"id\"": json.RawMessage(`{"a":[]}`)},
	}
	encoded := must.Do(json.Marshal(full))(t)
	require.JSONEq(t, `{"causationMessageStreamName":"account-1","causationMessagePosition":0,"causationMessageGlobalPosition":0,`+
		`"correlationStreamName":"transfer-1","replyStreamName":"account:reply","properties":{"html":"<&>","n":12345678901234567890.10},`+
		`"localProperties":{"a":null},"schemaVersion":"2","user \"id\"":{"a":[]},"z":1.0}`, string(encoded))
	require.Contains(t, string(encoded), "12345678901234567890.10")

	require.Equal(t, full, messagestore.ParseMetadata(encoded))

	encoded = must.Do(json.Marshal(messagestore.Metadata{}))(t)
	require.Equal(t, `{}`, string(encoded))
	require.True(t, messagestore.Metadata{}.IsZero())
	require.False(t, full.IsZero())
}

func TestMetadataOfOtherClientsAreKept(t *testing.T) {
	for name, test := range map[string]struct {
		raw  string
		want messagestore.Metadata
	}{
		"nothing":        {``, messagestore.Metadata{}},
		"null":           {`null`, messagestore.Metadata{}},
		"a list":         {`[1]`, messagestore.Metadata{}},
		"text":           {`"x"`, messagestore.Metadata{}},
		"not JSON":       {`{`, messagestore.Metadata{}},
		"unknown fields": {`{"a":1,"b":null}`, messagestore.Metadata{Extra: map[string]json.RawMessage{"a": json.RawMessage(`1`), "b": json.RawMessage(`null`)}}},
		"a position's text": {`{"causationMessageStreamName":"a-1","causationMessagePosition":"x","causationMessageGlobalPosition":1}`, messagestore.Metadata{Extra: map[string]json.RawMessage{
			"causationMessageStreamName": json.RawMessage(`"a-1"`), "causationMessagePosition": json.RawMessage(`"x"`), "causationMessageGlobalPosition": json.RawMessage(`1`),
		}}},
		"a cause in part":      {`{"causationMessageStreamName":"a-1"}`, messagestore.Metadata{Extra: map[string]json.RawMessage{"causationMessageStreamName": json.RawMessage(`"a-1"`)}}},
		"a position too large": {`{"causationMessagePosition":1e30}`, messagestore.Metadata{Extra: map[string]json.RawMessage{"causationMessagePosition": json.RawMessage(`1e30`)}}},
		"a reply's number":     {`{"replyStreamName":7,"correlationStreamName":"a-1"}`, messagestore.Metadata{CorrelationStream: "a-1", Extra: map[string]json.RawMessage{"replyStreamName": json.RawMessage(`7`)}}},
		"null fields":          {`{"properties":null,"schemaVersion":null,"causationMessageStreamName":null}`, messagestore.Metadata{}},
		"properties' list":     {`{"properties":[1]}`, messagestore.Metadata{Extra: map[string]json.RawMessage{"properties": json.RawMessage(`[1]`)}}},
		"a name's case":        {`{"SchemaVersion":"1"}`, messagestore.Metadata{Extra: map[string]json.RawMessage{"SchemaVersion": json.RawMessage(`"1"`)}}},
	} {
		require.Equal(t, test.want, messagestore.ParseMetadata([]byte(test.raw)), name)
	}
}

func TestPropertiesKeepTheirNumbers(t *testing.T) {
	var p messagestore.Properties
	require.NoError(t, json.Unmarshal([]byte(`{"n":9007199254740993,"s":"x","o":{"n":1.10}}`), &p))
	require.Equal(t, messagestore.Properties{"n": json.Number("9007199254740993"), "s": "x", "o": map[string]any{"n": json.Number("1.10")}}, p)
	require.Equal(t, "x", p.Get("s"))
	require.Empty(t, p.Get("n"))
	require.Empty(t, p.Get("none"))
	require.Error(t, json.Unmarshal([]byte(`[]`), &p))
}

func TestTraceTravelsAmongTheProperties(t *testing.T) {
	const parent, state = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=value"
	shared := messagestore.Properties{"tenant": "a"}
	m := messagestore.Metadata{Properties: shared}
	require.NoError(t, m.SetTrace(parent, state))
	require.Equal(t, messagestore.Properties{"tenant": "a"}, shared, "properties that others may hold are not changed")

	followed := messagestore.Follow(&messagestore.Message{Stream: "a-1", Metadata: m}, opened{}).Metadata
	gotParent, gotState := followed.Trace()
	require.Equal(t, parent, gotParent)
	require.Equal(t, state, gotState)

	require.NoError(t, m.SetTrace(parent, ""))
	require.Equal(t, messagestore.Properties{"tenant": "a", "traceparent": parent}, m.Properties)
	require.NoError(t, m.SetTrace("", ""))
	require.Equal(t, messagestore.Properties{"tenant": "a"}, m.Properties)
	gotParent, gotState = m.Trace()
	require.Empty(t, gotParent)
	require.Empty(t, gotState)
}

func TestRemovingATraceLeavesOthersTheirs(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	shared := messagestore.Properties{"traceparent": parent}
	m := messagestore.Metadata{Properties: shared}
	require.NoError(t, m.SetTrace("", ""))
	require.Equal(t, parent, shared.Get("traceparent"))
	require.Empty(t, m.Properties.Get("traceparent"))
}

func TestHostileTracesAreRefused(t *testing.T) {
	for _, parent := range []string{
		"x", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
	} {
		var m messagestore.Metadata
		require.ErrorIs(t, m.SetTrace(parent, ""), messagestore.ErrInvalid, "%q", parent)
		require.True(t, m.IsZero())
	}
	var m messagestore.Metadata
	require.ErrorIs(t, m.SetTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", strings.Repeat("x", 513)), messagestore.ErrInvalid)
}

func TestNamesInMetadataAreEncodedWhateverIsInThem(t *testing.T) {
	names := []messagestore.StreamName{"account-é", "account-\u2603", "account-\U0001F600", "account-\u00a0x"}
	for c := byte(' ') + 1; c <= '~'; c++ {
		names = append(names, messagestore.StreamName("account-"+string(c)+"x"))
	}
	for _, name := range names {
		raw := must.Do(messagestore.Metadata{CorrelationStream: name, CausationStream: name, CausationGlobalPosition: 1 << 60}.MarshalJSON())(t)

		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(raw, &fields), "%s", raw)
		var decoded messagestore.StreamName
		require.NoError(t, json.Unmarshal(fields["correlationStreamName"], &decoded))
		require.Equal(t, name, decoded)
		require.Equal(t, "1152921504606846976", string(fields["causationMessageGlobalPosition"]))
	}
}
