package queuetest

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/queuing"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

func TestMain(m *testing.M) {
	tier.ManyAtOnce()
	tier.FewerCases()
	goleak.VerifyTestMain(m)
}

func TestQueuesOnSQLite(t *testing.T) {
	t.Parallel()
	var files sync.Map // by driver
	open := func(t *testing.T) (*sqlite.Driver, string) {
		file := filepath.Join(t.TempDir(), "queues.db")
		driver := must.New(sqlite.Open(t.Context(), file, nil))
		t.Cleanup(func() { require.NoError(t, driver.Close()) })
		return driver, file
	}
	other := func(t *testing.T, file string) *sql.DB {
		db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}
	Run(t, Options{
		Open: func(t *testing.T) queuing.Driver {
			driver, file := open(t)
			files.Store(driver, file)
			return driver
		},
		OpenWithClock: func(t *testing.T) (queuing.Driver, func(time.Duration)) {
			driver, file := open(t)
			db, is := other(t, file), time.Duration(0)
			return driver, func(ahead time.Duration) { // its clock is the process's, so what is stored goes the other way
				by := (ahead - is).Microseconds()
				is = ahead
				tx, err := db.BeginTx(context.Background(), nil)
				require.NoError(t, err)
				for _, statement := range []string{
					"UPDATE dibs_queues SET changed = changed - ?1, checked = checked - ?1 WHERE changed IS NOT NULL",
					"UPDATE dibs_queue_open SET due = due - ?1 WHERE due <> 0",
					"UPDATE dibs_queue_open SET given = given - ?1 WHERE given <> 0",
					"UPDATE dibs_queue_sessions SET until = until - ?1",
					"UPDATE dibs_queue_tickets SET until = until - ?1",
					"UPDATE dibs_queue_log SET at = at - ?1",
					"UPDATE dibs_messages SET time = time - ?1",
					"UPDATE dibs_messages SET metadata = json_set(metadata, '$.dueAt', json_extract(metadata, '$.dueAt') - ?1) WHERE json_extract(metadata, '$.dueAt')",
				} {
					_, err := tx.ExecContext(context.Background(), statement, by)
					require.NoError(t, err)
				}
				require.NoError(t, tx.Commit())
			}
		},
		Begin: func(t *testing.T, driver queuing.Driver) (queuing.Driver, func() error, func() error) {
			file, _ := files.Load(driver)
			tx, err := other(t, file.(string)).BeginTx(t.Context(), nil) //nolint:errcheck // so stored
			require.NoError(t, err)
			return must.New(sqlite.New(tx)), tx.Commit, tx.Rollback
		},
	})
}

// A worker's calls need no more than dibs_worker, and an operator's no more than dibs_operator and dibs_admin.
func TestQueuesOnPostgreSQL(t *testing.T) {
	t.Parallel()
	options := over(pgtest.PoolAs(t, "dibs_worker, dibs_operator, dibs_admin"))
	options.OpenWithClock = func(t *testing.T) (queuing.Driver, func(time.Duration)) {
		url, ahead := pgtest.Clock(t)
		return must.New(postgres.New(pgtest.Connect(t, url), nil)), ahead
	}
	Run(t, options)
}

func TestQueuesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	bouncer := pgtest.PgBouncer(t, pgtest.URL(t))
	pgtest.Pool(t)
	options := over(pgtest.Connect(t, bouncer.URL))
	options.spare = func(t *testing.T) { t.Helper(); tier.TakesTurns(t, 1, 4) } // each day without PgBouncer
	Run(t, options)
}

// over has the drivers of a suite work over a pool.
func over(pool *pgxpool.Pool) Options {
	return Options{
		Open: func(*testing.T) queuing.Driver { return must.New(postgres.New(pool, nil)) },
		Begin: func(t *testing.T, _ queuing.Driver) (queuing.Driver, func() error, func() error) {
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			return must.New(postgres.New(tx, nil)), func() error { return tx.Commit(t.Context()) }, func() error { return tx.Rollback(t.Context()) }
		},
	}
}
