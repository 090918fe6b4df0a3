package outbox_test

import (
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// as is a message of a type.
func as(messageType string) messagestore.Raw {
	return messagestore.Raw{Type: messageType, Data: json.RawMessage("{}")}
}

// typed is a sink that notes the types of its messages.
func typed(types *[]string) *receiver {
	var mu sync.Mutex
	return &receiver{answer: func(m *outbox.Message) error {
		mu.Lock()
		defer mu.Unlock()
		*types = append(*types, m.Type)
		return nil
	}}
}

// The older relay meets the type of a newer one, and the newer one that of an older one.
func TestARelayPassesOverNoTypeThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for _, stream := range []messagestore.StreamName{"payments:outgoing-1", "payments:outgoing-2"} {
			_, err := store.Write(t.Context(), stream, messagestore.NoStream, as("Paid"), as("Viewed"))
			require.NoError(t, err)
		}
		_, err := store.Write(t.Context(), "payments:outgoing-1", messagestore.AnyVersion, as("Settled"), as("Paid"))
		require.NoError(t, err)
		var older, newer []string
		relay := relayOf(store, typed(&older), &outbox.Config{Types: []string{"Paid"}, Ignore: []string{"Viewed"}})
		stop := running(t, relay)
		time.Sleep(time.Hour)

		require.ElementsMatch(t, []string{"Paid", "Paid"}, older) // the keys of others flow
		require.EqualValues(t, 2, relay.Stats().Ignored)
		require.Zero(t, relay.Stats().Dead)
		stop()

		err = relayOf(store, typed(&newer), &outbox.Config{Types: []string{"Paid", "Settled"}, Ignore: []string{"Viewed"}}).CatchUp(t.Context())

		require.NoError(t, err)
		require.Subset(t, newer, []string{"Settled", "Paid"})
	})
}

func TestARelayThatIgnoresUnknownTypesSendsTheOthersAlone(t *testing.T) {
	t.Parallel()
	store := newStore()
	_, err := store.Write(t.Context(), outgoing.Stream("1"), messagestore.NoStream, as("Paid"), as("Viewed"), as("Settled"), as("Paid"))
	require.NoError(t, err)
	var sent []string
	relay := relayOf(store, typed(&sent), &outbox.Config{Types: []string{"Paid", "Settled"}, IgnoreUnknown: true})

	require.NoError(t, relay.CatchUp(t.Context()))

	require.Equal(t, []string{"Paid", "Settled", "Paid"}, sent)
	require.EqualValues(t, 3, relay.Stats().Sent)
	require.EqualValues(t, 1, relay.Stats().Ignored)
}

func TestMistakesInTheTypesOfARelayAreRefused(t *testing.T) {
	t.Parallel()
	for text, config := range map[string]outbox.Config{
		`ignore "Paid": must not be in Types too`:            {Types: []string{"Paid"}, Ignore: []string{"Paid"}},
		"ignore unknown true: must not be set without Types": {IgnoreUnknown: true},
		"ignore 1: must be empty with IgnoreUnknown":         {Types: []string{"Paid"}, Ignore: []string{"Viewed"}, IgnoreUnknown: true},
		`types: invalid message type ""`:                     {Types: []string{""}},
		`ignore: invalid message type "dibs:Tombstone"`:      {Ignore: []string{"dibs:Tombstone"}},
	} {
		_, err := outbox.New(newStore(), outgoing, "tobank", &receiver{}, &config)

		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, text)
	}
}

func TestARelayPassesOverWhatIsBeforeItsTimeOrOfAnotherCorrelation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		about := func(messageType string, correlation messagestore.StreamName) {
			_, err := store.Write(t.Context(), outgoing.Stream("1"), messagestore.AnyVersion,
				messagestore.Envelope{Body: as(messageType), Metadata: messagestore.Metadata{CorrelationStream: correlation}})
			require.NoError(t, err)
		}
		about("Before", "transfer-1")
		time.Sleep(time.Minute)
		since := time.Now()
		about("First", "transfer-2")
		about("Other", "refund-1")
		about("None", "")
		about("Second", "transfer-3")
		var sent []string
		relay := relayOf(store, typed(&sent), &outbox.Config{Since: since, Correlation: "transfer"})

		require.NoError(t, relay.CatchUp(t.Context()))

		require.Equal(t, []string{"First", "Second"}, sent)
		require.EqualValues(t, 3, relay.Stats().Ignored)
	})
}
