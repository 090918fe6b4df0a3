package sqlite_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuetest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
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
			return testkit.Must(sqlite.New(begin(t, newDatabase(t))))
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
	driver := testkit.Do(sqlite.Open(t.Context(), path, config))(t)
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
	db := testkit.Do(sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(600000)"))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// begin returns a transaction that is rolled back with the test, if nothing else
// ends it. It does not have the test's context: database/sql would roll it back by
// itself, at some time while the test cleans up.
func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx := testkit.Do(db.BeginTx(context.WithoutCancel(t.Context()), nil))(t)
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
	testkit.Do(db.Exec(statement, args...))(t)
}

func TestContentIsKeptByteForByte(t *testing.T) {
	t.Parallel()
	driver := open(t, newFile(t), nil)
	data := json.RawMessage("{ \"b\":1.00,\n\"a\" : 1e2, \"b\": \"\\u00e9 é 😀\" }\n")
	a := appendOf("account-1", messagestore.NoStream, 1)
	a.Records[0].Data, a.Records[0].Metadata = data, json.RawMessage(`{"properties": {"n": 12345678901234567890.10}}`)
	testkit.Do(driver.Append(t.Context(), a))(t)

	m := testkit.Do(driver.Last(t.Context(), "account-1", ""))(t)

	require.Equal(t, string(data), string(m.Data))
	require.Equal(t, json.Number("12345678901234567890.10"), m.Metadata.Properties["n"])
}

// A filter that lets little through must not make one page look at everything.
func TestFilteredPageLooksAtABoundedPart(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	execute(t, database(t, path), `
		WITH RECURSIVE numbers (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
		INSERT INTO dibs_messages (stream_name, category, position, type, id, group_hash, time)
		SELECT 'account-1', 'account', n, 'Deposited', randomblob(16), 0, 0 FROM numbers`, messagestore.MaxReadMessages+500)
	wanted := appendOf("account-wanted", messagestore.NoStream, 1)
	wanted.Records[0].Type = "Wanted"
	w := testkit.Do(driver.Append(t.Context(), wanted))(t)
	q := messagestore.CategoryQuery{Category: "account", Limit: 10, Filter: messagestore.Filter{Types: []string{"Wanted"}}}

	first := testkit.Do(driver.ReadCategory(t.Context(), q))(t)
	q.From = first.Next
	second := testkit.Do(driver.ReadCategory(t.Context(), q))(t)

	require.Empty(t, first.Messages)
	require.True(t, first.More)
	require.EqualValues(t, messagestore.MaxReadMessages+1, first.Next)
	require.Len(t, second.Messages, 1)
	require.False(t, second.More)
	require.Equal(t, w.GlobalPosition+1, second.Next)
}

// However many messages there are, no statement goes through all of them, or through
// a whole stream to find its end, or sorts.
func TestStatementsGoByAnIndex(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	column := func(statement string, index int) []string { return columnOf(t, db, statement, index) }
	for name, statement := range sqlite.Statements {
		t.Run(name, func(t *testing.T) {
			for _, step := range column("EXPLAIN QUERY PLAN "+statement, 3) {
				if strings.HasPrefix(name, "category") && strings.Contains(step, "dibs_messages") {
					require.Contains(t, step, "INDEX dibs_messages_category (category=? AND ")
				}
				require.NotContains(t, step, "SCAN dibs_messages")
				require.NotContains(t, step, "TEMP B-TREE")
			}
			if name != "category_horizon" { // which aggregates a part that is bounded
				require.NotContains(t, column("EXPLAIN "+statement, 1), "AggStep", "max() goes through the whole stream")
			}
		})
	}
}

// However many items are open, no step of a take goes through all of them.
func TestStatementsOfATakeGoByAnIndex(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for name, statement := range sqlite.QueueStatements {
		t.Run(name, func(t *testing.T) {
			for _, step := range columnOf(t, db, "EXPLAIN QUERY PLAN "+statement, 3) {
				require.NotRegexp(t, `SCAN dibs|TEMP B-TREE|(open|sessions) USING PRIMARY KEY \(queue=\?\)`, step)
			}
		})
	}
}

// However many sessions there are, no call of a worker goes through all of them.
func TestATakeListsNoSessions(t *testing.T) {
	t.Parallel()
	var listed atomic.Int64
	path := newFile(t)
	driver := testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
		if strings.Contains(statement, "FROM dibs_queue_sessions") && !strings.Contains(statement, " AND ") && !strings.Contains(statement, "LIMIT 1") {
			listed.Add(1)
		}
		return nil
	}), path, nil))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	mail := queuing.Queue{Name: "mail", Category: "mail"}
	take := queuing.Take{Queue: mail, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Minute, Want: 1}
	testkit.Do(driver.Append(t.Context(), appendOf("mail-1", messagestore.NoStream, 1)))(t)

	item := testkit.Do(driver.QueueTake(t.Context(), take))(t).Items[0]
	testkit.Do(driver.QueueReady(t.Context(), mail))(t)
	testkit.Do(driver.QueueExtend(t.Context(), queuing.Extension{Queue: mail, Session: 1, Lease: time.Hour, Deliveries: []queuing.Delivery{item.Delivery()}}))(t)
	take.Finishes = []queuing.Finish{{Delivery: item.Delivery(), Kind: queuing.Complete}}
	testkit.Do(driver.QueueTake(t.Context(), take))(t)
	require.NoError(t, driver.QueueLeave(t.Context(), queuing.Leave{Queue: mail, Session: 1}))

	require.Zero(t, listed.Load())
	testkit.Do(driver.QueueStatus(t.Context(), mail))(t)
	require.NotZero(t, listed.Load(), "a status does, and so the test would see it")
}

func columnOf(t *testing.T, db *sql.DB, statement string, index int) (values []string) {
	t.Helper()
	rows := testkit.Do(db.Query(statement, make([]any, 10)...))(t)
	defer rows.Close()
	columns := testkit.Do(rows.Columns())(t)
	for rows.Next() {
		row := make([]any, len(columns))
		var value sql.NullString
		for i := range row {
			row[i] = new(any)
		}
		row[index] = &value
		require.NoError(t, rows.Scan(row...))
		values = append(values, value.String)
	}
	require.NoError(t, rows.Err())
	return values
}

// What is written to a file without a name is lost with the process.
func TestCheckFindsAFileThatIsGoneOrReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	driver := testkit.Do(sqlite.Open(t.Context(), path, nil))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	store := testkit.Must(messagestore.New(driver, nil))
	require.NoError(t, store.Check(t.Context()))

	require.NoError(t, os.Rename(path, path+".old"))
	require.ErrorContains(t, store.Check(t.Context()), "the file was there when it was opened, and is gone now")
	require.ErrorIs(t, store.CheckReading(t.Context()), os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.ErrorContains(t, store.Check(t.Context()), "another file is in the place of the one that was opened")
	require.NoError(t, os.Rename(path+".old", path))
	require.NoError(t, store.Check(t.Context()))
}

func TestCheckOfAClosedStore(t *testing.T) {
	t.Parallel()
	driver := testkit.Do(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil))(t)
	require.NoError(t, driver.Close())
	store := testkit.Must(messagestore.New(driver, nil))
	require.ErrorIs(t, store.Check(t.Context()), messagestore.ErrClosed)
	require.ErrorIs(t, store.CheckReading(t.Context()), messagestore.ErrClosed)
}

func TestCheckOverATransactionNeedsTheTables(t *testing.T) {
	t.Parallel()
	db := testkit.Do(sql.Open("sqlite", filepath.Join(t.TempDir(), "app.db")))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	tx := testkit.Do(db.BeginTx(t.Context(), nil))(t)
	defer func() { require.NoError(t, tx.Rollback()) }()
	store := testkit.Must(messagestore.New(testkit.Must(sqlite.New(tx)), nil))
	require.ErrorIs(t, store.Check(t.Context()), sqlite.ErrNoSchema)
	require.ErrorIs(t, store.CheckReading(t.Context()), sqlite.ErrNoSchema)
	require.NoError(t, sqlite.Schema(context.WithoutCancel(t.Context()), tx))
	require.NoError(t, store.Check(t.Context()))
}

func TestNilTransactionIsRefused(t *testing.T) {
	t.Parallel()
	_, err := sqlite.New(nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.EqualError(t, err, "sqlite: invalid transaction: must not be nil")
}

func TestQueuesOnSQLite(t *testing.T) {
	t.Parallel()
	var files sync.Map // by driver
	opened := func(t *testing.T) *sqlite.Driver {
		file := newFile(t)
		driver := open(t, file, nil)
		files.Store(driver, file)
		return driver
	}
	queuetest.Run(t, queuetest.Options{
		Open: func(t *testing.T) queuing.Driver { return opened(t) },
		OpenWithClock: func(t *testing.T) (queuing.Driver, func(time.Duration)) {
			driver, stood, ahead := opened(t), time.Now(), time.Duration(0)
			driver.SetClock(func() time.Time { return stood.Add(ahead) })
			return driver, func(by time.Duration) { ahead = by }
		},
		Begin: func(t *testing.T, driver queuing.Driver) (queuing.Driver, func() error, func() error) {
			file, _ := files.Load(driver)
			db, err := sql.Open("sqlite", "file:"+file.(string)+"?_txlock=immediate&_pragma=busy_timeout(10000)") //nolint:errcheck // so stored
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			tx := testkit.Do(db.BeginTx(t.Context(), nil))(t)
			return testkit.Must(sqlite.New(tx)), tx.Commit, tx.Rollback
		},
	})
}
