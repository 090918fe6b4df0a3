package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

const addSQL = `INSERT INTO counters VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1`

func add(ctx context.Context, tx *sql.Tx, counter string) error {
	_, err := tx.ExecContext(ctx, addSQL, counter)
	return err
}

func newCounters(t testing.TB, path string) {
	t.Helper()
	db := must.Do(sql.Open("sqlite", path))(t)
	defer db.Close()
	must.Do(db.ExecContext(t.Context(), "CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT"))(t)
}

func count(t *testing.T, path, counter string) int {
	t.Helper()
	db := must.Do(sql.Open("sqlite", path))(t)
	defer db.Close()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT coalesce(sum(n), 0) FROM counters WHERE name = ?", counter).Scan(&n))
	return n
}

func TestConformanceOfTransactions(t *testing.T) {
	t.Parallel()
	var paths sync.Map // by driver
	storetest.RunTransact(t, storetest.TransactOptions[*sql.Tx]{
		Open: func(t *testing.T) messagestore.Driver {
			path := newFile(t)
			driver := open(t, path, nil)
			newCounters(t, path)
			paths.Store(driver, path)
			return driver
		},
		Add: add,
		Count: func(t *testing.T, driver messagestore.Driver, counter string) int {
			path, ok := paths.Load(driver)
			require.True(t, ok)
			return count(t, path.(string), counter) //nolint:errcheck // so stored
		},
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
	})
}

func transactional(t *testing.T, driver messagestore.Driver) *messagestore.TxStore[*sql.Tx] {
	t.Helper()
	return must.Do(messagestore.Transactional[*sql.Tx](must.New(messagestore.New(driver, nil))))(t)
}

func TestATransactionOfTheCallerBeginsNoOther(t *testing.T) {
	t.Parallel()
	_, err := messagestore.Transactional[*sql.Tx](must.New(messagestore.New(must.New(sqlite.New(begin(t, newDatabase(t)))), nil)))
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

// SQLite takes these as statements, so they are found out only afterwards.
func TestStatementsThatEndTheTransactionAreFound(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"COMMIT", "ROLLBACK", "COMMIT; BEGIN IMMEDIATE"} {
		path := newFile(t)
		store := transactional(t, open(t, path, nil))
		newCounters(t, path)

		_, err := store.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			_, err := tx.ExecContext(ctx, statement)
			return []messagestore.StreamWrite{messagestore.To("account-1", messagestore.NoStream, storetest.Opened{})}, err
		})

		require.ErrorIs(t, err, messagestore.ErrTransactionEnded, statement)
		require.NotContains(t, err.Error(), "\n", statement)
		require.Equal(t, messagestore.NoStream, must.Do(store.Version(t.Context(), "account-1"))(t))
		_, err = store.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{messagestore.To("account-1", messagestore.NoStream, storetest.Opened{})}, add(ctx, tx, "a")
		})
		require.NoError(t, err, "the next transaction is sound")
		require.Equal(t, 1, count(t, path, "a"))
	}
}

// A COMMIT that fails may be found in the log after a crash: the outcome is unknown until
// Find settles it.
func TestAFailedCommitOfATransactionIsResolved(t *testing.T) {
	t.Parallel()
	var fail atomic.Bool
	path := newFile(t)
	driver := must.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
		if statement == "COMMIT" && fail.CompareAndSwap(true, false) {
			return sqliteError(10)
		}
		return nil
	}), path, patient))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	newCounters(t, path)
	store := transactional(t, driver)
	calls := 0
	f := func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		calls++
		return []messagestore.StreamWrite{messagestore.To("account-1", messagestore.NoStream, storetest.Opened{})}, add(ctx, tx, "a")
	}
	fail.Store(true)

	must.Do(store.Transact(t.Context(), f))(t)

	require.Equal(t, 2, calls)
	require.Equal(t, 1, count(t, path, "a"))
	fail.Store(true)
	_, err := store.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		return nil, add(ctx, tx, "a")
	})
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown, "no message shows it")
}

// Writers wait for a function as long as for another process, and no longer.
func TestWritersWaitForAFunction(t *testing.T) {
	t.Parallel()
	driver := open(t, newFile(t), &sqlite.Config{BusyTimeout: 50 * time.Millisecond})
	store := transactional(t, driver)
	must.Do(store.Transact(t.Context(), func(ctx context.Context, _ *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := store.Write(ctx, "account-1", messagestore.NoStream, storetest.Opened{}) // waits for this function
		require.ErrorIs(t, err, sqlite.ErrBusy)
		require.ErrorContains(t, err, "busy")
		_, err = store.Transact(ctx, func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
			return nil, nil
		})
		require.ErrorIs(t, err, sqlite.ErrBusy)
		return nil, nil
	}))(t)
	must.Do(store.Write(t.Context(), "account-1", messagestore.NoStream, storetest.Opened{}))(t)
}

func TestACloseWaitsForTheFunction(t *testing.T) {
	t.Parallel()
	driver := must.Do(sqlite.Open(t.Context(), newFile(t), patient))(t)
	store := transactional(t, driver)
	closed := make(chan error, 1)
	must.Do(store.Transact(t.Context(), func(ctx context.Context, _ *sql.Tx) ([]messagestore.StreamWrite, error) {
		go func() { closed <- driver.Close() }()
		await.True(t, "the close has begun", func() bool {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err := driver.Find(ctx, "account-1", nil)
			return errors.Is(err, messagestore.ErrClosed)
		})
		require.Empty(t, closed)
		return []messagestore.StreamWrite{messagestore.To("account-1", messagestore.NoStream, storetest.Opened{})}, nil
	}))(t)
	require.NoError(t, await.Receive(t, "the close ends", closed))
	_, err := store.Transact(t.Context(), func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
		return nil, nil
	})
	require.ErrorIs(t, err, messagestore.ErrClosed)
}
