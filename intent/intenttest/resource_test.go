package intenttest_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// fencedUpsert is the statement of docs/intents.md for a table outside the store.
func fencedUpsert(t *testing.T) (table, upsert string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/intents.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```sql\n")
	require.True(t, found)
	block, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	table, upsert, found = strings.Cut(block, "\n\n")
	require.True(t, found)
	return table, upsert
}

// write writes a status under a token, and reports whether the table took it.
func write(t *testing.T, db *sql.DB, upsert, status string, token int64) bool {
	t.Helper()
	var written string
	err := db.QueryRowContext(t.Context(), upsert, "k", status, token).Scan(&written)
	if errors.Is(err, sql.ErrNoRows) {
		return false
	}
	require.NoError(t, err)
	require.Equal(t, status, written)
	return true
}

func requireATableThatRefusesLateWrites(t *testing.T, db *sql.DB) {
	t.Helper()
	table, upsert := fencedUpsert(t)
	_, err := db.ExecContext(t.Context(), table)
	require.NoError(t, err)
	m, err := intent.New(testkit.Must(messagestore.New(memory.New(), nil)), "payment:intent", nil)
	require.NoError(t, err)
	grant := func() int64 {
		a, err := m.Reserve(t.Context(), intent.Request{Key: "k", Content: "x"})
		require.NoError(t, err)
		require.NoError(t, m.ForceRelease(t.Context(), "", "k", "the next one, please"))
		return a.Lease.Token()
	}
	first, second := grant(), grant()

	require.True(t, write(t, db, upsert, "processing", first))
	require.True(t, write(t, db, upsert, "sent", first), "the same holder again")
	require.True(t, write(t, db, upsert, "processing", second))
	require.False(t, write(t, db, upsert, "paid", first), "a late write")
	require.True(t, write(t, db, upsert, "paid", second))
}

func TestATableOnPostgreSQLRefusesALateHolder(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(pgtest.Database(t))
	require.NoError(t, err)
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	requireATableThatRefusesLateWrites(t, db)
}

func TestATableOnSQLiteRefusesALateHolder(t *testing.T) {
	t.Parallel()
	requireATableThatRefusesLateWrites(t, openDB(t, filepath.Join(t.TempDir(), "payments.db")))
}
