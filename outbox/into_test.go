package outbox_test

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/outbox"
)

// eachDatabase runs a test on stores in databases of their own.
func eachDatabase(t *testing.T, test func(t *testing.T, open func(t *testing.T) *messagestore.Store)) {
	t.Helper()
	for _, kind := range []string{"SQLite", "PostgreSQL"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, func(t *testing.T) *messagestore.Store {
				t.Helper()
				store, end, err := openPlace(t.Context(), kind, newPlace(t, kind))
				require.NoError(t, err)
				t.Cleanup(end)
				return store
			})
		})
	}
}

// newPlace returns a file or the URL of a database that no other test uses.
func newPlace(t *testing.T, kind string) string {
	t.Helper()
	if kind == "PostgreSQL" {
		return pgtest.Migrated(t)
	}
	return filepath.Join(t.TempDir(), "store.db")
}

func openPlace(ctx context.Context, kind, place string) (_ *messagestore.Store, end func(), err error) {
	if kind == "PostgreSQL" {
		pool, err := pgxpool.New(ctx, place)
		if err != nil {
			return nil, nil, err
		}
		return testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), pool.Close, nil
	}
	driver, err := sqlite.Open(ctx, place, nil)
	if err != nil {
		return nil, nil, err
	}
	return testkit.Must(messagestore.New(driver, nil)), func() { _ = driver.Close() }, nil
}

// A relay needs the role of a worker, and no more.
func TestARelayNeedsTheRoleOfAWorker(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	relayAs := func(role string) error {
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.ConnectAs(t, url, role), nil)), nil))
		_, err := store.Write(t.Context(), "payments:outgoing-42", messagestore.AnyVersion, messagestore.Raw{Type: "Paid", Data: []byte(`{}`)})
		require.NoError(t, err)
		sink := testkit.Must(outbox.Into(testkit.Must(messagestore.New(memory.New(), nil)), func(m *outbox.Message) messagestore.StreamName { return messagestore.Category("copy").Stream(m.Key()) }))
		return relayOf(store, sink, nil).CatchUp(t.Context())
	}

	err := relayAs("dibs_writer")
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "grant dibs_worker to the user of this connection")
	require.NoError(t, relayAs("dibs_worker"))
}

func TestAMessageIsWrittenToAnotherStoreAsItIs(t *testing.T) {
	t.Parallel()
	eachDatabase(t, writtenAsItIs)
}

func writtenAsItIs(t *testing.T, open func(t *testing.T) *messagestore.Store) {
	t.Helper()
	store, other := open(t), open(t)
	_, err := store.Write(t.Context(), "payments:outgoing-42", messagestore.NoStream, messagestore.Envelope{
		Body:     messagestore.Raw{Type: "Paid", Data: []byte(`{"amount":  1.50}`)},
		Metadata: messagestore.Metadata{CorrelationStream: "transfer-5", Properties: messagestore.Properties{"tenant": "a"}},
	})
	require.NoError(t, err)
	sink, err := outbox.Into(other, func(m *outbox.Message) messagestore.StreamName { return messagestore.Category("copy").Stream(m.Key()) })
	require.NoError(t, err)

	require.NoError(t, relayOf(store, sink, nil).CatchUp(t.Context()))

	sent, err := store.Last(t.Context(), "payments:outgoing-42")
	require.NoError(t, err)
	got, err := other.Last(t.Context(), "copy-42")
	require.NoError(t, err)
	require.Equal(t, sent.ID, got.ID)
	require.Equal(t, string(sent.Data), string(got.Data))
	require.Equal(t, sent.Metadata, got.Metadata)
}

func TestAMessageThatAnotherStoreRefusesIsDead(t *testing.T) {
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
		sink, err := outbox.Into(other, func(m *outbox.Message) messagestore.StreamName {
			if m.Key() == "long" {
				return "a-\n"
			}
			return m.Stream
		})
		require.NoError(t, err)
		relay := relayOf(store, sink, nil)

		require.NoError(t, relay.CatchUp(t.Context()))

		require.EqualValues(t, 2, relay.Stats().Dead)
		require.EqualValues(t, 1, relay.Stats().Sent)
	})
}

func TestTheZeroStoreRefusesNothing(t *testing.T) {
	t.Parallel()
	err := testkit.Must(outbox.Into(&messagestore.Store{}, nil)).Send(t.Context(), message())

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	park, _ := asks(err)
	require.False(t, park)
}

// Each third answer of the other store is lost.
func TestOneMessageIsOneRowHoweverOftenItIsSent(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneRow)
}

func oneRow(t *testing.T, open func(t *testing.T) *messagestore.Store) {
	t.Helper()
	store, other := open(t), open(t)
	for i := range 8 {
		for _, key := range keys(5) {
			write(t, store, key, i, i+1)
		}
	}
	into := testkit.Must(outbox.Into(other, nil))
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
	relay := relayOf(store, sink, nil)
	require.NoError(t, relay.CatchUp(t.Context()))
	again := testkit.Must(outbox.New(store, outgoing, "again", into, nil)) // a replay

	require.NoError(t, again.CatchUp(t.Context()))

	require.Equal(t, stored(t, store), stored(t, other))
	require.Positive(t, relay.Stats().Failed)
}

type sinkFunc func(ctx context.Context, m *outbox.Message) error

func (f sinkFunc) Send(ctx context.Context, m *outbox.Message) error { return f(ctx, m) }
