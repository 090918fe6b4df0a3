package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func TestConformance(t *testing.T) {
	var paths sync.Map // by driver
	openAt := func(t *testing.T, path string) messagestore.Driver {
		driver := open(t, path, nil)
		paths.Store(driver, path)
		return driver
	}
	path := func(t *testing.T, driver messagestore.Driver) string {
		path, ok := paths.Load(driver)
		require.True(t, ok)
		return path.(string) //nolint:errcheck // so stored
	}
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) messagestore.Driver { return openAt(t, newFile(t)) },
		Reopen: func(t *testing.T, driver messagestore.Driver) messagestore.Driver {
			require.NoError(t, driver.(io.Closer).Close()) //nolint:errcheck // it is one
			return openAt(t, path(t, driver))
		},
		Beside: func(t *testing.T, driver messagestore.Driver) messagestore.Driver { return openAt(t, path(t, driver)) },
	})
}

func TestConformanceInATransaction(t *testing.T) {
	storetest.Run(t, storetest.Options{
		OneUser: true,
		Open: func(t *testing.T) messagestore.Driver {
			return must.New(sqlite.New(begin(t, newDatabase(t))))
		},
	})
}

func newFile(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "messages.db")
}

// patient waits for a lock longer than a test ever takes, however slow the machine is.
var patient = &sqlite.Config{BusyTimeout: 10 * time.Minute}

// open opens a file, and is patient without a config.
func open(t testing.TB, path string, config *sqlite.Config) *sqlite.Driver {
	t.Helper()
	if config == nil {
		config = patient
	}
	driver := must.Do(sqlite.Open(t.Context(), path, config))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return driver
}

// newDatabase returns an application's own database, with the tables of a message
// store.
func newDatabase(t testing.TB) *sql.DB {
	t.Helper()
	db := database(t, filepath.Join(t.TempDir(), "app.db"))
	tx := begin(t, db)
	require.NoError(t, sqlite.Schema(t.Context(), tx))
	require.NoError(t, tx.Commit())
	return db
}

// database opens a file as an application does that knows nothing of messages.
func database(t testing.TB, path string) *sql.DB {
	t.Helper()
	db := must.Do(sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(600000)"))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// begin returns a transaction that is rolled back with the test, if nothing else
// ends it. It does not have the test's context: database/sql would roll it back by
// itself, at some time while the test cleans up.
func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx := must.Do(db.BeginTx(context.WithoutCancel(t.Context()), nil))(t)
	t.Cleanup(func() {
		if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
			require.NoError(t, err)
		}
	})
	return tx
}

func execute(t testing.TB, db interface {
	Exec(query string, args ...any) (sql.Result, error)
}, statement string, args ...any,
) {
	t.Helper()
	must.Do(db.Exec(statement, args...))(t)
}
