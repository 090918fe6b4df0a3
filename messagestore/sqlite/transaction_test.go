package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

func TestMessageAndTableCommitTogether(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	execute(t, db, "CREATE TABLE invoices (id TEXT PRIMARY KEY, paid INTEGER NOT NULL)")
	pay := func(id string) *sql.Tx {
		tx := begin(t, db)
		execute(t, tx, "INSERT INTO invoices VALUES (?, 1)", id)
		_, err := must.New(sqlite.New(tx)).Append(t.Context(), appendOf(messagestore.StreamName("invoice-"+id), messagestore.NoStream, 2))
		require.NoError(t, err)
		return tx
	}

	require.NoError(t, pay("1").Commit())
	require.NoError(t, pay("2").Rollback())

	tx := begin(t, db)
	version, err := must.New(sqlite.New(tx)).Version(t.Context(), "invoice-1")
	require.NoError(t, err)
	require.EqualValues(t, 1, version)
	version, err = must.New(sqlite.New(tx)).Version(t.Context(), "invoice-2")
	require.NoError(t, err)
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
	driver := must.New(sqlite.New(tx))
	first := appendOf("invoice-1", messagestore.NoStream, 1)
	_, err := driver.Append(t.Context(), first)
	require.NoError(t, err)
	execute(t, tx, "INSERT INTO invoices VALUES ('before')")

	_, err = driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	_, err = driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 3))
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	second := appendOf("invoice-2", messagestore.NoStream, 2)
	second.Records[1].ID = first.Records[0].ID // the first message goes in before the second is refused
	_, err = driver.Append(t.Context(), second)
	require.ErrorIs(t, err, messagestore.ErrIDConflict)

	execute(t, tx, "INSERT INTO invoices VALUES ('after')")
	_, err = driver.Append(t.Context(), appendOf("invoice-1", 0, 1))
	require.NoError(t, err)
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
	driver := must.New(sqlite.New(tx))
	_, err := driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err = driver.Append(ctx, appendOf("invoice-1", 0, 1))
	require.ErrorIs(t, err, context.Canceled)

	_, err = driver.Append(t.Context(), appendOf("invoice-1", 0, 1))
	require.NoError(t, err)
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
	version, err := must.New(sqlite.New(tx)).Version(t.Context(), "invoice-1")
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
	_, err = beside.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))
	require.NoError(t, err)

	_, err = must.New(sqlite.New(tx)).Append(t.Context(), appendOf("invoice-1", version, 1))

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
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	tx := begin(t, db)
	_, err = beside.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))
	require.NoError(t, err)

	_, err = must.New(sqlite.New(tx)).Append(t.Context(), appendOf("invoice-1", 0, 1))
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = beside.Append(ctx, appendOf("invoice-1", 1, 1))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, tx.Commit())
	_, err = beside.Append(t.Context(), appendOf("invoice-1", 1, 1))
	require.NoError(t, err)
}

func TestDatabaseWithoutTablesSaysHowToCreateThem(t *testing.T) {
	t.Parallel()
	tx := begin(t, database(t, newFile(t)))
	driver := must.New(sqlite.New(tx))

	_, err := driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))
	require.ErrorIs(t, err, sqlite.ErrNoSchema)
	_, err = driver.Version(t.Context(), "invoice-1")
	require.ErrorIs(t, err, sqlite.ErrNoSchema)

	require.NoError(t, sqlite.Schema(t.Context(), tx))
	require.NoError(t, sqlite.Schema(t.Context(), tx), "again")
	_, err = driver.Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))
	require.NoError(t, err)
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
	w, err := must.New(sqlite.New(tx)).Append(t.Context(), appendOf("invoice-1", messagestore.NoStream, 1))
	require.NoError(t, err)
	before, err := store.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "invoice", Limit: 10})
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	after, err := store.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "invoice", Limit: 10})
	require.NoError(t, err)

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
	db, err := sql.Open(faulty(t, func(statement string, on faultyConn) error {
		if strings.HasSuffix(statement, "[account-bad]") {
			_ = on.execute("ROLLBACK")
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		}
		return nil
	}), "file:"+path+"?_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	tx := begin(t, db)
	driver := must.New(sqlite.New(tx))
	_, err = driver.Append(t.Context(), appendOf("account-bad", messagestore.NoStream, 1))
	require.ErrorIs(t, err, sqliteError(10|1<<8))

	_, err = driver.Append(t.Context(), appendOf("account-2", messagestore.NoStream, 1))

	require.ErrorIs(t, err, sqliteError(10|1<<8))
	_ = tx.Rollback() // there is none any more
	version, err := beside.Version(t.Context(), "account-2")
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
}
