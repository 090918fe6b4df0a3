package queuetest

import (
	"database/sql"
	"path/filepath"
	"sync"
	"testing"

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
	Run(t, Options{
		Open: func(t *testing.T) queuing.Driver {
			file := filepath.Join(t.TempDir(), "queues.db")
			driver := must.New(sqlite.Open(t.Context(), file, nil))
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			files.Store(driver, file)
			return driver
		},
		Begin: func(t *testing.T, driver queuing.Driver) (queuing.Driver, func() error, func() error) {
			file, _ := files.Load(driver)
			db, err := sql.Open("sqlite", "file:"+file.(string)+"?_txlock=immediate&_pragma=busy_timeout(10000)") //nolint:errcheck // so stored
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return must.New(sqlite.New(tx)), tx.Commit, tx.Rollback
		},
	})
}

// A worker's calls need no more than dibs_worker, and an operator's no more than dibs_operator and dibs_admin.
func TestQueuesOnPostgreSQL(t *testing.T) {
	t.Parallel()
	Run(t, over(pgtest.PoolAs(t, "dibs_worker, dibs_operator, dibs_admin")))
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
