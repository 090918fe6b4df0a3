package postgres_test

import (
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
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

// The server answers no connection. The first connection that it accepts is the test's own.
func TestABadSchemaIsRefusedBeforeAnyConnection(t *testing.T) {
	t.Parallel()
	server := must.Do(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer server.Close()
	url := "postgres://dibs@" + server.Addr().String() + "/dibs?sslmode=disable&connect_timeout=1"
	pool := must.Do(pgxpool.New(t.Context(), url))(t)
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()

	for _, schema := range []string{"A", "1a", "a-b", "pg_catalog", `x"; drop schema dibs; --`, "a\x00"} {
		config := &postgres.Config{Schema: schema}
		_, opened := postgres.Open(t.Context(), url, config)
		_, made := postgres.New(pool, config)
		_, madeSQL := postgres.NewSQL(db, config)

		for _, err := range []error{opened, made, madeSQL} {
			invalid := must.As[*messagestore.InvalidError](t, err)
			require.Equal(t, "schema", invalid.Field, "%q", schema)
			require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", schema)
		}
	}

	own := must.Do(net.Dial("tcp", server.Addr().String()))(t)
	defer own.Close()
	first := must.Do(server.Accept())(t)
	defer first.Close()
	require.Equal(t, own.LocalAddr().String(), first.RemoteAddr().String(), "a connection came before the test's own")
}
