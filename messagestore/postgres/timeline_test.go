package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// moving returns a pool whose connections are to the server that was named when they were made.
func moving(t *testing.T, url string) (pool *pgxpool.Pool, to func(url string)) {
	t.Helper()
	var target atomic.Pointer[string]
	target.Store(&url)
	config := must.Do(pgxpool.ParseConfig(url))(t)
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		there, err := pgx.ParseConfig(*target.Load())
		if err == nil {
			c.Host, c.Port = there.Host, there.Port
		}
		return err
	}
	pool = must.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	await.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return pool, func(url string) { target.Store(&url) }
}

// promote makes a standby a primary, and returns once it is one.
func promote(t *testing.T, standby string) {
	t.Helper()
	require.True(t, pgtest.Value[bool](t, connect(t, standby), "select pg_promote()"), "it is a primary within a minute")
}

func requireLeft(t *testing.T, err error) {
	t.Helper()
	requireUnsafe(t, err, postgres.UnsafeSetting{Name: "timeline", Value: "1", Need: "at least 2, that of the server promoted in its place"})
	require.NotErrorIs(t, err, failure.ErrLasting, "the next connection may reach the one that was promoted")
}

// Writes to an old primary are lost. It may still be reached by an open connection, or by a new
// one.
func TestAPrimaryThatWasLeftIsRefused(t *testing.T) {
	t.Parallel()
	old := ownServer.Together(t)
	promoted := pgtest.Standby(t, old)
	pool, to := moving(t, old)
	store := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))
	stream := storetest.Category(t).Stream("1")
	write(t, store, stream, messagestore.NoStream, opened())
	left := open(t, old)
	stays := must.Do(pool.Acquire(t.Context()))(t)
	defer stays.Release()

	promote(t, promoted)
	to(promoted)
	write(t, store, stream, messagestore.AnyVersion, opened()) // on a connection of its own, which is kept
	moved := must.Do(pool.Acquire(t.Context()))(t)
	defer moved.Release()
	stays.Release()

	requireLeft(t, must.ErrorOf(store.Write(t.Context(), stream, messagestore.AnyVersion, opened())))
	moved.Release()
	write(t, store, stream, messagestore.AnyVersion, opened())

	// The old one is reached again.
	to(old)
	pool.Reset()
	requireLeft(t, must.ErrorOf(store.Write(t.Context(), stream, messagestore.AnyVersion, opened())))
	requireLeft(t, must.ErrorOf(store.Version(t.Context(), stream)))
	version, err := left.Version(t.Context(), stream)
	require.NoError(t, err, "who has never been on another takes it")
	require.Equal(t, messagestore.Version(0), version, "nothing was written there")

	to(promoted)
	write(t, store, stream, messagestore.AnyVersion, opened())
	version = must.Do(store.Version(t.Context(), stream))(t)
	require.GreaterOrEqual(t, version, messagestore.Version(2))
}

// Nobody asks for the timeline in a transaction of the caller's. Once that is over, somebody does.
func TestAPrimaryThatWasLeftIsRefusedOnAConnectionThatWasUsedFirstInATransaction(t *testing.T) {
	t.Parallel()
	old := ownServer.Together(t)
	promoted := pgtest.Standby(t, old)
	pool, to := moving(t, old)
	store := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))
	stream := storetest.Category(t).Stream("1")
	acquire := func() *pgxpool.Conn {
		conn := must.Do(pool.Acquire(t.Context()))(t)
		t.Cleanup(conn.Release)
		return conn
	}
	first, second := acquire(), acquire()
	require.NoError(t, pgx.BeginFunc(t.Context(), first, func(tx pgx.Tx) error {
		write(t, must.New(messagestore.New(must.New(postgres.New(tx, nil)), nil)), stream, messagestore.NoStream, opened())
		return nil
	}))
	exec(t, second.Conn(), "begin") // by hand
	write(t, must.New(messagestore.New(must.New(postgres.New(second, nil)), nil)), stream, 0, opened())
	exec(t, second.Conn(), "commit")

	promote(t, promoted)
	to(promoted)
	write(t, store, stream, messagestore.AnyVersion, opened())
	moved := acquire()
	for _, stays := range []*pgxpool.Conn{first, second} {
		stays.Release()
		requireLeft(t, must.ErrorOf(store.Write(t.Context(), stream, messagestore.AnyVersion, opened())))
	}

	moved.Release()
	write(t, store, stream, messagestore.AnyVersion, opened())
}
