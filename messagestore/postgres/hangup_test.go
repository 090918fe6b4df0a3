package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// A line is a connection to a server that remembers how it ended.
type line struct {
	net.Conn

	mu     sync.Mutex
	last   []byte // that was sent
	closed bool
}

func (l *line) Write(b []byte) (int, error) {
	l.mu.Lock()
	l.last = append(l.last[:0], b...)
	l.mu.Unlock()
	return l.Conn.Write(b)
}

func (l *line) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	return l.Conn.Close()
}

// requireHungUp has the line closed, after a goodbye: a server that gets none logs that
// the client was lost.
func (l *line) requireHungUp(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.True(t, l.closed, "the connection is left open")
	require.Equal(t, "X\x00\x00\x00\x04", string(l.last))
}

// overLines returns a driver over a pool, and the connections that it makes.
func overLines(t *testing.T, url string, afterConnect func(context.Context, *pgx.Conn) error) (*postgres.Driver, <-chan *line) {
	t.Helper()
	config := must.Do(pgxpool.ParseConfig(url))(t)
	config.AfterConnect = afterConnect
	lines := make(chan *line, 10)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		l := &line{Conn: conn}
		lines <- l
		return l, nil
	}
	pool := must.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	await.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return must.New(postgres.New(pool, nil)), lines
}

func TestWhoListensNoMoreSaysGoodbye(t *testing.T) {
	t.Parallel()
	driver, lines := overLines(t, pgtest.Migrated(t), nil) // where no other transaction has notified, which listening waits for
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	require.ErrorIs(t, driver.Listen(ctx, func(messagestore.Category, messagestore.GlobalPosition) { cancel() }), context.Canceled)
	await.Receive(t, "a connection", lines).requireHungUp(t)
}

// Listening is tried again and again: each connection that were left open would be one
// more that the server has.
func TestAConnectionThatCannotListenIsNotLeftOpen(t *testing.T) {
	t.Parallel()
	unable := errors.New("not this one")
	driver, lines := overLines(t, pgtest.URL(t), func(context.Context, *pgx.Conn) error { return unable })

	require.ErrorIs(t, driver.Listen(t.Context(), nil), unable)
	await.Receive(t, "a connection", lines).requireHungUp(t)
}
