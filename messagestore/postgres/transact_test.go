package postgres_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

const (
	addSQL  = "insert into public.transact_counters values ($1, 1) on conflict (name) do update set n = transact_counters.n + 1"
	failSQL = "do $$ begin raise exception 'as a serialization failure' using errcode = '40001'; end $$"
)

func newCounters(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	testkit.Do(pool.Exec(t.Context(), "select pg_advisory_xact_lock(7); create table if not exists public.transact_counters (name text primary key, n bigint)"))(t)
}

func counted(pool *pgxpool.Pool) func(*testing.T, messagestore.Driver, string) int {
	return func(t *testing.T, _ messagestore.Driver, counter string) (n int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), "select coalesce(sum(n), 0) from public.transact_counters where name = $1", counter).Scan(&n))
		return n
	}
}

func ofPgx(open func(t *testing.T) messagestore.Driver, pool *pgxpool.Pool) storetest.TransactOptions[pgx.Tx] {
	return storetest.TransactOptions[pgx.Tx]{
		Open: open,
		Add: func(ctx context.Context, tx pgx.Tx, counter string) error {
			_, err := tx.Exec(ctx, addSQL, counter)
			return err
		},
		Count:    counted(pool),
		Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		Fail: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, failSQL)
			return err
		},
	}
}

func TestConformanceOfTransactions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	newCounters(t, pool)
	storetest.RunTransact(t, ofPgx(func(*testing.T) messagestore.Driver { return testkit.Must(postgres.New(pool, nil)) }, pool))
}

func TestConformanceOfTransactionsInAnotherSchema(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	newCounters(t, pool)
	storetest.RunTransact(t, ofPgx(func(*testing.T) messagestore.Driver {
		return testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
	}, pool))
}

func TestConformanceOfTransactionsThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	newCounters(t, pool)
	bouncer := pgtest.PgBouncer(t, pgtest.URL(t))
	through := pgtest.Connect(t, bouncer.URL)
	storetest.RunTransact(t, ofPgx(func(*testing.T) messagestore.Driver { return testkit.Must(postgres.New(through, nil)) }, pool))
}

func openSQL(t *testing.T, url string) *sql.DB {
	t.Helper()
	config := testkit.Do(pgx.ParseConfig(url))(t)
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(8)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestConformanceOfTransactionsOfASQLDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	newCounters(t, pool)
	db := openSQL(t, pgtest.URL(t))
	storetest.RunTransact(t, storetest.TransactOptions[*sql.Tx]{
		Open: func(*testing.T) messagestore.Driver { return testkit.Must(postgres.NewSQL(db, nil)) },
		Add: func(ctx context.Context, tx *sql.Tx, counter string) error {
			_, err := tx.ExecContext(ctx, addSQL, counter)
			return err
		},
		Count:    counted(pool),
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		Fail: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, failSQL)
			return err
		},
	})
}

func TestConformanceOverASQLDatabase(t *testing.T) {
	t.Parallel()
	testkit.TakesTurns(t, 0, 4)
	pgtest.Pool(t)
	db := openSQL(t, pgtest.URL(t))
	storetest.Run(t, storetest.Options{Open: func(*testing.T) messagestore.Driver { return testkit.Must(postgres.NewSQL(db, nil)) }})
}

// requireUndone runs f in a transaction over a pool of one connection, and requires that it commits
// nothing and that the connection is still usable.
func requireUndone(t *testing.T, want error, f func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	all := pgtest.Pool(t)
	newCounters(t, all)
	config := all.Config()
	config.MaxConns = 1
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	driver, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	a := appendOne(stream, messagestore.NoStream)
	transact := func(f func(ctx context.Context, tx pgx.Tx) error) error {
		_, err := driver.Transact(t.Context(), stream, func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
			testkit.Do(tx.Exec(ctx, addSQL, string(stream)))(t)
			return []messagestore.Append{a}, f(ctx, tx)
		})
		return err
	}

	err := transact(f)

	require.Error(t, err)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	if want != nil {
		require.ErrorIs(t, err, want)
	}
	require.Zero(t, counted(all)(t, nil, string(stream)))
	version, versionErr := driver.Version(t.Context(), stream)
	require.NoError(t, versionErr)
	require.Equal(t, messagestore.NoStream, version)
	require.NoError(t, transact(func(context.Context, pgx.Tx) error { return nil }))
	require.Equal(t, 1, counted(all)(t, nil, string(stream)))
	return err
}

// A call that needs a second connection would wait for the function, which waits for it.
func TestAFunctionWithTheOnlyConnectionIsToldSo(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	pool := testkit.Do(pgxpool.New(t.Context(), pgtest.URL(t)+"&pool_max_conns=1"))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	db := openSQL(t, pgtest.URL(t))
	db.SetMaxOpenConns(1)
	ofPool, ofConn, ofSQL := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(messagestore.New(testkit.Must(postgres.New(connect(t, pgtest.URL(t)), nil)), nil)), testkit.Must(messagestore.New(testkit.Must(postgres.NewSQL(db, nil)), nil))
	for name, c := range map[string]struct {
		store    *messagestore.Store
		transact func(ctx context.Context, f func(ctx context.Context) error) error
	}{
		"pool":         {ofPool, transactIn[pgx.Tx](t, ofPool)},
		"connection":   {ofConn, transactIn[pgx.Tx](t, ofConn)},
		"database/sql": {ofSQL, transactIn[*sql.Tx](t, ofSQL)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream := storetest.Category(t).Stream("1")
			for call, f := range map[string]func(ctx context.Context) error{
				"write": func(ctx context.Context) error {
					_, err := c.store.Write(ctx, stream, messagestore.AnyVersion, opened())
					return err
				},
				"write of two streams": func(ctx context.Context) error {
					_, err := c.store.WriteStreams(ctx, messagestore.To(stream, messagestore.AnyVersion, opened()), messagestore.To(stream.With("2"), messagestore.AnyVersion, opened()))
					return err
				},
				"transact": func(ctx context.Context) error {
					return c.transact(ctx, func(context.Context) error { return nil })
				},
				"check": c.store.Check,
				"epoch": func(ctx context.Context) error {
					_, err := c.store.Epoch(ctx)
					return err
				},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
				defer cancel()

				err := c.transact(ctx, f)

				require.ErrorContains(t, err, "the transaction of this function has the only connection, and the call needs another: return the messages from the function", call)
				require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, call)
				require.NoError(t, f(ctx), "%s, after the function", call)
			}
		})
	}
}

// The store names the call, and the driver does not name it once more.
func TestTheErrorOfATransactionNamesItOnce(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil))
	transactional := testkit.Do(messagestore.Transactional[pgx.Tx](store))(t)
	for _, ends := range []string{"select 1/0", "commit"} {
		_, err := transactional.Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
			_, _ = tx.Exec(ctx, ends)
			return nil, nil
		})

		require.ErrorContains(t, err, "transact: ")
		require.Equal(t, 1, strings.Count(err.Error(), "transact: "), err)
	}
}

// A write waits behind one that waits for a connection.
func TestAWriteThatLeavesBehindOneWithoutAConnectionIsToldSo(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	pool := testkit.Do(pgxpool.New(t.Context(), pgtest.URL(t)+"&pool_max_conns=1"))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	driver := testkit.Must(postgres.New(pool, nil))
	store := testkit.Must(messagestore.New(driver, nil))
	held := testkit.Do(pool.Acquire(t.Context()))(t)
	first, second := make(chan error, 1), make(chan error, 1)
	write := func(ctx context.Context, ended chan error) {
		_, err := store.Write(ctx, stream, messagestore.AnyVersion, opened())
		ended <- err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	go write(t.Context(), first)
	testkit.AwaitTrue(t, "a write that waits for a connection", func() bool { return driver.Busy(stream.Category()) })
	go write(ctx, second)
	testkit.AwaitTrue(t, "a write behind it", func() bool { return driver.Waiting() == 1 })
	cancel()
	err := testkit.Receive(t, "the end of the write behind it", second)
	held.Release()

	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "all connections of the pool are in use (1 of 1); if a transaction of yours has one, use a store over it")
	require.NoError(t, testkit.Receive(t, "the end of the first write", first))
}

// A connection has one call at a time, and a transaction too.
func TestACallThatWaitsForItsTurnIsToldForWhat(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	conn := connect(t, pgtest.URL(t))
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(conn, nil)), nil))
	stream := storetest.Category(t).Stream("1")

	err := transactOf[pgx.Tx](t, store)(func(context.Context) error {
		testkit.Await(t, "a call that waits", func() (bool, any) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err := store.Version(ctx, stream)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			const told = "another call has the connection; if it is a Transact of yours, use a store over its transaction"
			return strings.Contains(err.Error(), told), err
		})
		return nil
	})

	require.NoError(t, err)
}

// As many functions as the pool has connections read at the same time, each during its open
// transaction.
func TestReadsOfAFunctionTakeNoSecondConnection(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	for name, open := range map[string]func(t *testing.T) (store *messagestore.Store, transact func(f func(ctx context.Context) error) error){
		"pgx": func(t *testing.T) (*messagestore.Store, func(f func(ctx context.Context) error) error) {
			t.Helper()
			pool := testkit.Do(pgxpool.New(t.Context(), pgtest.URL(t)+"&pool_max_conns=1"))(t)
			testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
			store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
			return store, transactOf[pgx.Tx](t, store)
		},
		"database/sql": func(t *testing.T) (*messagestore.Store, func(f func(ctx context.Context) error) error) {
			t.Helper()
			db := openSQL(t, pgtest.URL(t))
			db.SetMaxOpenConns(1)
			store := testkit.Must(messagestore.New(testkit.Must(postgres.NewSQL(db, nil)), nil))
			return store, transactOf[*sql.Tx](t, store)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, transact := open(t)
			stream := storetest.Category(t).Stream("1")
			testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, messagestore.Raw{Type: "T", Data: []byte("{}")}))(t)
			var kept context.Context

			err := transact(func(ctx context.Context) error {
				kept = ctx //nolint:fatcontext // one that outlives its function is what is tested
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				version, err := store.Version(ctx, stream)
				require.Zero(t, version)
				_, lastErr := store.Last(ctx, stream)
				for m, readErr := range store.ReadStream(ctx, stream, 0) {
					require.NoError(t, readErr)
					require.Equal(t, stream, m.Stream)
				}
				return errors.Join(err, lastErr)
			})

			require.NoError(t, err)
			_, err = store.Version(kept, stream) // the connection is another's by now
			require.NoError(t, err)
		})
	}
}

func transactOf[Tx any](t *testing.T, store *messagestore.Store) func(f func(ctx context.Context) error) error {
	t.Helper()
	transact := transactIn[Tx](t, store)
	return func(f func(ctx context.Context) error) error { return transact(t.Context(), f) }
}

func transactIn[Tx any](t *testing.T, store *messagestore.Store) func(ctx context.Context, f func(ctx context.Context) error) error {
	t.Helper()
	txs := testkit.Do(messagestore.Transactional[Tx](store))(t)
	return func(ctx context.Context, f func(ctx context.Context) error) error {
		_, err := txs.Transact(ctx, func(ctx context.Context, _ Tx) ([]messagestore.StreamWrite, error) {
			return nil, f(ctx)
		})
		return err
	}
}

func TestTransactionWithRowsLeftOpenIsRolledBack(t *testing.T) {
	t.Parallel()
	err := requireUndone(t, nil, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Query(ctx, "select generate_series(1, 100000)") //nolint:rowserrcheck // the rows are left open
		return err
	})
	require.ErrorContains(t, err, "left rows of a query open")
}

func TestTransactionThatAStatementAbortedIsRolledBack(t *testing.T) {
	t.Parallel()
	err := requireUndone(t, nil, func(ctx context.Context, tx pgx.Tx) error {
		require.Error(t, testkit.ErrorOf(tx.Exec(ctx, "select 1/0")))
		return nil
	})
	require.ErrorContains(t, err, "aborts the transaction")
}

func TestTransactionThatIsRolledBackByItsTextWritesNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"rollback", "rollback; begin", "rollback and chain"} {
		_ = requireUndone(t, messagestore.ErrTransactionEnded, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, text)
			return err
		})
	}
}

func TestTransactionThatIsCommittedByItsTextWritesNoMessage(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := testkit.Must(postgres.New(pool, nil))
	for _, text := range []string{"commit", "commit; begin", "commit and chain"} {
		stream := storetest.Category(t).Stream("1")
		_, err := driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
			_, err := tx.Exec(ctx, text)
			return []messagestore.Append{appendOne(stream, messagestore.NoStream)}, err
		})
		require.ErrorIs(t, err, messagestore.ErrTransactionEnded, text)
		require.Equal(t, messagestore.NoStream, testkit.Do(driver.Version(t.Context(), stream))(t), text)
	}
}

func TestTransactionHasSavepointsAndChoosesItsLevel(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	newCounters(t, pool)
	driver, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	testkit.Do(driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		testkit.Do(tx.Exec(ctx, "set transaction isolation level serializable"))(t)
		require.ErrorContains(t, pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			testkit.Do(inner.Exec(ctx, addSQL, string(stream)))(t)
			_, err := inner.Exec(ctx, "select 1/0")
			return err
		}), "division by zero")
		require.NoError(t, pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			_, err := inner.Exec(ctx, addSQL, string(stream))
			return err
		}))
		objects := tx.LargeObjects()
		testkit.Do(objects.Create(ctx, 0))(t)
		return []messagestore.Append{appendOne(stream, messagestore.NoStream)}, nil
	}))(t)
	require.Equal(t, 1, counted(pool)(t, nil, string(stream)))
}

// The caller's own DISCARD takes away what was prepared, before the transaction and within.
func TestATransactionGoesOnWithoutWhatWasPrepared(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name            string
		before, between string
	}{
		{"gone before BEGIN", "discard all", "select"},
		{"gone before the append", "select", "deallocate all"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool, _ := pgtest.PoolOfOne(t, func(*pgxpool.Config) {})
			d, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
			transact := func(between string) error {
				return retried(func() error {
					_, err := d.Transact(t.Context(), stream, func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
						_, err := tx.Exec(ctx, between)
						return []messagestore.Append{appendOne(stream, messagestore.AnyVersion)}, err
					})
					return err
				})
			}
			require.NoError(t, transact("select"))
			testkit.Do(pool.Exec(t.Context(), test.before))(t)
			require.NoError(t, transact(test.between))
			require.NoError(t, transact(test.between))
			require.EqualValues(t, 2, testkit.Do(d.Version(t.Context(), stream))(t))
		})
	}
}

// retried calls f again, as messagestore does, after an error that says so.
func retried(f func() error) (err error) {
	for range 3 {
		if err = f(); !errors.As(err, new(*calling.RetryableError)) {
			return err
		}
	}
	return err
}

func TestTransactIsNotSupportedInATransaction(t *testing.T) {
	t.Parallel()
	tx := testkit.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
	_, err := messagestore.Transactional[pgx.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)))
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	_, err = messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil)))
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

// A foreign driver is any but pgx's.
type foreign struct{}

func (foreign) Connect(context.Context) (sqldriver.Conn, error) { return foreignConn{}, nil }
func (foreign) Driver() sqldriver.Driver                        { return nil }

type foreignConn struct{ sqldriver.Conn }

func (foreignConn) Close() error { return nil }

func TestASQLDatabaseOfAnotherDriverIsNotSupported(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(foreign{})
	defer db.Close()
	driver := testkit.Must(postgres.NewSQL(db, nil))
	require.ErrorIs(t, testkit.ErrorOf(driver.Version(t.Context(), "account-1")), messagestore.ErrNotSupported)
	_, err := driver.Transact(t.Context(), "", func(context.Context, *sql.Tx, *messagestore.Message) ([]messagestore.Append, error) {
		t.Error("it was called")
		return nil, nil
	})
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

// A function that goes on after the end of its context loses its connection, and not the pool's
// place.
func TestAFunctionThatNeverReturnsKeepsNoConnection(t *testing.T) {
	t.Parallel()
	pool, _ := pgtest.PoolOfOne(t, nil)
	newCounters(t, pool)
	driver, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	ctx, cancel := context.WithCancel(t.Context())
	began, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := driver.Transact(ctx, "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
			_, err := tx.Exec(ctx, addSQL, string(stream))
			close(began)
			<-end
			return []messagestore.Append{appendOne(stream, messagestore.NoStream)}, err
		})
		ended <- err
	}()
	<-began
	cancel()

	limited, stop := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer stop()
	version, err := driver.Version(limited, stream)
	require.NoError(t, err, "there is room for another connection")
	require.Equal(t, messagestore.NoStream, version)
	close(end)
	require.ErrorIs(t, testkit.Receive(t, "the end of the transaction", ended), context.Canceled)
	version = testkit.Do(driver.Version(limited, stream))(t)
	require.Equal(t, messagestore.NoStream, version)
}

// adding leaves a statement unchanged, and adds one to a counter on the connection that it gets.
type adding string

func (a adding) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	_, err := conn.Exec(ctx, addSQL, string(a))
	return sql, []any{string(a)}, err
}

// beginnings are the possible first actions of a function. Each adds one to a counter.
var beginnings = map[string]struct {
	trips int // with those of an append and COMMIT
	add   func(ctx context.Context, tx pgx.Tx, counter string) error
}{
	"Exec": {2, func(ctx context.Context, tx pgx.Tx, counter string) error {
		_, err := tx.Exec(ctx, addSQL, counter)
		return err
	}},
	"Exec with names": {2, func(ctx context.Context, tx pgx.Tx, counter string) error {
		_, err := tx.Exec(ctx, "insert into public.transact_counters values (@name, 1) on conflict (name) do update set n = transact_counters.n + 1",
			pgx.NamedArgs{"name": counter})
		return err
	}},
	"Exec of several": {3, func(ctx context.Context, tx pgx.Tx, counter string) error {
		_, err := tx.Exec(ctx, "select 1; insert into public.transact_counters values ('"+counter+"', 1) on conflict (name) do update set n = transact_counters.n + 1")
		return err
	}},
	"Exec in a mode": {3, func(ctx context.Context, tx pgx.Tx, counter string) error {
		_, err := tx.Exec(ctx, addSQL, pgx.QueryExecModeExec, counter)
		return err
	}},
	"Exec of a rewriter": {4, func(ctx context.Context, tx pgx.Tx, counter string) error {
		_, err := tx.Exec(ctx, "select $1::text", adding(counter))
		return err
	}},
	"Query": {2, func(ctx context.Context, tx pgx.Tx, counter string) error {
		rows, _ := tx.Query(ctx, addSQL+" returning n", counter)
		_, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		return err
	}},
	"Query that is closed": {2, func(ctx context.Context, tx pgx.Tx, counter string) error {
		rows, err := tx.Query(ctx, addSQL+" returning n", counter)
		if err != nil {
			return err
		}
		rows.Next()
		rows.Close()
		rows.Close()
		return rows.Err()
	}},
	"QueryRow": {2, func(ctx context.Context, tx pgx.Tx, counter string) (err error) {
		var n int
		return tx.QueryRow(ctx, addSQL+" returning n", counter).Scan(&n)
	}},
	"QueryRow of none": {2, func(ctx context.Context, tx pgx.Tx, counter string) (err error) {
		if err := tx.QueryRow(ctx, addSQL, counter).Scan(); !errors.Is(err, pgx.ErrNoRows) {
			return errors.New("there is a row")
		}
		return nil
	}},
	"SendBatch": {3, func(ctx context.Context, tx pgx.Tx, counter string) error {
		b := &pgx.Batch{}
		b.Queue(addSQL, counter)
		return tx.SendBatch(ctx, b).Close()
	}},
	"Begin": {5, func(ctx context.Context, tx pgx.Tx, counter string) error {
		return pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			_, err := inner.Exec(ctx, addSQL, counter)
			return err
		})
	}},
	"Conn": {3, func(ctx context.Context, tx pgx.Tx, counter string) error {
		_, err := tx.Conn().Exec(ctx, addSQL, counter)
		return err
	}},
	"Prepare": {3, func(ctx context.Context, tx pgx.Tx, counter string) error {
		if _, err := tx.Prepare(ctx, addSQL, addSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, addSQL, counter)
		return err
	}},
	"CopyFrom": {4, func(ctx context.Context, tx pgx.Tx, counter string) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"public", "transact_copies"}, []string{"name"}, pgx.CopyFromRows([][]any{{counter}}))
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, addSQL, counter)
		return err
	}},
	"LargeObjects": {5, func(ctx context.Context, tx pgx.Tx, counter string) error {
		objects := tx.LargeObjects()
		if _, err := objects.Create(ctx, 0); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, addSQL, counter)
		return err
	}},
}

// The first action of a function is always in the transaction: it is committed with the message,
// and rolled back with an error. A statement with arguments begins the transaction in its own round
// trip.
func TestATransactionBeginsWithWhateverComesFirst(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	testkit.Do(all.Exec(t.Context(), "select pg_advisory_xact_lock(7); create table if not exists public.transact_copies (name text)"))(t)
	for name, first := range beginnings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, pool := proxied(t)
			driver, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
			transact := func(failure error) error {
				_, err := driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
					if err := first.add(ctx, tx, string(stream)); err != nil {
						return nil, err
					}
					return []messagestore.Append{appendOne(stream, messagestore.AnyVersion)}, failure
				})
				return err
			}
			wrong := errors.New("wrong")

			require.NoError(t, transact(nil))
			require.ErrorIs(t, transact(wrong), wrong)
			require.Equal(t, 1, counted(all)(t, nil, string(stream)))
			stop := proxy.Record()
			require.NoError(t, transact(nil))
			var trips int
			for _, m := range stop() {
				if m.From == testserver.FromServer && m.Name == "ReadyForQuery" {
					trips++
				}
			}
			require.Equal(t, first.trips, trips)
			require.Equal(t, 2, counted(all)(t, nil, string(stream)))
			require.EqualValues(t, 1, testkit.Do(driver.Version(t.Context(), stream))(t))
		})
	}
}

// A function that does nothing costs nothing, and its connection goes back unchanged.
func TestATransactionOfNothingSendsNothing(t *testing.T) {
	t.Parallel()
	proxy, pool := proxied(t)
	driver := testkit.Must(postgres.New(pool, nil))
	nothing := func(context.Context, pgx.Tx, *messagestore.Message) ([]messagestore.Append, error) { return nil, nil }
	testkit.Do(driver.Transact(t.Context(), "", nothing))(t)
	stop := proxy.Record()

	testkit.Do(driver.Transact(t.Context(), "", nothing))(t)

	require.Empty(t, stop())
	ctx, cancel := context.WithCancel(t.Context())
	_, err := driver.Transact(ctx, "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		cancel()
		_, err := tx.Exec(ctx, "select $1::int", 1)
		return nil, err
	})
	require.ErrorIs(t, err, context.Canceled)
	testkit.Do(driver.Version(t.Context(), storetest.Category(t).Stream("1")))(t)
}

// A first statement that fails aborts the transaction, as any other does, also where its text does
// not parse.
func TestAFirstStatementThatFailsAbortsTheTransaction(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	for _, sql := range []string{"select 1/$1::int", "selekt $1", "select $1::int from nowhere", "insert into public.transact_counters values (null, $1)"} {
		_, pool := proxied(t)
		driver, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
		var refused *pgconn.PgError
		_, err := driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
			require.Error(t, testkit.ErrorOf(tx.Exec(ctx, sql, 0)), sql)
			require.ErrorAs(t, testkit.ErrorOf(tx.Exec(ctx, addSQL, string(stream))), &refused)
			return []messagestore.Append{appendOne(stream, messagestore.NoStream)}, nil
		})
		require.ErrorContains(t, err, "aborts the transaction", sql)
		require.Equal(t, "25P02", refused.Code, sql)
		require.Zero(t, counted(all)(t, nil, string(stream)))
	}
}

// A dead connection of the pool shows in the function's first statement. It does not count as a
// failure of the function.
func TestAConnectionThatWasGoneIsNoFailureOfTheFunction(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	for name, first := range beginnings {
		for _, swallows := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, pool := proxied(t)
				store, stream := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), storetest.Category(t).Stream("1")
				transactional := testkit.Do(messagestore.Transactional[pgx.Tx](store))(t)
				var pid, calls int
				require.NoError(t, pool.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid))
				testkit.Do(transactional.Transact(t.Context(), func(context.Context, pgx.Tx) ([]messagestore.StreamWrite, error) {
					return nil, nil // it is checked, and has the driver's statements
				}))(t)
				testkit.Do(all.Exec(t.Context(), "select pg_terminate_backend($1, 60000)", pid))(t)

				testkit.Do(transactional.Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
					calls++
					err := first.add(ctx, tx, string(stream))
					if swallows {
						err = nil
					}
					return []messagestore.StreamWrite{messagestore.To(stream, messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte("{}")})}, err
				}))(t)

				require.Equal(t, 1, counted(all)(t, nil, string(stream)))
				require.LessOrEqual(t, calls, 2)
			})
		}
	}
}

// So it is over a *sql.DB, whose transaction begins before the function is called.
func TestAConnectionOfADatabaseThatWasGoneIsNoFailure(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	for _, first := range []messagestore.StreamName{"", "none-1"} {
		db := testkit.Do(sql.Open("pgx", pgtest.URL(t)))(t)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		db.SetMaxOpenConns(1)
		store, stream := testkit.Must(messagestore.New(testkit.Must(postgres.NewSQL(db, nil)), nil)), storetest.Category(t).Stream("1")
		transactional := testkit.Do(messagestore.Transactional[*sql.Tx](store))(t)
		calls := 0
		add := func(ctx context.Context, _ *sql.Tx, _ *messagestore.Message) ([]messagestore.StreamWrite, error) {
			calls++
			return []messagestore.StreamWrite{messagestore.To(stream, messagestore.AnyVersion, messagestore.Raw{Type: "Opened", Data: []byte("{}")})}, nil
		}
		_, err := transactFrom(t.Context(), transactional, first, add) // it is checked, and has the driver's statements
		require.NoError(t, err)
		var pid int
		require.NoError(t, db.QueryRowContext(t.Context(), "select pg_backend_pid()").Scan(&pid))
		testkit.Do(all.Exec(t.Context(), "select pg_terminate_backend($1, 60000)", pid))(t)

		testkit.Do(transactFrom(t.Context(), transactional, first, add))(t)

		require.Equal(t, 2, calls)
		require.EqualValues(t, 1, testkit.Do(store.Version(t.Context(), stream))(t))
	}
}

// A first statement that cannot be encoded is not sent, and the connection is lost. The function is
// called once more, with BEGIN in a separate round trip: then it may go on after the error.
func TestAFirstStatementThatCannotBeEncodedFailsAlone(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	for _, wrong := range [][]any{{1, "one too many"}, {make(chan int)}} {
		for _, goesOn := range []bool{false, true} {
			_, pool := proxied(t)
			store, stream := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), storetest.Category(t).Stream("1")
			transactional := testkit.Do(messagestore.Transactional[pgx.Tx](store))(t)
			calls := 0
			_, err := transactional.Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
				calls++
				_, err := tx.Exec(ctx, "select $1::int", wrong...)
				require.Error(t, err)
				if !goesOn {
					return nil, err
				}
				_, err = tx.Exec(ctx, addSQL, string(stream))
				return []messagestore.StreamWrite{messagestore.To(stream, messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte("{}")})}, err
			})
			require.LessOrEqual(t, calls, 2, wrong)
			if goesOn {
				require.NoError(t, err, wrong)
				require.Equal(t, 1, counted(all)(t, nil, string(stream)), wrong)
				continue
			}
			require.Error(t, err)
			require.NotContains(t, err.Error(), "connection", wrong)
			require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		}
	}
}

// If the rows of the first statement are left open, the error is the same as for any other
// statement, and the function's own error is returned.
func TestRowsOfTheFirstStatementThatAreLeftOpen(t *testing.T) {
	t.Parallel()
	for _, first := range []messagestore.StreamName{"", "none-1"} {
		for _, wrong := range []error{nil, errors.New("wrong")} {
			_, pool := proxied(t)
			driver := testkit.Must(postgres.New(pool, nil))
			_, err := driver.Transact(t.Context(), first, func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
				rows, err := tx.Query(ctx, "select generate_series(1, $1::int)", 3)
				require.NoError(t, err)
				require.True(t, rows.Next())
				require.NoError(t, rows.Err())
				return nil, wrong
			})
			require.NotErrorIs(t, err, messagestore.ErrTransactionEnded)
			if wrong != nil {
				require.Equal(t, wrong, err)
			} else {
				require.ErrorContains(t, err, "left rows of a query open")
			}
		}
	}
}

// A function's reads through the store use its transaction's connection.
func TestAReadBeginsTheTransaction(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	_, pool := proxied(t)
	driver := testkit.Must(postgres.New(pool, nil))
	pid := pgtest.Value[uint32](t, pool, "select pg_backend_pid()")
	testkit.Do(driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		testkit.Do(driver.Version(ctx, storetest.Category(t).Stream("1")))(t)
		require.Equal(t, "idle in transaction", pgtest.Value[string](t, all, "select state from pg_stat_activity where pid = $1", pid))
		require.Equal(t, pid, tx.Conn().PgConn().PID())
		return nil, nil
	}))(t)
}

// A context of the function's own that ends in its first statement loses the connection. That is
// the function's doing, and it is not called again, also if it does not tell.
func TestAFunctionThatLeavesItsFirstStatementIsCalledOnce(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	for _, first := range []messagestore.StreamName{"", "none-1"} {
		_, pool := proxied(t)
		store, stream := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), storetest.Category(t).Stream("1")
		transactional := testkit.Do(messagestore.Transactional[pgx.Tx](store))(t)
		calls := 0
		_, err := transactFrom(t.Context(), transactional, first, func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.StreamWrite, error) {
			calls++
			over, cancel := context.WithCancel(ctx)
			cancel()
			_, err := tx.Exec(over, addSQL, string(stream)) // is not sent
			require.ErrorIs(t, err, context.Canceled)
			statement := "select pg_sleep($1::int) -- " + string(stream)
			sent, leave := context.WithCancel(ctx)
			var watching sync.WaitGroup
			watching.Go(func() {
				defer leave()
				testkit.Await(t, "the statement is at work", func() (is bool, _ any) {
					err := all.QueryRow(t.Context(), "select exists (select from pg_stat_activity where query = $1 and state = 'active')", statement).Scan(&is)
					return is, err
				})
			})
			_, err = tx.Exec(sent, statement, 60)
			watching.Wait()
			require.Error(t, err)
			require.Error(t, testkit.ErrorOf(tx.Exec(ctx, addSQL, string(stream))))
			return []messagestore.StreamWrite{messagestore.To(stream, messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte("{}")})}, nil
		})
		require.ErrorContains(t, err, "lost before COMMIT", first)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.Equal(t, 1, calls, first)
		require.Zero(t, counted(all)(t, nil, string(stream)))
	}
}

// transactFrom calls TransactFrom, or Transact for a first of "".
func transactFrom[Tx any](
	ctx context.Context, txs *messagestore.TxStore[Tx], first messagestore.StreamName,
	f func(context.Context, Tx, *messagestore.Message) ([]messagestore.StreamWrite, error),
) ([]messagestore.Written, error) {
	if first != "" {
		return txs.TransactFrom(ctx, first, f)
	}
	return txs.Transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) { return f(ctx, tx, nil) })
}
