package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// adding rewrites a statement to itself, and adds one to a counter by the connection that it is
// given.
type adding string

func (a adding) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	_, err := conn.Exec(ctx, addSQL, string(a))
	return sql, []any{string(a)}, err
}

// beginnings are what a function may do first. Each adds one to a counter.
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

// Whatever a function does first is of the transaction: it is committed with the message, and
// rolled back with an error. What has arguments begins it in its own round trip.
func TestATransactionBeginsWithWhateverComesFirst(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	must.Do(all.Exec(t.Context(), "select pg_advisory_xact_lock(7); create table if not exists public.transact_copies (name text)"))(t)
	for name, first := range beginnings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, pool := proxied(t)
			driver, stream := must.New(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
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
				if m.From == pgproxy.Server && m.Name == "ReadyForQuery" {
					trips++
				}
			}
			require.Equal(t, first.trips, trips)
			require.Equal(t, 2, counted(all)(t, nil, string(stream)))
			require.EqualValues(t, 1, must.Do(driver.Version(t.Context(), stream))(t))
		})
	}
}

// A function that does nothing costs nothing, and its connection goes back as it was.
func TestATransactionOfNothingSendsNothing(t *testing.T) {
	t.Parallel()
	proxy, pool := proxied(t)
	driver := must.New(postgres.New(pool, nil))
	nothing := func(context.Context, pgx.Tx, *messagestore.Message) ([]messagestore.Append, error) { return nil, nil }
	must.Do(driver.Transact(t.Context(), "", nothing))(t)
	stop := proxy.Record()

	must.Do(driver.Transact(t.Context(), "", nothing))(t)

	require.Empty(t, stop())
	ctx, cancel := context.WithCancel(t.Context())
	_, err := driver.Transact(ctx, "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		cancel()
		_, err := tx.Exec(ctx, "select $1::int", 1)
		return nil, err
	})
	require.ErrorIs(t, err, context.Canceled)
	must.Do(driver.Version(t.Context(), storetest.Category(t).Stream("1")))(t)
}

// A first statement that fails aborts the transaction, as any other does, also where its text does
// not parse.
func TestAFirstStatementThatFailsAbortsTheTransaction(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	for _, sql := range []string{"select 1/$1::int", "selekt $1", "select $1::int from nowhere", "insert into public.transact_counters values (null, $1)"} {
		_, pool := proxied(t)
		driver, stream := must.New(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
		var refused *pgconn.PgError
		_, err := driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
			require.Error(t, must.ErrorOf(tx.Exec(ctx, sql, 0)), sql)
			require.ErrorAs(t, must.ErrorOf(tx.Exec(ctx, addSQL, string(stream))), &refused)
			return []messagestore.Append{appendOne(stream, messagestore.NoStream)}, nil
		})
		require.ErrorContains(t, err, "aborts the transaction", sql)
		require.Equal(t, "25P02", refused.Code, sql)
		require.Zero(t, counted(all)(t, nil, string(stream)))
	}
}

// A connection of the pool that is gone shows in the function's first statement. That is no failure
// of the function's.
func TestAConnectionThatWasGoneIsNoFailureOfTheFunction(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	for name, first := range beginnings {
		for _, swallows := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, pool := proxied(t)
				store, stream := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil)), storetest.Category(t).Stream("1")
				transactional := must.Do(messagestore.Transactional[pgx.Tx](store))(t)
				var pid, calls int
				require.NoError(t, pool.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid))
				must.Do(transactional.Transact(t.Context(), func(context.Context, pgx.Tx) ([]messagestore.StreamWrite, error) {
					return nil, nil // it is checked, and has the driver's statements
				}))(t)
				must.Do(all.Exec(t.Context(), "select pg_terminate_backend($1, 60000)", pid))(t)

				must.Do(transactional.Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
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
		db := must.Do(sql.Open("pgx", pgtest.URL(t)))(t)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		db.SetMaxOpenConns(1)
		store, stream := must.New(messagestore.New(must.New(postgres.NewSQL(db, nil)), nil)), storetest.Category(t).Stream("1")
		transactional := must.Do(messagestore.Transactional[*sql.Tx](store))(t)
		calls := 0
		add := func(ctx context.Context, _ *sql.Tx, _ *messagestore.Message) ([]messagestore.StreamWrite, error) {
			calls++
			return []messagestore.StreamWrite{messagestore.To(stream, messagestore.AnyVersion, messagestore.Raw{Type: "Opened", Data: []byte("{}")})}, nil
		}
		_, err := transactFrom(t.Context(), transactional, first, add) // it is checked, and has the driver's statements
		require.NoError(t, err)
		var pid int
		require.NoError(t, db.QueryRowContext(t.Context(), "select pg_backend_pid()").Scan(&pid))
		must.Do(all.Exec(t.Context(), "select pg_terminate_backend($1, 60000)", pid))(t)

		must.Do(transactFrom(t.Context(), transactional, first, add))(t)

		require.Equal(t, 2, calls)
		require.EqualValues(t, 1, must.Do(store.Version(t.Context(), stream))(t))
	}
}

// A first statement that cannot be encoded is not sent, and costs the connection. The function is
// called once more, as if it had begun with anything else: it may go on after the error, and
// another connection is of no use to it.
func TestAFirstStatementThatCannotBeEncodedFailsAlone(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	newCounters(t, all)
	for _, wrong := range [][]any{{1, "one too many"}, {make(chan int)}} {
		for _, goesOn := range []bool{false, true} {
			_, pool := proxied(t)
			store, stream := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil)), storetest.Category(t).Stream("1")
			transactional := must.Do(messagestore.Transactional[pgx.Tx](store))(t)
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

// Rows of the first statement that are left open are told as those of any other, and the function's
// error is its own.
func TestRowsOfTheFirstStatementThatAreLeftOpen(t *testing.T) {
	t.Parallel()
	for _, first := range []messagestore.StreamName{"", "none-1"} {
		for _, wrong := range []error{nil, errors.New("wrong")} {
			_, pool := proxied(t)
			driver := must.New(postgres.New(pool, nil))
			_, err := driver.Transact(t.Context(), first, func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
				rows := must.Do(tx.Query(ctx, "select generate_series(1, $1::int)", 3))(t)
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

// What a function reads through the store, it reads in its transaction.
func TestAReadBeginsTheTransaction(t *testing.T) {
	t.Parallel()
	all := pgtest.Pool(t)
	_, pool := proxied(t)
	driver := must.New(postgres.New(pool, nil))
	pid := pgtest.Value[uint32](t, pool, "select pg_backend_pid()")
	must.Do(driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		must.Do(driver.Version(ctx, storetest.Category(t).Stream("1")))(t)
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
		store, stream := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil)), storetest.Category(t).Stream("1")
		transactional := must.Do(messagestore.Transactional[pgx.Tx](store))(t)
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
				await.That(t, "the statement is at work", func() (is bool, _ any) {
					err := all.QueryRow(t.Context(), "select exists (select from pg_stat_activity where query = $1 and state = 'active')", statement).Scan(&is)
					return is, err
				})
			})
			_, err = tx.Exec(sent, statement, 60)
			watching.Wait()
			require.Error(t, err)
			require.Error(t, must.ErrorOf(tx.Exec(ctx, addSQL, string(stream))))
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
