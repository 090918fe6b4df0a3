package messagestore_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
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
	body := must.Do(messagestore.Decode[opened](m))(t)
	require.Equal(t, opened{"Ann"}, body)

	m.Data = nil
	body = must.Do(messagestore.Decode[opened](m))(t)
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
		require.Equal(t, &closed{}, must.Do(messagestore.Decode[*closed](&messagestore.Message{Stream: "account-1", Type: "Closed", Data: data}))(t), "%s", data)

		require.Equal(t, opened{}, must.Do(messagestore.Decode[opened](&messagestore.Message{Stream: "account-1", Type: "Opened", Data: data}))(t))

		// Those that no object fits are their zero values.
		require.Empty(t, must.Do(messagestore.Decode[tags](&messagestore.Message{Stream: "account-1", Type: "Tags", Data: data}))(t))
		sum := must.Do(messagestore.Decode[*total](&messagestore.Message{Stream: "account-1", Type: "Total", Data: data}))(t)
		require.Equal(t, new(total), sum)
	}
	body := must.Do(messagestore.Decode[*closed](&messagestore.Message{Stream: "account-1", Type: "Closed", Data: json.RawMessage(`{"reason":"moved"}`)}))(t)
	require.Equal(t, &closed{"moved"}, body)
}

func TestDecodeRefusesWhatDoesNotFit(t *testing.T) {
	m := &messagestore.Message{Stream: "account-1", Position: 2, Type: "opened", Data: json.RawMessage(`{}`)}
	_, err := messagestore.Decode[opened](m)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.EqualError(t, err, "decode opened account-1@2: invalid message type \"opened\": want Opened")

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
