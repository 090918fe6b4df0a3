package postgres_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// Callers hold all connections of a pool. Upkeep still reads and writes, on an extra connection
// with the pool's configuration; another call waits, and its error names the pool.
func TestUpkeepDoesNotWaitForCallersThatHoldTheWholePool(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	for name, url := range map[string]string{"Straight": pgtest.URL(t), "ThroughPgBouncer": pgtest.PgBouncer(t, pgtest.URL(t)).URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := testkit.Do(pgxpool.ParseConfig(url))(t)
			var before, after atomic.Int64
			config.MaxConns = 2
			config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
				before.Add(1)
				return nil
			}
			config.AfterConnect = func(context.Context, *pgx.Conn) error {
				after.Add(1)
				return nil
			}
			pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
			testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
			driver := testkit.Must(postgres.New(pool, nil))
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			store := testkit.Must(messagestore.New(driver, nil))
			stream := storetest.Category(t).Stream("1")
			write(t, store, stream, messagestore.NoStream, opened())
			require.Equal(t, 2, store.Connections())
			for range 2 {
				conn := testkit.Do(pool.Acquire(t.Context()))(t)
				t.Cleanup(conn.Release)
			}
			ctx, cancel := context.WithTimeout(calling.Upkeep(t.Context()), testkit.WaitLimit)
			defer cancel()

			for range 3 {
				testkit.Do(store.Write(ctx, stream, messagestore.AnyVersion, opened()))(t)
				testkit.Do(store.Last(ctx, stream))(t)
			}

			require.Equal(t, []int64{3, 3}, []int64{before.Load(), after.Load()}, "one beside the pool of two, for all calls")
			short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.ErrorContains(t, testkit.ErrorOf(store.Last(short, stream)), "all connections of the pool are in use (2 of 2)")
			require.ErrorIs(t, testkit.ErrorOf(store.Write(short, stream, messagestore.AnyVersion, opened())), context.DeadlineExceeded)
		})
	}
}

// A call waits for a connection of the pool, and then notices that callers hold them all.
func TestUpkeepThatWaitsForAPoolThatFillsUpGetsAConnectionBesideIt(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.Pool(t)
	config := testkit.Do(pgxpool.ParseConfig(url))(t)
	config.MaxConns = 1
	dialled, goOn := make(chan struct{}), make(chan struct{})
	var dials atomic.Int64
	config.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
		if dials.Add(1) > 1 {
			return nil
		}
		close(dialled)
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return nil
	}
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	held := make(chan *pgxpool.Conn, 1)
	go func() {
		conn, err := pool.Acquire(t.Context())
		if err == nil {
			held <- conn
		}
	}()
	testkit.Receive(t, "the pool connects", dialled)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(calling.Upkeep(context.WithoutCancel(t.Context())), testkit.WaitLimit)
		defer cancel()
		_, err := store.Now(ctx)
		ended <- err
	}()
	testkit.AwaitTrue(t, "it waits for the pool", func() bool { return pool.Stat().ConstructingConns() == 1 })

	close(goOn)

	conn := testkit.Receive(t, "a caller has the pool's connection", held)
	require.NoError(t, testkit.Receive(t, "upkeep goes on", ended))
	conn.Release()
}

// No extra connection stays.
func TestConnectionsOfUpkeepEndWithTheDriver(t *testing.T) {
	t.Parallel()
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = t.Name() })
	driver := testkit.Must(postgres.New(pool, nil))
	conn := testkit.Do(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	testkit.Do(driver.Now(calling.Upkeep(t.Context())))(t)
	sessions := func() (n int) {
		require.NoError(t, conn.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = $1", t.Name()).Scan(&n))
		return n
	}
	require.Equal(t, 2, sessions())

	require.NoError(t, driver.Close())

	testkit.AwaitEqual(t, "the sessions", 1, sessions)
}

// A slowLine returns from the write of a message when its answer was read and another read waits,
// as where a process is not scheduled for some time. It counts the reads that wait for the server.
type slowLine struct {
	net.Conn
	t              *testing.T
	begun, waiting *atomic.Int64
}

func (l slowLine) Write(b []byte) (int, error) {
	before := l.begun.Load()
	n, err := l.Conn.Write(b)
	if bytes.Contains(b, []byte("Opened")) {
		testkit.AwaitEqual(l.t, "a second read in pgx's goroutine", true, func() bool { return l.begun.Load() > before+1 })
	}
	return n, err
}

func (l slowLine) Read(b []byte) (int, error) {
	l.begun.Add(1)
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	return l.Conn.Read(b)
}

func TestAConnectionBesideThePoolIsNotReadBetweenCalls(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	config := testkit.Do(pgxpool.ParseConfig(pgtest.URL(t)))(t)
	config.MaxConns = 1
	var begun, waiting atomic.Int64
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return slowLine{conn, t, &begun, &waiting}, err
	}
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	driver := testkit.Must(postgres.New(pool, nil))
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	store := testkit.Must(messagestore.New(driver, nil))
	conn := testkit.Do(pool.Acquire(t.Context()))(t)
	t.Cleanup(conn.Release)
	require.NoError(t, conn.Conn().PgConn().SyncConn(t.Context()))

	testkit.Do(store.Write(calling.Upkeep(t.Context()), storetest.Category(t).Stream("1"), messagestore.AnyVersion, opened()))(t)

	require.Zero(t, waiting.Load(), "a goroutine of pgx reads until the connection is closed")
}
