package intenttest_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/intenttest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func openSQLite(t *testing.T, path string) *sqlite.Driver {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return driver
}

func openDB(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestIntentsOnSQLite(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, intenttest.Options{Open: func(t *testing.T) intent.Store {
		return testkit.Must(messagestore.New(openSQLite(t, filepath.Join(t.TempDir(), "intents.db")), nil))
	}})
}

func TestIntentsInTransactionsOnSQLite(t *testing.T) {
	t.Parallel()
	var paths sync.Map // by driver
	intenttest.RunTransact(t, storetest.TransactOptions[*sql.Tx]{
		Open: func(t *testing.T) messagestore.Driver {
			path := filepath.Join(t.TempDir(), "intents.db")
			driver := openSQLite(t, path)
			_, err := openDB(t, path).ExecContext(t.Context(), "CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT")
			require.NoError(t, err)
			paths.Store(driver, path)
			return driver
		},
		Add: func(ctx context.Context, tx *sql.Tx, counter string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO counters VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1", counter)
			return err
		},
		Count: func(t *testing.T, driver messagestore.Driver, counter string) (n int) {
			path, _ := paths.Load(driver)
			require.NoError(t, openDB(t, path.(string)).QueryRowContext(t.Context(), //nolint:errcheck // so stored
				"SELECT coalesce(sum(n), 0) FROM counters WHERE name = ?", counter).Scan(&n))
			return n
		},
	})
}
