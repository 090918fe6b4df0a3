package intenttest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/intenttest"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func TestIntentsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	intenttest.Run(t, intenttest.Options{Open: func(*testing.T) intent.Store {
		return testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	}})
}

func TestIntentsThroughPgBouncer(t *testing.T) {
	t.Parallel()
	bouncer := pgtest.PgBouncer(t, pgtest.URL(t))
	pgtest.Pool(t)
	through := pgtest.Connect(t, bouncer.URL)
	intenttest.Run(t, intenttest.Options{Open: func(*testing.T) intent.Store {
		return testkit.Must(messagestore.New(testkit.Must(postgres.New(through, nil)), nil))
	}})
}

// transactions are the caller's over pool, with a table of counters beside the messages.
func transactions(t *testing.T, pool *pgxpool.Pool) storetest.TransactOptions[pgx.Tx] {
	t.Helper()
	_, err := pool.Exec(t.Context(), "select pg_advisory_xact_lock(7); create table if not exists public.intent_counters (name text primary key, n bigint)")
	require.NoError(t, err)
	return storetest.TransactOptions[pgx.Tx]{
		Open: func(*testing.T) messagestore.Driver { return testkit.Must(postgres.New(pool, nil)) },
		Add: func(ctx context.Context, tx pgx.Tx, counter string) error {
			_, err := tx.Exec(ctx, "insert into public.intent_counters values ($1, 1) on conflict (name) do update set n = intent_counters.n + 1", counter)
			return err
		},
		Count: func(t *testing.T, _ messagestore.Driver, counter string) (n int) {
			require.NoError(t, pool.QueryRow(t.Context(), "select coalesce(sum(n), 0) from public.intent_counters where name = $1", counter).Scan(&n))
			return n
		},
	}
}

func TestIntentsInTransactionsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	intenttest.RunTransact(t, transactions(t, pgtest.Pool(t)))
}

// A lease in a transaction that was begun elsewhere.
func TestConfirmInATransactionOfTheCaller(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	m, err := intent.New(testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), intenttest.Category(t), nil)
	require.NoError(t, err)
	grant := func(t *testing.T, key string) *intent.Lease {
		t.Helper()
		a, err := m.Reserve(t.Context(), intent.Request{Key: key, Content: "x"})
		require.NoError(t, err)
		return a.Lease
	}
	status := func(t *testing.T, key string) intent.Outcome {
		t.Helper()
		i, err := m.Lookup(t.Context(), "", key)
		require.NoError(t, err)
		return i.Status
	}
	confirm := func(t *testing.T, l *intent.Lease, level pgx.TxIsoLevel, before func()) (pgx.Tx, error) {
		t.Helper()
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		in, err := l.In(t.Context(), testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)))
		if err != nil {
			return tx, err
		}
		before()
		return tx, in.Confirm(t.Context(), "in a transaction")
	}
	nothing := func() {}

	t.Run("takes effect with the commit", func(t *testing.T) {
		l := grant(t, "committed")
		tx, err := confirm(t, l, pgx.ReadCommitted, nothing)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, intent.Done, status(t, "committed"))
		require.NoError(t, l.Confirm(t.Context(), "in a transaction"), "the same")
	})
	t.Run("rolled back is not confirmed", func(t *testing.T) {
		l := grant(t, "rolled back")
		tx, err := confirm(t, l, pgx.ReadCommitted, nothing)
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, intent.Held, status(t, "rolled back"))
		require.NoError(t, l.Extend(t.Context()))
	})
	t.Run("lost", func(t *testing.T) {
		l := grant(t, "lost")
		require.NoError(t, m.ForceRelease(t.Context(), "", "lost", "a test"))
		tx, err := confirm(t, l, pgx.ReadCommitted, nothing)
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		require.NoError(t, tx.Rollback(t.Context()), "it holds the category's lock")
		l = grant(t, "lost")
		_, err = confirm(t, l, pgx.ReadCommitted, func() { require.NoError(t, m.ForceRelease(t.Context(), "", "lost", "a test")) })
		require.ErrorIs(t, err, intent.ErrLeaseLost)
	})
	t.Run("lost, and the snapshot is too old to show it", func(t *testing.T) {
		l := grant(t, "old snapshot")
		_, err := confirm(t, l, pgx.RepeatableRead, func() { require.NoError(t, m.ForceRelease(t.Context(), "", "old snapshot", "a test")) })
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		require.True(t, l.Lost(err))
		require.Equal(t, intent.Free, status(t, "old snapshot"))
	})
	t.Run("another database", func(t *testing.T) {
		l := grant(t, "here")
		elsewhere := pgtest.Connect(t, pgtest.Migrated(t))
		_, err := l.In(t.Context(), testkit.Must(messagestore.New(testkit.Must(postgres.New(elsewhere, nil)), nil)))
		require.ErrorIs(t, err, messagestore.ErrNotFound)
		tx, err := messagestore.Transactional[pgx.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(elsewhere, nil)), nil)))
		require.NoError(t, err)
		_, err = tx.Transact(t.Context(), func(context.Context, pgx.Tx) ([]messagestore.StreamWrite, error) {
			return l.Confirmation("elsewhere"), nil
		})
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.True(t, l.Lost(err))
		_, err = l.In(t.Context(), nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	})
}

// Work that holds every connection of the pool keeps its lease: extensions have connections beside the pool.
func TestALeaseIsKeptByWorkThatHoldsTheWholePool(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	work := func(ttl time.Duration) error {
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
		defer func() { require.NoError(t, store.Close()) }() // the connections beside the pool
		m, err := intent.New(store, intenttest.Category(t), &intent.Config{TTL: ttl})
		require.NoError(t, err)
		_, err = m.Do(t.Context(), intent.Request{Key: "k", Content: "x"}, func(ctx context.Context, _ *intent.Lease) (any, error) {
			conn, err := pool.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			defer conn.Release()
			timer := time.NewTimer(ttl + ttl/2)
			defer timer.Stop()
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-timer.C:
				return nil, nil
			}
		})
		return err
	}

	ttl := 100 * time.Millisecond
	testkit.Await(t, "a lease is kept on a machine that is in time", func() (bool, any) {
		ttl *= 2
		err := work(ttl)
		return err == nil, err
	})
}

// What one heartbeat for 1,000 leases takes, and one for a single lease, in turn. On a server that
// syncs:
//
//	scripts/with-postgres --durable TEST_DATABASE_URL -- go test ./intent/intenttest -run '^$' -bench ExtendMany
func BenchmarkExtendMany(b *testing.B) {
	m, err := intent.New(testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(b), nil)), nil)), intenttest.Category(b), nil)
	require.NoError(b, err)
	holders := make([]intent.Holder, 1000)
	for i := range holders {
		key := fmt.Sprint(i)
		a, err := m.Reserve(b.Context(), intent.Request{Key: key, Session: "A", Content: "c", TTL: time.Hour})
		require.NoError(b, err)
		holders[i] = intent.Holder{Key: key, Session: "A", Token: a.Lease.Token()}
	}
	var one, many time.Duration
	for b.Loop() {
		began := time.Now()
		_, err := m.Extend(b.Context(), holders[0])
		require.NoError(b, err)
		one += time.Since(began)
		began = time.Now()
		all, err := m.ExtendMany(b.Context(), holders...)
		require.NoError(b, err)
		many += time.Since(began)
		for _, e := range all {
			require.NoError(b, e.Err)
		}
	}
	b.ReportMetric(float64(one.Microseconds())/float64(b.N), "us/one")
	b.ReportMetric(float64(many.Microseconds())/float64(b.N), "us/1000")
	b.ReportMetric(float64(many)/float64(one), "times")
}
