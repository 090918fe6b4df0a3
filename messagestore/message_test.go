package messagestore_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

func cause() *messagestore.Message {
	return &messagestore.Message{
		ID: uuid.New(), Stream: "account:command-123", Position: 0, GlobalPosition: 111, Type: "Deposit", Data: json.RawMessage(`{}`),
		Metadata: messagestore.Metadata{
			CausationStream: "other-1", CausationPosition: 1, CausationGlobalPosition: 1,
			CorrelationStream: "transfer-1", ReplyStream: "account:reply",
			Properties: messagestore.Properties{"tenant": "a", "deep": map[string]any{"list": []any{"x", map[string]any{"y": "z"}}}},
			Local:      messagestore.Properties{"attempt": json.Number("3")}, SchemaVersion: "2",
			Extra: map[string]json.RawMessage{"userId": json.RawMessage(`7`)},
		},
	}
}

func TestFollowCarriesWhatFollowsAndNothingElse(t *testing.T) {
	prev := cause()

	m := messagestore.Follow(prev, opened{"x"})

	require.Equal(t, messagestore.Envelope{Body: opened{"x"}, Metadata: messagestore.Metadata{
		CausationStream: "account:command-123", CausationPosition: 0, CausationGlobalPosition: 111,
		CorrelationStream: "transfer-1", ReplyStream: "account:reply", Properties: prev.Metadata.Properties,
	}}, m)
	require.True(t, m.Metadata.Follows(prev))
}

func TestFollowKeepsTheEnvelopeOfItsBody(t *testing.T) {
	prev := cause()
	own := messagestore.Envelope{ID: uuid.New(), Body: opened{"x"}, Metadata: messagestore.Metadata{
		CorrelationStream: "mine-1", ReplyStream: "mine", CausationStream: "mine-2",
		Properties: messagestore.Properties{"tenant": "b", "more": true}, Local: messagestore.Properties{"l": "l"}, SchemaVersion: "9",
		Extra: map[string]json.RawMessage{"e": json.RawMessage(`1`)},
	}}
	for _, body := range []messagestore.Body{own, &own} {
		m := messagestore.Follow(prev, body)

		require.Equal(t, own.ID, m.ID)
		require.Equal(t, own.Body, m.Body)
		require.Equal(t, prev.Stream, m.Metadata.CausationStream)
		require.Equal(t, messagestore.StreamName("transfer-1"), m.Metadata.CorrelationStream, "the process is the one that goes on")
		require.Equal(t, messagestore.StreamName("account:reply"), m.Metadata.ReplyStream)
		require.Equal(t, messagestore.Properties{"tenant": "b", "more": true, "deep": prev.Metadata.Properties["deep"]}, m.Metadata.Properties)
		require.Equal(t, own.Metadata.Local, m.Metadata.Local)
		require.Equal(t, "9", m.Metadata.SchemaVersion)
		require.Equal(t, own.Metadata.Extra, m.Metadata.Extra)
	}
	require.Equal(t, messagestore.Properties{"tenant": "b", "more": true}, own.Metadata.Properties, "the envelope given is not changed")
}

func TestFollowLetsAnEnvelopeBeginAProcess(t *testing.T) {
	prev := &messagestore.Message{Stream: "account:command-1", GlobalPosition: 1}
	own := messagestore.Envelope{Body: opened{}, Metadata: messagestore.Metadata{CorrelationStream: "saga-7", ReplyStream: "saga:reply"}}

	m := messagestore.Follow(prev, own)

	require.Equal(t, messagestore.StreamName("saga-7"), m.Metadata.CorrelationStream)
	require.Equal(t, messagestore.StreamName("saga:reply"), m.Metadata.ReplyStream)
	require.True(t, m.Metadata.Follows(prev))
}

func TestFollowCopiesPropertiesDeeply(t *testing.T) {
	prev := cause()
	m := messagestore.Follow(prev, opened{})

	m.Metadata.Properties["tenant"] = "changed"
	m.Metadata.Properties["deep"].(map[string]any)["list"].([]any)[1].(map[string]any)["y"] = "changed" //nolint:errcheck // as made

	require.Equal(t, cause().Metadata.Properties, prev.Metadata.Properties)
}

func TestFollowOfAMessageWithoutMetadata(t *testing.T) {
	prev := &messagestore.Message{Stream: "account-1", Position: 3, GlobalPosition: 9}
	m := messagestore.Follow(prev, opened{})
	require.Equal(t, messagestore.Metadata{CausationStream: "account-1", CausationPosition: 3, CausationGlobalPosition: 9}, m.Metadata)
	require.True(t, m.Metadata.Follows(prev))
}

func TestFollowsNeedsTheCauseAndItsWorkflow(t *testing.T) {
	follows := func(change func(prev *messagestore.Message, m *messagestore.Metadata)) bool {
		prev := cause()
		m := messagestore.Follow(prev, opened{}).Metadata
		change(prev, &m)
		return m.Follows(prev)
	}
	type M = messagestore.Metadata
	for name, test := range map[string]struct {
		change func(*messagestore.Message, *M)
		want   bool
	}{
		"as it is":                     {func(*messagestore.Message, *M) {}, true},
		"other properties":             {func(_ *messagestore.Message, m *M) { m.Properties = nil }, true},
		"other local properties":       {func(_ *messagestore.Message, m *M) { m.Local = messagestore.Properties{"a": 1} }, true},
		"another stream":               {func(_ *messagestore.Message, m *M) { m.CausationStream = "x-1" }, false},
		"another position":             {func(_ *messagestore.Message, m *M) { m.CausationPosition = 1 }, false},
		"another global position":      {func(_ *messagestore.Message, m *M) { m.CausationGlobalPosition = 1 }, false},
		"another correlation":          {func(_ *messagestore.Message, m *M) { m.CorrelationStream = "x-1" }, false},
		"no correlation":               {func(_ *messagestore.Message, m *M) { m.CorrelationStream = "" }, false},
		"another reply":                {func(_ *messagestore.Message, m *M) { m.ReplyStream = "x-1" }, false},
		"no reply":                     {func(_ *messagestore.Message, m *M) { m.ReplyStream = "" }, false},
		"a correlation of its own":     {func(prev *messagestore.Message, _ *M) { prev.Metadata.CorrelationStream = "" }, true},
		"a reply of its own":           {func(prev *messagestore.Message, _ *M) { prev.Metadata.ReplyStream = "" }, true},
		"neither knows where it comes": {func(prev *messagestore.Message, m *M) { *prev, *m = messagestore.Message{}, M{} }, false},
	} {
		require.Equal(t, test.want, follows(test.change), name)
	}
}

func TestCorrelatedComparesTheCategoryOrTheStream(t *testing.T) {
	for _, test := range []struct {
		correlation messagestore.StreamName
		name        string
		want        bool
	}{
		{"transfer-1", "transfer", true},
		{"transfer-1", "transfer-1", true},
		{"transfer-1", "transfer-2", false},
		{"transfer-1", "trans", false},
		{"transfer:x-1", "transfer", false},
		{"transfer:x-1", "transfer:x", true},
		{"transfer", "transfer", true},
		{"transfer", "transfer-1", false},
		{"", "transfer", false},
		{"", "", false},
		{"transfer-1", "", false},
		{"transfer-1", "Transfer", false},
	} {
		require.Equal(t, test.want, messagestore.Metadata{CorrelationStream: test.correlation}.Correlated(test.name), "%v", test)
	}
}

func TestDecodeGivesTheBodyOfItsType(t *testing.T) {
	m := &messagestore.Message{Stream: "account-1", Position: 2, Type: "Opened", Data: json.RawMessage(`{"name":"Ann","unknown":1}`)}
	body := testkit.Do(messagestore.Decode[opened](m))(t)
	require.Equal(t, opened{"Ann"}, body)

	m.Data = nil
	body = testkit.Do(messagestore.Decode[opened](m))(t)
	require.Equal(t, opened{}, body)
}

// closed, tags and total are bodies of several kinds.
type closed struct {
	Reason string `json:"reason"`
}

func (*closed) MessageType() string { return "Closed" }

type tags []string

func (tags) MessageType() string { return "Tags" }

type total int

func (*total) MessageType() string { return "Total" }

func TestDecodeOfNothingIsAnEmptyBodyAndNeverNil(t *testing.T) {
	for _, data := range []json.RawMessage{nil, {}, json.RawMessage(`null`)} {
		require.Equal(t, &closed{}, testkit.Do(messagestore.Decode[*closed](&messagestore.Message{Stream: "account-1", Type: "Closed", Data: data}))(t), "%s", data)

		require.Equal(t, opened{}, testkit.Do(messagestore.Decode[opened](&messagestore.Message{Stream: "account-1", Type: "Opened", Data: data}))(t))

		// Those that no object fits are their zero values.
		require.Empty(t, testkit.Do(messagestore.Decode[tags](&messagestore.Message{Stream: "account-1", Type: "Tags", Data: data}))(t))
		sum := testkit.Do(messagestore.Decode[*total](&messagestore.Message{Stream: "account-1", Type: "Total", Data: data}))(t)
		require.Equal(t, new(total), sum)
	}
	body := testkit.Do(messagestore.Decode[*closed](&messagestore.Message{Stream: "account-1", Type: "Closed", Data: json.RawMessage(`{"reason":"moved"}`)}))(t)
	require.Equal(t, &closed{"moved"}, body)
}

func TestDecodeRefusesWhatDoesNotFit(t *testing.T) {
	m := &messagestore.Message{Stream: "account-1", Position: 2, Type: "opened", Data: json.RawMessage(`{}`)}
	_, err := messagestore.Decode[opened](m)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.EqualError(t, err, "decode opened account-1@2: invalid message type \"opened\": must be Opened")

	for _, data := range []string{`{"n":1e400}`, `{"n":"1"}`, `[]`, `{`} {
		_, err := messagestore.Decode[number](&messagestore.Message{Stream: "account-1", Type: "Number", Data: json.RawMessage(data)})
		require.ErrorContains(t, err, "decode Number account-1@0: ", data)
	}
}

func TestRecordedBodyIsWhatWasRecorded(t *testing.T) {
	m := &messagestore.Message{Type: "Opened", Data: json.RawMessage(` {"b":1.0}`)}
	require.Equal(t, messagestore.Raw{Type: "Opened", Data: json.RawMessage(` {"b":1.0}`)}, m.Body())
	m.Data = nil
	require.Equal(t, messagestore.Raw{Type: "Opened", Data: json.RawMessage(`{}`)}, m.Body())
	require.Equal(t, "Deposit account:command-123@0", cause().String())
	require.Empty(t, messagestore.Envelope{}.MessageType())
	require.Equal(t, "Opened", messagestore.Envelope{Body: opened{}}.MessageType())
}

func TestMetadataHasMessageDBsNames(t *testing.T) {
	full := messagestore.Metadata{
		CausationStream: "account-1", CausationPosition: 0, CausationGlobalPosition: 0, CorrelationStream: "transfer-1", ReplyStream: "account:reply",
		Properties: messagestore.Properties{"html": "<&>", "n": json.Number("12345678901234567890.10")}, Local: messagestore.Properties{"a": nil}, SchemaVersion: "2",
		Extra: map[string]json.RawMessage{"z": json.RawMessage(`1.0`), "user \"id\"": json.RawMessage(`{"a":[]}`)},
	}
	encoded := testkit.Do(json.Marshal(full))(t)
	require.JSONEq(t, `{"causationMessageStreamName":"account-1","causationMessagePosition":0,"causationMessageGlobalPosition":0,`+
		`"correlationStreamName":"transfer-1","replyStreamName":"account:reply","properties":{"html":"<&>","n":12345678901234567890.10},`+
		`"localProperties":{"a":null},"schemaVersion":"2","user \"id\"":{"a":[]},"z":1.0}`, string(encoded))
	require.Contains(t, string(encoded), "12345678901234567890.10")

	require.Equal(t, full, messagestore.ParseMetadata(encoded))

	encoded = testkit.Do(json.Marshal(messagestore.Metadata{}))(t)
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
		raw := testkit.Do(messagestore.Metadata{CorrelationStream: name, CausationStream: name, CausationGlobalPosition: 1 << 60}.MarshalJSON())(t)

		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(raw, &fields), "%s", raw)
		var decoded messagestore.StreamName
		require.NoError(t, json.Unmarshal(fields["correlationStreamName"], &decoded))
		require.Equal(t, name, decoded)
		require.Equal(t, "1152921504606846976", string(fields["causationMessageGlobalPosition"]))
	}
}
