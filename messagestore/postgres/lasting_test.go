package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A consumer over what no retry mends returns, and says why.
func TestAConsumerReturnsWhatNoRetryMends(t *testing.T) {
	t.Parallel()
	closed := func(t *testing.T) *pgxpool.Pool {
		t.Helper()
		return must.Do(pgxpool.New(t.Context(), pgtest.URL(t)))(t)
	}
	run := func(pool *pgxpool.Pool) <-chan error {
		ended := make(chan error, 1)
		done := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
		c := must.New(consumer.New(must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil)), storetest.Category(t), "test", done, &consumer.Config{Logger: logger.Silent()}))
		go func() { ended <- c.Run(t.Context()) }()
		return ended
	}
	pgtest.Pool(t) // which is migrated

	t.Run("NoRight", func(t *testing.T) {
		t.Parallel()
		denied, is := errors.AsType[*pgconn.PgError](await.Receive(t, "the consumer's end", run(pgtest.PoolAs(t, "dibs_reader"))))
		require.True(t, is)
		require.Equal(t, "42501", denied.Code)
	})
	t.Run("ClosedBefore", func(t *testing.T) {
		t.Parallel()
		pool := closed(t)
		pool.Close()
		require.ErrorContains(t, await.Receive(t, "the consumer's end", run(pool)), "closed pool")
	})
	t.Run("ClosedMeanwhile", func(t *testing.T) {
		t.Parallel()
		pool := closed(t)
		ended := run(pool)
		await.That(t, "connections that the consumer acquires", func() (bool, any) {
			acquired := pool.Stat().AcquireCount()
			return acquired > 3, acquired
		})
		pool.Close()
		require.ErrorContains(t, await.Receive(t, "the consumer's end", ended), "closed pool")
	})
	t.Run("NoSuchDatabase", func(t *testing.T) {
		t.Parallel()
		config := must.Do(pgxpool.ParseConfig(pgtest.URL(t)))(t)
		config.ConnConfig.Database = "no_such_database"
		pool := must.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
		defer pool.Close()
		require.ErrorContains(t, await.Receive(t, "the consumer's end", run(pool)), "no_such_database")
	})
}
