package outbox_test

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/outbox"
)

func openFile(t *testing.T, file string) *messagestore.Store {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), file, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return messagestore.New(driver, nil)
}

func newFile(t *testing.T) *messagestore.Store {
	t.Helper()
	return openFile(t, filepath.Join(t.TempDir(), "store.db"))
}

func TestAMessageIsWrittenToAnotherStoreAsItIs(t *testing.T) {
	t.Parallel()
	store, other := newStore(), newStore()
	_, err := store.Write(t.Context(), "payments:outgoing-42", messagestore.NoStream, messagestore.Envelope{
		Body:     messagestore.Raw{Type: "Paid", Data: []byte(`{"amount":  1.50}`)},
		Metadata: messagestore.Metadata{CorrelationStream: "transfer-5", Properties: messagestore.Properties{"tenant": "a"}},
	})
	require.NoError(t, err)
	sink := outbox.Into(other, func(m *outbox.Message) messagestore.StreamName { return messagestore.Category("copy").Stream(m.Key()) })

	require.NoError(t, relayOf(store, sink, nil).CatchUp(t.Context()))

	sent, err := store.Last(t.Context(), "payments:outgoing-42")
	require.NoError(t, err)
	got, err := other.Last(t.Context(), "copy-42")
	require.NoError(t, err)
	require.Equal(t, sent.ID, got.ID)
	require.Equal(t, string(sent.Data), string(got.Data))
	require.Equal(t, sent.Metadata, got.Metadata)
}

func TestAMessageThatAnotherStoreRefusesIsParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, other := newStore(), newStore()
		for _, key := range []string{"long", "taken", "fine"} {
			write(t, store, key, 0, 1)
		}
		taken, err := store.Last(t.Context(), outgoing.Stream("taken"))
		require.NoError(t, err)
		_, err = other.Write(t.Context(), "elsewhere-1", messagestore.NoStream, messagestore.Envelope{ID: taken.ID, Body: Paid{99}})
		require.NoError(t, err)
		sink := outbox.Into(other, func(m *outbox.Message) messagestore.StreamName {
			if m.Key() == "long" {
				return "a-\n"
			}
			return m.Stream
		})
		relay := relayOf(store, sink, nil)

		require.NoError(t, relay.CatchUp(t.Context()))

		require.EqualValues(t, 2, relay.Stats().Parked)
		require.EqualValues(t, 1, relay.Stats().Handled)
	})
}

func TestTheZeroStoreParksNothing(t *testing.T) {
	t.Parallel()
	err := outbox.Into(&messagestore.Store{}, nil).Send(t.Context(), message())

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	park, _ := asks(err)
	require.False(t, park)
}

// Each third answer of the other store is lost.
func TestOneMessageIsOneRowHoweverOftenItIsSent(t *testing.T) {
	t.Parallel()
	store, other := newFile(t), newFile(t)
	for i := range 20 {
		for _, key := range keys(5) {
			write(t, store, key, i, i+1)
		}
	}
	into := outbox.Into(other, nil)
	lossy := &receiver{}
	n := 0
	sink := sinkFunc(func(ctx context.Context, m *outbox.Message) error {
		err := into.Send(ctx, m)
		lossy.mu.Lock()
		defer lossy.mu.Unlock()
		if n++; err == nil && n%3 == 0 {
			return errAway
		}
		return err
	})
	relay := relayOf(store, sink, &outbox.Config{CheckpointMessages: 7})
	require.NoError(t, relay.CatchUp(t.Context()))
	again := outbox.New(store, outgoing, "again", into, nil) // as after a reset

	require.NoError(t, again.CatchUp(t.Context()))

	require.Equal(t, stored(t, store), stored(t, other))
	require.Positive(t, relay.Stats().Failed)
}

type sinkFunc func(ctx context.Context, m *outbox.Message) error

func (f sinkFunc) Send(ctx context.Context, m *outbox.Message) error { return f(ctx, m) }
