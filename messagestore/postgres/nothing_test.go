package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

func TestNilDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	for name, driver := range map[string]messagestore.Driver{
		"nil":            postgres.New(nil, nil),
		"nil pool":       postgres.New((*pgxpool.Pool)(nil), nil),
		"nil connection": postgres.New((*pgx.Conn)(nil), nil),
		"nil *sql.DB":    postgres.NewSQL(nil, nil),
	} {
		store := messagestore.New(driver, nil)
		for _, err := range []error{store.Check(t.Context()), func() error {
			_, err := store.Write(t.Context(), "account-1", messagestore.NoStream, opened())
			return err
		}(), func() error { _, err := store.Epoch(t.Context()); return err }()} {
			require.ErrorIs(t, err, messagestore.ErrInvalid, name)
			require.ErrorContains(t, err, "invalid database: it is nil: give a pool, a connection or a transaction", name)
		}
		_, stop := store.Watch("account", 0)
		stop()
		require.NoError(t, store.Close(), name)
	}
}
