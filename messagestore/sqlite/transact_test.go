package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
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
	db := testkit.Do(sql.Open("sqlite", path))(t)
	defer db.Close()
	testkit.Do(db.ExecContext(t.Context(), "CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT"))(t)
}

func count(t *testing.T, path, counter string) int {
	t.Helper()
	db := testkit.Do(sql.Open("sqlite", path))(t)
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
	return testkit.Do(messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(driver, nil))))(t)
}

func TestATransactionOfTheCallerBeginsNoOther(t *testing.T) {
	t.Parallel()
	_, err := messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(testkit.Must(sqlite.New(begin(t, newDatabase(t)))), nil)))
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
		require.Equal(t, messagestore.NoStream, testkit.Do(store.Version(t.Context(), "account-1"))(t))
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
	driver := testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
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

	testkit.Do(store.Transact(t.Context(), f))(t)

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
	testkit.Do(store.Transact(t.Context(), func(ctx context.Context, _ *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := store.Write(ctx, "account-1", messagestore.NoStream, storetest.Opened{}) // waits for this function
		require.ErrorIs(t, err, sqlite.ErrBusy)
		require.ErrorContains(t, err, "busy")
		_, err = store.Transact(ctx, func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
			return nil, nil
		})
		require.ErrorIs(t, err, sqlite.ErrBusy)
		return nil, nil
	}))(t)
	testkit.Do(store.Write(t.Context(), "account-1", messagestore.NoStream, storetest.Opened{}))(t)
}

func TestACloseWaitsForTheFunction(t *testing.T) {
	t.Parallel()
	driver := testkit.Do(sqlite.Open(t.Context(), newFile(t), patient))(t)
	store := transactional(t, driver)
	closed := make(chan error, 1)
	testkit.Do(store.Transact(t.Context(), func(ctx context.Context, _ *sql.Tx) ([]messagestore.StreamWrite, error) {
		go func() { closed <- driver.Close() }()
		testkit.AwaitTrue(t, "the close has begun", func() bool {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err := driver.Find(ctx, "account-1", nil)
			return errors.Is(err, messagestore.ErrClosed)
		})
		require.Empty(t, closed)
		return []messagestore.StreamWrite{messagestore.To("account-1", messagestore.NoStream, storetest.Opened{})}, nil
	}))(t)
	require.NoError(t, testkit.Receive(t, "the close ends", closed))
	_, err := store.Transact(t.Context(), func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
		return nil, nil
	})
	require.ErrorIs(t, err, messagestore.ErrClosed)
}

func TestMessageAndTableCommitTogether(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	execute(t, db, "CREATE TABLE invoices (id TEXT PRIMARY KEY, paid INTEGER NOT NULL)")
	pay := func(id string) *sql.Tx {
		tx := begin(t, db)
		execute(t, tx, "INSERT INTO invoices VALUES (?, 1)", id)
		testkit.Do(testkit.Must(sqlite.New(tx)).Append(t.Context(), appendOf(messagestore.StreamName("invoice-"+id), messagestore.NoStream, 2)))(t)
		return tx
	}

	require.NoError(t, pay("1").Commit())
	require.NoError(t, pay("2").Rollback())

	tx := begin(t, db)
	version := testkit.Do(testkit.Must(sqlite.New(tx)).Version(t.Context(), "invoice-1"))(t)
	require.EqualValues(t, 1, version)
	version = testkit.Do(testkit.Must(sqlite.New(tx)).Version(t.Context(), "invoice-2"))(t)
	require.Equal(t, messagestore.NoStream, version)
	var paid int
	require.NoError(t, tx.QueryRow("SELECT count(*) FROM invoices").Scan(&paid))
	require.Equal(t, 1, paid)
	require.NoError(t, tx.Rollback())
}

func TestConflictLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	execute(t, db, "CREATE TABLE invoices (id TEXT PRIMARY KEY)")
	tx := begin(t, db)
	driver := testkit.Must(sqlite.New(tx))
	first := appendOf("invoice-1", messagestore.NoStream, 1)
	testkit.Do(driver.Append(t.Context(), first))(t)
	execute(t, tx, "INSERT INTO invoices VALUES ('before')")

	require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))), messagestore.ErrVersionConflict)
	require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 3))), messagestore.ErrVersionConflict)
	second := appendOf("invoice-2", messagestore.NoStream, 2)
	second.Records[1].ID = first.Records[0].ID // the first message goes in before the second is refused
	require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), second)), messagestore.ErrIDConflict)

	execute(t, tx, "INSERT INTO invoices VALUES ('after')")
	testkit.Do(driver.Append(t.Context(), appendOf("invoice-1", 0, 1)))(t)
	require.NoError(t, tx.Commit())
	var invoices, messages int
	require.NoError(t, db.QueryRow("SELECT (SELECT count(*) FROM invoices), (SELECT count(*) FROM dibs_messages)").Scan(&invoices, &messages))
	require.Equal(t, 2, invoices)
	require.Equal(t, 2, messages)
}

func TestEndedContextLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	tx := begin(t, db)
	driver := testkit.Must(sqlite.New(tx))
	testkit.Do(driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.ErrorIs(t, testkit.ErrorOf(driver.Append(ctx, appendOf("invoice-1", 0, 1))), context.Canceled)

	testkit.Do(driver.Append(t.Context(), appendOf("invoice-1", 0, 1)))(t)
	require.NoError(t, tx.Commit())
}

func TestTransactionThatReadTooEarlyIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	beside := open(t, path, nil)
	db, err := sql.Open("sqlite", "file:"+path) // whose transactions begin without a lock
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	tx := begin(t, db)
	version := testkit.Do(testkit.Must(sqlite.New(tx)).Version(t.Context(), "invoice-1"))(t)
	require.Equal(t, messagestore.NoStream, version)
	testkit.Do(beside.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1)))(t)

	_, err = testkit.Must(sqlite.New(tx)).Append(t.Context(), appendOf("invoice-1", version, 1))

	require.ErrorIs(t, err, sqlite.ErrBusy)
	require.ErrorContains(t, err, "BEGIN IMMEDIATE")
	require.NoError(t, tx.Rollback())
}

// A transaction that has not read sees the version that others have left, also if it
// began without a lock: the first thing that a write does is to take it.
func TestTransactionWithoutLockWritesToWhatIsThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	beside := open(t, path, nil)
	db := testkit.Do(sql.Open("sqlite", "file:"+path))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	tx := begin(t, db)
	testkit.Do(beside.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1)))(t)

	testkit.Do(testkit.Must(sqlite.New(tx)).Append(t.Context(), appendOf("invoice-1", 0, 1)))(t)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, testkit.ErrorOf(beside.Append(ctx, appendOf("invoice-1", 1, 1))), context.Canceled)
	require.NoError(t, tx.Commit())
	testkit.Do(beside.Append(t.Context(), appendOf("invoice-1", 1, 1)))(t)
}

func TestDatabaseWithoutTablesSaysHowToCreateThem(t *testing.T) {
	t.Parallel()
	tx := begin(t, database(t, newFile(t)))
	driver := testkit.Must(sqlite.New(tx))

	require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))), sqlite.ErrNoSchema)
	require.ErrorIs(t, testkit.ErrorOf(driver.Version(t.Context(), "invoice-1")), sqlite.ErrNoSchema)

	require.NoError(t, sqlite.Schema(t.Context(), tx))
	require.NoError(t, sqlite.Schema(t.Context(), tx), "again")
	testkit.Do(driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1)))(t)
	require.NoError(t, driver.Close(), "closes nothing")
	require.NoError(t, tx.Commit())
}

// An application keeps its tables and its messages in one file; a consumer opens the file
// as a store and relays the messages there.
func TestApplicationsDatabaseOpensAsAStore(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	db := database(t, path)
	execute(t, db, "PRAGMA user_version = 41") // of the application's own migrations
	execute(t, db, "CREATE TABLE invoices (id TEXT PRIMARY KEY)")
	tx := begin(t, db)
	require.NoError(t, sqlite.Schema(t.Context(), tx))
	require.NoError(t, tx.Commit())

	store := open(t, path, nil)
	tx = begin(t, db)
	w := testkit.Do(testkit.Must(sqlite.New(tx)).Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1)))(t)
	before := testkit.Do(store.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "invoice", Limit: 10}))(t)
	require.NoError(t, tx.Commit())
	after := testkit.Do(store.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "invoice", Limit: 10}))(t)

	require.Empty(t, before.Messages)
	require.Len(t, after.Messages, 1)
	require.Equal(t, w.GlobalPosition, after.Messages[0].GlobalPosition)
	var version int
	require.NoError(t, db.QueryRow("PRAGMA user_version").Scan(&version))
	require.Equal(t, 41, version)
}

// SQLite may roll a whole transaction back by itself where a statement fails. A later write
// would be committed at once, although no caller commits.
func TestAfterAWriteThatFailedATransactionWritesNoMore(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	beside := open(t, path, nil)
	db := testkit.Do(sql.Open(faulty(t, func(statement string, on faultyConn) error {
		if strings.HasSuffix(statement, "[account-bad]") {
			_ = on.execute("ROLLBACK")
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		}
		return nil
	}), "file:"+path+"?_txlock=immediate"))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	tx := begin(t, db)
	driver := testkit.Must(sqlite.New(tx))
	require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), appendOf("account-bad", messagestore.NoStream, 1))), sqliteError(10|1<<8))

	require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), appendOf("account-2", messagestore.NoStream, 1))), sqliteError(10|1<<8))
	_ = tx.Rollback() // there is none any more
	require.Equal(t, messagestore.NoStream, testkit.Do(beside.Version(t.Context(), "account-2"))(t))
}
