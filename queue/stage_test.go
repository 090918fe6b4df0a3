package queue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

func insertTx(t *testing.T, q *queue.Queue, tx any, body Send, opts *queue.InsertOpts) queue.Inserted {
	t.Helper()
	inserted, err := q.InsertTx(t.Context(), tx, body, opts)
	require.NoError(t, err)
	return inserted
}

func TestItemsOfATransactionComeIfItIsCommitted(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		var handled seen
		working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			handled.add(fmt.Sprint(m.Body.To, m.Body.N))
			return nil
		}, nil)
		tx, _, rollBack, err := db.begin(t.Context())
		require.NoError(t, err)
		insertTx(t, q, tx, Send{"bob", 1}, nil)
		require.NoError(t, rollBack())

		tx, commit, _, err := db.begin(t.Context())
		require.NoError(t, err)
		for n := range 3 {
			inserted := insertTx(t, q, tx, Send{"ann", n}, &queue.InsertOpts{Key: "ann"})
			require.Equal(t, q.Category().Stream("ann"), inserted.Stream)
			require.Zero(t, inserted.Position)
			require.NotEqual(t, uuid.Nil, inserted.ID)
		}
		require.NoError(t, commit())

		require.Equal(t, []string{"ann0", "ann1", "ann2"}, handled.await(t, 3))
	})
}

func TestAnItemOfTheStoresTransactionComesWithIt(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		events := storetest.Category(t).Stream("1")
		for _, fails := range []error{errors.New("rolled back"), nil} {
			err := db.transact(t.Context(), func(ctx context.Context, tx any) ([]messagestore.StreamWrite, error) {
				if _, err := q.InsertTx(ctx, tx, Send{To: "ann"}, &queue.InsertOpts{Key: "ann"}); err != nil {
					return nil, err
				}
				return []messagestore.StreamWrite{messagestore.To(events, messagestore.AnyVersion, Send{N: 1})}, fails
			})
			require.ErrorIs(t, err, fails)
		}

		for _, stream := range []messagestore.StreamName{q.Category().Stream("ann"), events} {
			version, err := db.store.Version(t.Context(), stream)
			require.NoError(t, err)
			require.EqualValues(t, 0, version)
		}
	})
}

// What an open transaction has appended holds back later items; what it has staged does not.
func TestAnOpenInsertDelaysNoOtherItem(t *testing.T) {
	t.Parallel()
	db := databases["PostgreSQL"](t)
	q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
	var handled seen
	working(t, q, func(_ context.Context, m handler.Message[Send]) error {
		handled.add(m.Body.To)
		return nil
	}, nil)
	tx, commit, _, err := db.begin(t.Context())
	require.NoError(t, err)
	insertTx(t, q, tx, Send{To: "ann"}, nil)

	insert(t, q, Send{To: "bob"}, nil)

	require.Equal(t, []string{"bob"}, handled.await(t, 1))
	require.NoError(t, commit())
	require.Equal(t, []string{"bob", "ann"}, handled.await(t, 2))
}

func TestAUniqueItemOfATransactionIsInsertedOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		unique := &queue.InsertOpts{Unique: "report"}
		first := insert(t, q, Send{"ann", 1}, unique)
		tx, commit, _, err := db.begin(t.Context())
		require.NoError(t, err)

		again := insertTx(t, q, tx, Send{"ann", 1}, unique)

		require.Equal(t, queue.Inserted{ID: first.ID, Stream: first.Stream, Position: first.Position, Duplicate: true}, again)
		require.NoError(t, commit())
		tx, _, rollBack, err := db.begin(t.Context())
		require.NoError(t, err)
		_, err = q.InsertTx(t.Context(), tx, Send{"ann", 2}, unique)
		reused, is := errors.AsType[*queue.KeyReusedError](err)
		require.True(t, is, err)
		require.Equal(t, first.ID, reused.Met.ID)
		require.NoError(t, rollBack())

		// Twice in one transaction, which knows nothing of the first by then.
		tx, commit, _, err = db.begin(t.Context())
		require.NoError(t, err)
		for range 2 {
			insertTx(t, q, tx, Send{"bob", 1}, &queue.InsertOpts{Unique: "other"})
		}
		sameID := uuid.New()
		for range 2 {
			insertTx(t, q, tx, Send{"cid", 1}, &queue.InsertOpts{ID: sameID})
		}
		require.NoError(t, commit())
		requireItems(t, db.store, q, 3)
	})
}

func requireItems(t *testing.T, store *messagestore.Store, q *queue.Queue, n int64) {
	t.Helper()
	count, err := store.Count(t.Context(), messagestore.CategoryQuery{Category: q.Category(), Limit: 10_000})
	require.NoError(t, err)
	require.Equal(t, n, count)
}

// Two transactions stage an item, and the second to commit meets the first.
func TestACommitMeetsWhatWasInsertedMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		opts   queue.InsertOpts
		second Send
		fails  bool
	}{
		"a unique name, and the same content":  {queue.InsertOpts{Unique: "report"}, Send{"ann", 1}, false},
		"a unique name, and another content":   {queue.InsertOpts{Unique: "report"}, Send{"ann", 2}, true},
		"an id, and the same content":          {queue.InsertOpts{ID: uuid.New()}, Send{"ann", 1}, false},
		"an id, and another content":           {queue.InsertOpts{ID: uuid.New()}, Send{"ann", 2}, true},
		"a key, which is for many":             {queue.InsertOpts{Key: "ann"}, Send{"ann", 1}, false},
		"a key and an id, of the same content": {queue.InsertOpts{Key: "ann", ID: uuid.New()}, Send{"ann", 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := databases["PostgreSQL"](t)
			q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
			opts := test.opts
			if opts.ID == uuid.Nil && opts.Key == "" {
				opts.ID = uuid.New()
			}
			tx1, commit1, _, err := db.begin(t.Context())
			require.NoError(t, err)
			insertTx(t, q, tx1, Send{"ann", 1}, &opts)
			tx2, commit2, rollBack2, err := db.begin(t.Context())
			require.NoError(t, err)
			if test.opts.ID == uuid.Nil {
				opts.ID = uuid.Nil
			}
			insertTx(t, q, tx2, test.second, &opts)
			insertTx(t, q, tx2, Send{To: "bob"}, nil)
			require.NoError(t, commit1())

			err = commit2()

			_ = rollBack2()
			if !test.fails {
				require.NoError(t, err)
				n := int64(2)
				if test.opts.ID == uuid.Nil && test.opts.Key != "" {
					n = 3
				}
				requireItems(t, db.store, q, n)
				return
			}
			refused, is := errors.AsType[*pgconn.PgError](err)
			require.True(t, is, err)
			require.Equal(t, "DB003", refused.Code)
			requireItems(t, db.store, q, 1)
		})
	}
}

// Transactions stage items of the same keys in opposite orders, and both append in one.
func TestInsertsInOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := databases["PostgreSQL"](t)
	q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
	const rounds, keys = 50, 5
	var all sync.WaitGroup
	for _, backwards := range []bool{true, false} {
		all.Go(func() {
			for n := range rounds {
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					for i := range keys {
						if backwards {
							i = keys - 1 - i
						}
						if _, err := q.InsertTx(t.Context(), tx, Send{N: n}, &queue.InsertOpts{Key: fmt.Sprint(i)}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	requireItems(t, db.store, q, 2*rounds*keys)
}

// Above READ COMMITTED no transaction shares the lock of a category, which it would have to have for itself then.
func TestInsertsAboveReadCommittedDoNotDeadlock(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t)) // other tests count on few serializable transactions beside theirs
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		db := postgresDatabase(t, pool)
		q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
		other := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
		const callers, commits = 4, 50
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for n := range commits {
					for done := false; !done; {
						err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
							into := []*queue.Queue{q, other, q}
							if caller%2 == 0 {
								into = []*queue.Queue{other, q, other}
							}
							for _, q := range into {
								if _, err := q.InsertTx(t.Context(), tx, Send{N: n}, nil); err != nil {
									return err
								}
							}
							return nil
						})
						failed, is := errors.AsType[*pgconn.PgError](err)
						if done = !is || failed.Code != "40001"; done && err != nil {
							t.Errorf("%s: %v", level, err)
						}
					}
				}
			})
		}
		all.Wait()
		for _, q := range []*queue.Queue{q, other} {
			requireItems(t, db.store, q, callers*commits*3/2)
		}
	}
}

func TestAUniqueNameThatIsFreeAgainIsForOneTransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		until := &queue.InsertOpts{Unique: "report", UniqueUntil: queue.UntilFinished}
		committed := func(body Send) (queue.Inserted, error) {
			tx, commit, _, err := db.begin(t.Context())
			require.NoError(t, err)
			inserted := insertTx(t, q, tx, body, until)
			return inserted, commit()
		}
		first, err := committed(Send{N: 1})
		require.NoError(t, err)
		require.False(t, first.Duplicate)

		again, err := committed(Send{N: 1})
		require.NoError(t, err)
		require.True(t, again.Duplicate, "no worker has it yet")
		jobs := testkit.Must(q.Receive(t.Context(), 2, nil))
		require.Len(t, jobs, 1)
		again, err = committed(Send{N: 1})
		require.NoError(t, err)
		require.True(t, again.Duplicate, "it is not finished")
		require.NoError(t, jobs[0].Complete(t.Context()))

		free, err := committed(Send{N: 2})
		require.NoError(t, err)
		require.False(t, free.Duplicate)
		require.Equal(t, first.Stream, free.Stream)
		jobs = testkit.Must(q.Receive(t.Context(), 2, nil))
		require.Len(t, jobs, 1)
		require.NoError(t, jobs[0].Complete(t.Context()))

		if name(t) == "PostgreSQL" { // SQLite has one transaction at a time that writes
			one, commitOne, _, err := db.begin(t.Context())
			require.NoError(t, err)
			other, commitOther, _, err := db.begin(t.Context())
			require.NoError(t, err)
			insertTx(t, q, one, Send{N: 3}, until)
			insertTx(t, q, other, Send{N: 3}, until)
			require.NoError(t, commitOne())
			require.ErrorContains(t, commitOther(), "DB003")
		}
	})
}

// What is appended at once would come before what the transaction has staged, so it is refused.
func TestAnInsertBehindAStagedOneOfItsKeyIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		db := databases["PostgreSQL"](t)
		category := storetest.Category(t)
		q := testkit.Must(queue.New(db.store, category, nil))
		for name, write := range map[string]func(tx *messagestore.Store) error{
			"an item": func(tx *messagestore.Store) error {
				_, err := testkit.Must(queue.New(tx, category, nil)).Insert(t.Context(), Send{N: 2}, &queue.InsertOpts{Key: "ann"})
				return err
			},
			"a message": func(tx *messagestore.Store) error {
				_, err := tx.Write(t.Context(), category.Stream("ann"), messagestore.AnyVersion, Send{N: 2})
				return err
			},
			"several": func(tx *messagestore.Store) error {
				_, err := tx.Write(t.Context(), category.Stream("ann"), messagestore.AnyVersion, Send{N: 2}, Send{N: 3})
				return err
			},
			"several streams": func(tx *messagestore.Store) error {
				_, err := tx.WriteStreams(t.Context(), messagestore.To(category.Stream("bob"), messagestore.AnyVersion, Send{N: 2}),
					messagestore.To(category.Stream("ann"), messagestore.AnyVersion, Send{N: 3}))
				return err
			},
		} {
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			insertTx(t, q, tx, Send{N: 1}, &queue.InsertOpts{Key: "ann"})
			err = write(testkit.Must(db.store.Over(t.Context(), tx)))
			require.NoError(t, tx.Rollback(t.Context()))
			require.ErrorIs(t, err, messagestore.ErrInvalid, "%s, %s", name, level)
			require.ErrorContains(t, err, "staged")
		}
		err := db.transact(t.Context(), func(ctx context.Context, tx any) ([]messagestore.StreamWrite, error) {
			_, err := q.InsertTx(ctx, tx, Send{N: 1}, &queue.InsertOpts{Key: "ann"})
			return []messagestore.StreamWrite{messagestore.To(category.Stream("ann"), messagestore.AnyVersion, Send{N: 2})}, err
		})
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		requireItems(t, db.store, q, 0)
	}
}

// So is what a trigger of the service's appends, and what a client of message-db writes. Behind "set
// constraints all immediate" nothing is staged any more, and nothing is refused.
func TestAnAppendBySQLBehindAStagedItemIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := databases["PostgreSQL"](t)
	category := storetest.Category(t)
	stream := category.Stream("ann")
	q := testkit.Must(queue.New(db.store, category, nil))
	for name, write := range map[string]string{
		"append_one": "select dibs.append_one($1, -2, gen_random_uuid(), 'Send', '{}', null)",
		"message-db": "select message_store.write_message(gen_random_uuid()::text, $1, 'Send', '{}')",
		"a view":     "insert into message_store.messages (id, stream_name, type, data) values (gen_random_uuid(), $1, 'Send', '{}')",
		"a trigger":  "insert into orders values ($1)",
	} {
		for _, immediate := range []bool{false, true} {
			tx := testkit.Must(pool.Begin(t.Context()))
			for _, sql := range []string{
				"create temporary table orders (stream text) on commit drop",
				`create function pg_temp.ordered() returns trigger language plpgsql as $$ begin
					perform dibs.append_one(new.stream, -2, gen_random_uuid(), 'Send', '{}', null); return null; end $$`,
				"create trigger ordered after insert on orders for each row execute function pg_temp.ordered()",
			} {
				testkit.Must(tx.Exec(t.Context(), sql))
			}
			insertTx(t, q, tx, Send{N: 1}, &queue.InsertOpts{Key: "ann"})
			if immediate {
				testkit.Must(tx.Exec(t.Context(), "set constraints all immediate"))
			}
			_, err := tx.Exec(t.Context(), write, string(stream))
			require.NoError(t, tx.Rollback(t.Context()))
			if immediate {
				require.NoError(t, err, name)
			} else {
				require.ErrorContains(t, err, "this transaction has staged a message for it", name)
			}
		}
	}
}

// As docs/queue.md has it: PREPARE TRANSACTION appends, and holds back later items until the end.
func TestAPreparedTransactionHoldsBackLaterItems(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var most string
	require.NoError(t, pool.QueryRow(t.Context(), "show max_prepared_transactions").Scan(&most))
	if most == "0" {
		t.Skip("the server prepares no transactions")
	}
	db := databases["PostgreSQL"](t)
	q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
	insert(t, q, Send{To: "before"}, nil)
	commit(t, pool, func(tx pgx.Tx) { insertTx(t, q, tx, Send{To: "marks"}, nil) }, "commit")

	commit(t, pool, func(tx pgx.Tx) { insertTx(t, q, tx, Send{To: "prepared"}, nil) }, "prepare transaction '"+string(q.Category())+"'")
	commit(t, pool, func(tx pgx.Tx) { insertTx(t, q, tx, Send{To: "later"}, nil) }, "commit")

	for _, n := range []int{2, 4} {
		page, err := db.store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: q.Category(), Limit: 10})
		require.NoError(t, err)
		require.Len(t, page.Messages, n)
		if n == 2 {
			_, err = pool.Exec(t.Context(), "commit prepared '"+string(q.Category())+"'")
			require.NoError(t, err)
		}
	}
}

// commit ends a transaction of f by a statement.
func commit(t *testing.T, pool *pgxpool.Pool, f func(tx pgx.Tx), statement string) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	f(tx)
	_, err = conn.Exec(t.Context(), statement)
	require.NoError(t, err)
}

func TestWhatASavepointTakesBackIsNotInserted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		db := databases["PostgreSQL"](t)
		q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		require.NoError(t, err)
		insertTx(t, q, tx, Send{"ann", 1}, &queue.InsertOpts{Key: "ann"})
		inner, err := tx.Begin(t.Context())
		require.NoError(t, err)
		insertTx(t, q, inner, Send{"ann", 2}, &queue.InsertOpts{Key: "ann"})
		require.NoError(t, inner.Rollback(t.Context()))
		inner, err = tx.Begin(t.Context())
		require.NoError(t, err)
		insertTx(t, q, inner, Send{"ann", 3}, &queue.InsertOpts{Key: "ann"})
		require.NoError(t, inner.Commit(t.Context()))
		require.NoError(t, tx.Commit(t.Context()))

		var handled seen
		working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			handled.add(fmt.Sprint(m.Body.N))
			return nil
		}, nil)
		require.Equal(t, []string{"1", "3"}, handled.await(t, 2), level)
	}
}

// With the constraints checked at once, the item is appended by its own statement.
func TestAnItemIsInsertedWhereConstraintsAreImmediate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := databases["PostgreSQL"](t)
	q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "set constraints all immediate"); err != nil {
			return err
		}
		_, err := q.InsertTx(t.Context(), tx, Send{To: "ann"}, nil)
		return err
	}))
	requireItems(t, db.store, q, 1)
}

func TestAnInsertInNoTransactionIsRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		_, err := q.InsertTx(t.Context(), db.store, Send{To: "ann"}, nil)

		require.ErrorIs(t, err, messagestore.ErrNotSupported)
		require.ErrorContains(t, err, "a *messagestore.Store is not a ")
		_, err = testkit.Must(queue.New(testkit.Must(messagestore.New(memory.New(), nil)), "mail", nil)).InsertTx(t.Context(), new(sql.Tx), Send{To: "ann"}, nil)
		require.ErrorIs(t, err, messagestore.ErrNotSupported)
		_, err = q.InsertTx(t.Context(), nil, Send{To: "ann"}, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		requireItems(t, db.store, q, 0)
	})
}

// A session whose triggers are off would commit, and append nothing.
func TestNothingIsStagedWithoutTriggers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := databases["PostgreSQL"](t)
	q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it has failed
	_, err = tx.Exec(t.Context(), "set local session_replication_role = replica")
	require.NoError(t, err)

	_, err = q.InsertTx(t.Context(), tx, Send{To: "ann"}, nil)

	require.ErrorContains(t, err, "session_replication_role")
}

func TestNothingStagedIsLeft(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := databases["PostgreSQL"](t)
	q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
	var left int
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		insertTx(t, q, tx, Send{To: "ann"}, nil)
		return tx.QueryRow(t.Context(), "select count(*) from dibs.staged").Scan(&left)
	}))
	require.Equal(t, 1, left)
	testkit.AwaitEqual(t, "rows that are staged", 0, func() int {
		require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from dibs.staged where stream like $1", string(q.Category())+"-%").Scan(&left))
		return left
	})
}

// Items without a key have streams of their own, whose names say nothing of their order.
func TestItemsOfATransactionComeInTheOrderOfInsertion(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		for range 3 {
			tx, commit, _, err := db.begin(t.Context())
			require.NoError(t, err)
			var want, got []uuid.UUID
			for n := range 20 {
				want = append(want, insertTx(t, q, tx, Send{N: n}, &queue.InsertOpts{ID: uuid.New()}).ID)
			}
			require.NoError(t, commit())
			jobs, err := q.Receive(t.Context(), 100, nil)
			require.NoError(t, err)
			for _, job := range jobs {
				got = append(got, job.Message.ID)
				require.NoError(t, job.Complete(t.Context()))
			}
			require.Equal(t, want, got)
		}
	})
}

// A transaction does not see what was inserted since its snapshot, so it cannot tell whether the items are the same: it is to be
// repeated, and then told.
func TestACommitThatMeetsWhatItsSnapshotHasNotIsRepeated(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, unique := range []string{"", "report"} {
			for _, n := range []int{1, 2} {
				t.Run(fmt.Sprint(level, unique, n), func(t *testing.T) {
					t.Parallel()
					db := databases["PostgreSQL"](t)
					q := testkit.Must(queue.New(db.store, storetest.Category(t), nil))
					insert(t, q, Send{To: "before"}, nil)
					opts := queue.InsertOpts{Unique: unique}
					if unique == "" {
						opts.ID = uuid.New()
					}
					attempt := func(meanwhile func()) (queue.Inserted, error) {
						var inserted queue.Inserted
						return inserted, pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) (err error) {
							if _, err = tx.Exec(t.Context(), "select count(*) from dibs.messages"); err != nil {
								return err
							}
							meanwhile()
							inserted, err = q.InsertTx(t.Context(), tx, Send{"ann", n}, &opts)
							return err
						})
					}

					_, err := attempt(func() { insert(t, q, Send{"ann", 1}, &opts) })

					failed, is := errors.AsType[*pgconn.PgError](err)
					require.True(t, is, err)
					require.Equal(t, "40001", failed.Code, failed.Message)
					// Again, for as long as what others write is in the way.
					var inserted queue.Inserted
					testkit.Await(t, "an attempt is not to be repeated", func() (bool, any) {
						inserted, err = attempt(func() {})
						failed, is := errors.AsType[*pgconn.PgError](err)
						return !is || failed.Code != "40001", err
					})
					if n == 1 {
						require.NoError(t, err)
						require.Equal(t, opts.Unique != "", inserted.Duplicate) // an id is met in COMMIT
					} else {
						require.Error(t, err)
					}
					requireItems(t, db.store, q, 2)
				})
			}
		}
	}
}
