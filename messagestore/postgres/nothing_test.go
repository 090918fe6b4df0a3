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
	over := func(db postgres.DB) func(*postgres.Config) error {
		return func(config *postgres.Config) error { _, err := postgres.New(db, config); return err }
	}
	for name, make := range map[string]func(*postgres.Config) error{
		"nil":            over(nil),
		"nil pool":       over((*pgxpool.Pool)(nil)),
		"nil connection": over((*pgx.Conn)(nil)),
		"nil *sql.DB":    func(config *postgres.Config) error { _, err := postgres.NewSQL(nil, config); return err },
	} {
		err := make(nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.EqualError(t, err, "postgres: invalid database: it is nil: give a pool, a connection or a transaction", name)
		err = make(&postgres.Config{Schema: "A"})
		require.ErrorContains(t, err, `invalid schema "A": `, name)
		require.ErrorContains(t, err, "invalid database: it is nil", name)
	}
}
