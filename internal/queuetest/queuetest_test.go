package queuetest

import (
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

func TestMain(m *testing.M) {
	testkit.ManyAtOnce()
	testkit.FewerCases()
	goleak.VerifyTestMain(m)
}

// A worker's calls need no more than dibs_worker, and an operator's no more than dibs_operator and
// dibs_admin.
func TestQueuesOnPostgreSQL(t *testing.T) {
	t.Parallel()
	options := over(pgtest.PoolAs(t, "dibs_worker, dibs_operator, dibs_admin"))
	options.OpenWithClock = func(t *testing.T) (queuing.Driver, func(time.Duration)) {
		database, ahead := pgtest.Clock(t)
		return testkit.Must(postgres.New(pgtest.Connect(t, database), nil)), ahead
	}
	Run(t, options)
}

func TestQueuesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	bouncer := pgtest.PgBouncer(t, pgtest.URL(t))
	pgtest.Pool(t)
	options := over(pgtest.Connect(t, bouncer.URL))
	options.OpenWithClock = func(t *testing.T) (queuing.Driver, func(time.Duration)) {
		database, ahead := pgtest.Clock(t)
		through := testkit.Do(url.Parse(bouncer.URL))(t)
		through.Path = "/" + testkit.Must(pgx.ParseConfig(database)).Database
		return testkit.Must(postgres.New(pgtest.Connect(t, through.String()), nil)), ahead
	}
	options.spare = func(t *testing.T) { t.Helper(); testkit.TakesTurns(t, 1, 4) } // each day without PgBouncer
	Run(t, options)
}

// over has the drivers of a suite work over a pool.
func over(pool *pgxpool.Pool) Options {
	return Options{
		Open: func(*testing.T) queuing.Driver { return testkit.Must(postgres.New(pool, nil)) },
		Begin: func(t *testing.T, _ queuing.Driver) (queuing.Driver, func() error, func() error) {
			tx := testkit.Do(pool.Begin(t.Context()))(t)
			return testkit.Must(postgres.New(tx, nil)), func() error { return tx.Commit(t.Context()) }, func() error { return tx.Rollback(t.Context()) }
		},
	}
}
