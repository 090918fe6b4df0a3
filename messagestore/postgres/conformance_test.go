package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func TestConformanceOverAPool(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	storetest.Run(t, storetest.Options{
		Open: func(*testing.T) messagestore.Driver { return must.New(postgres.New(pool, nil)) },
		Reopen: func(t *testing.T, _ messagestore.Driver) messagestore.Driver {
			return must.New(postgres.New(pgtest.Connect(t, pgtest.URL(t)), nil))
		},
		Beside: func(t *testing.T, _ messagestore.Driver) messagestore.Driver {
			return must.New(postgres.New(pgtest.Connect(t, pgtest.URL(t)), nil))
		},
	})
}

func TestConformanceOverAConnection(t *testing.T) {
	t.Parallel()
	tier.NeedsLong(t)
	pgtest.Pool(t)
	storetest.Run(t, storetest.Options{
		Open:    func(t *testing.T) messagestore.Driver { return must.New(postgres.New(connect(t, pgtest.URL(t)), nil)) },
		OneUser: true, // a caller that leaves early leaves the connection closed
	})
}

func TestConformanceInATransaction(t *testing.T) {
	t.Parallel()
	tier.TakesTurns(t, 3, 4)
	pgtest.Pool(t)
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) messagestore.Driver {
			tx := must.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
			return must.New(postgres.New(tx, nil))
		},
		OneUser: true,
	})
}

// connect returns a connection that is closed when the test ends, and with it its transaction.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := must.Do(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn
}
