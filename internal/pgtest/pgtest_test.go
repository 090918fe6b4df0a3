package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

func TestPoolIsMigrated(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)

	var exists bool
	err := pool.QueryRow(t.Context(), "select to_regclass('dibs.messages') is not null").Scan(&exists)
	require.NoError(t, err)
	require.True(t, exists)
}

func TestSchemaIsOneTestsOwn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	count := func(name string) (n int) {
		t.Helper()
		err := pool.QueryRow(t.Context(), "select count(*) from pg_namespace where nspname = $1", name).Scan(&n)
		require.NoError(t, err)
		return n
	}

	var first string
	t.Run("while the test runs", func(t *testing.T) {
		var own string
		_, first = pgtest.Schema(t)
		_, own = pgtest.Schema(t)

		require.NotEqual(t, first, own)
		require.Equal(t, 1, count(first))
	})

	require.Equal(t, 0, count(first))
}

func TestDatabaseIsDroppedThoughSomebodyIsConnected(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)

	var name string
	t.Run("while the test runs", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), pgtest.Database(t))
		require.NoError(t, err)
		err = conn.QueryRow(t.Context(), "select current_database()").Scan(&name)
		require.NoError(t, err)
	})

	var n int
	err := pool.QueryRow(t.Context(), "select count(*) from pg_database where datname = $1", name).Scan(&n)
	require.NoError(t, err)
	require.Equal(t, 0, n)
}
