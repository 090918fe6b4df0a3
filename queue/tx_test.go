package queue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// inTx is called with a transaction.
type inTx func(ctx context.Context, tx any) ([]messagestore.StreamWrite, error)

// A database has transactions of the caller's, and those of the store.
type database struct {
	store *messagestore.Store

	// begin returns a transaction of the caller's.
	begin func(ctx context.Context) (tx any, commit, rollBack func() error, err error)

	// transact calls f in a transaction of the store's, and writes its result.
	transact func(ctx context.Context, f inTx) error
}

func transacts[Tx any](store *messagestore.Store) func(context.Context, inTx) error {
	txs := testkit.Must(messagestore.Transactional[Tx](store))
	return func(ctx context.Context, f inTx) error {
		_, err := txs.Transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			return f(ctx, tx)
		})
		return err
	}
}

func postgresDatabase(t *testing.T, pool *pgxpool.Pool) database {
	t.Helper()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	return database{store: store, transact: transacts[pgx.Tx](store), begin: func(ctx context.Context) (any, func() error, func() error, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		end := context.WithoutCancel(ctx)
		return tx, func() error { return tx.Commit(end) }, func() error { return tx.Rollback(end) }, nil
	}}
}

var databases = map[string]func(t *testing.T) database{
	"PostgreSQL": func(t *testing.T) database { return postgresDatabase(t, pgtest.Pool(t)) },
	"SQLite": func(t *testing.T) database {
		file := filepath.Join(t.TempDir(), "store.db")
		driver := testkit.Must(sqlite.Open(t.Context(), file, nil))
		t.Cleanup(func() { require.NoError(t, driver.Close()) })
		db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		store := testkit.Must(messagestore.New(driver, nil))
		return database{store: store, transact: transacts[*sql.Tx](store), begin: func(ctx context.Context) (any, func() error, func() error, error) {
			tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
			if err != nil {
				return nil, nil, nil, err
			}
			return tx, tx.Commit, tx.Rollback, nil
		}}
	},
}

func eachDatabase(t *testing.T, test func(t *testing.T, q *queue.Queue, db database)) {
	t.Helper()
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			test(t, testkit.Must(queue.New(db.store, storetest.Category(t), &queue.Config{Logger: logger.Silent()})), db)
		})
	}
}

var soon = &queue.WorkConfig{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}

func TestACompletionInATransactionThatIsCommittedStands(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		var handled seen
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			handled.add(fmt.Sprint(m.Body.To, m.Body.N))
			tx, commit, _, err := db.begin(ctx)
			if err != nil {
				return err
			}
			if err := queue.JobOf(ctx).CompleteTx(ctx, tx); err != nil {
				return err
			}
			if err := commit(); err != nil {
				return err
			}
			return errors.New("no space left on device")
		}, soon)
		first := insert(t, q, Send{"ann", 1}, &queue.InsertOpts{Key: "ann"})
		second := insert(t, q, Send{"ann", 2}, &queue.InsertOpts{Key: "ann"})

		require.Empty(t, awaitState(t, q, first.Position, queue.Finished).Log)
		require.Empty(t, awaitState(t, q, second.Position, queue.Finished).Log)
		testkit.AwaitEqual(t, "the counts", queue.Counts{Completed: 2}, q.Counts)
		require.Equal(t, []string{"ann1", "ann2"}, handled.list())
	})
}

func TestACompletionInATransactionThatIsRolledBackHasNotBeen(t *testing.T) {
	for name, returns := range map[string]error{"its completion was not committed": nil, "no answer": errors.New("no answer")} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
				working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
					job := queue.JobOf(ctx)
					if job.Failures > 0 {
						return nil
					}
					ctx = context.WithoutCancel(ctx) // the time-out is for the completion, and not for these calls
					tx, _, rollBack, err := db.begin(ctx)
					if err != nil {
						return err
					}
					return errors.Join(job.CompleteTx(ctx, tx), rollBack(), returns)
				}, &queue.WorkConfig{Timeout: 200 * time.Millisecond, Grace: time.Minute, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
				at := insert(t, q, Send{To: "ann"}, nil)

				of := awaitState(t, q, at.Position, queue.Finished)
				require.Equal(t, "r", whats(of))
				require.Contains(t, of.Log[0].Text, name)
			})
		})
	}
}

// The transaction outlasts the handler, which may have returned nil or an error.
func TestACompletionIsWaitedForWhileItsTransactionIsOpen(t *testing.T) {
	for _, commits := range []bool{true, false} {
		for _, fails := range []bool{true, false} {
			t.Run(fmt.Sprintf("commits %v, fails %v", commits, fails), func(t *testing.T) {
				eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
					returned, end := make(chan struct{}), make(chan func() error, 1)
					var handled seen
					working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
						handled.add(m.Body.To)
						job := queue.JobOf(ctx)
						if job.Deliveries > 0 {
							return nil
						}
						ctx = context.WithoutCancel(ctx) // the time-out is for the completion, and not for these calls
						tx, commit, rollBack, err := db.begin(ctx)
						if err != nil {
							return err
						}
						if err := job.CompleteTx(ctx, tx); err != nil {
							return errors.Join(err, rollBack())
						}
						defer close(returned)
						if end <- rollBack; commits {
							<-end
							end <- commit
						}
						if fails {
							return errors.New("no answer")
						}
						return nil
					}, &queue.WorkConfig{Timeout: 200 * time.Millisecond, Grace: time.Minute, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
					at := insert(t, q, Send{To: "ann"}, nil)
					testkit.Receive(t, "the handler's end", returned)
					if name(t) == "PostgreSQL" { // a row that a transaction has is passed over; SQLite waits
						testkit.AwaitTrue(t, "the failure", func() bool { return q.Counts().Failed == 1 })
					}
					require.NoError(t, (<-end)())

					of := awaitState(t, q, at.Position, queue.Finished)
					if commits {
						require.Empty(t, of.Log)
						require.Len(t, handled.list(), 1)
					} else {
						require.Equal(t, "r", whats(of))
						require.Len(t, handled.list(), 2)
					}
				})
			})
		}
	}
}

func TestACompletionInATransactionOfTheStore(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		sent := storetest.Category(t).Stream("1")
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			job := queue.JobOf(ctx)
			return db.transact(ctx, func(ctx context.Context, tx any) ([]messagestore.StreamWrite, error) {
				if err := job.CompleteTx(ctx, tx); err != nil {
					return nil, err
				}
				if job.Failures == 0 {
					return nil, errors.New("rolled back")
				}
				return []messagestore.StreamWrite{messagestore.To(sent, messagestore.AnyVersion, m.Body)}, nil
			})
		}, soon)
		at := insert(t, q, Send{To: "ann"}, nil)

		of := awaitState(t, q, at.Position, queue.Finished)
		require.Equal(t, "r", whats(of))
		require.Contains(t, of.Log[0].Text, "rolled back")
		version, err := db.store.Version(t.Context(), sent)
		require.NoError(t, err)
		require.EqualValues(t, 0, version)
	})
}

// Another database may have the same item at the same position, out under the same version, or finished.
func TestACompletionOverATwinDatabaseIsLost(t *testing.T) {
	t.Parallel()
	for name, open := range twins {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, twin := open(t), open(t)
			category := storetest.Category(t)
			of := func(db database) *queue.Queue {
				return testkit.Must(queue.New(db.store, category, &queue.Config{Logger: logger.Silent()}))
			}
			q, other := of(db), of(twin)
			at := []queue.Inserted{insert(t, q, Send{To: "ann"}, nil), insert(t, q, Send{To: "bob"}, nil)}
			for _, inserted := range at {
				require.Equal(t, inserted.Position, insert(t, other, Send{To: "ann"}, nil).Position, "the databases are twins")
			}
			theirs := testkit.Must(other.Receive(t.Context(), 2, nil))
			require.NoError(t, theirs[1].Complete(t.Context()))
			require.Len(t, theirs, 2)

			for _, job := range testkit.Must(q.Receive(t.Context(), 2, nil)) {
				tx, commit, _, err := twin.begin(t.Context())
				require.NoError(t, err)
				require.ErrorIs(t, job.CompleteTx(t.Context(), tx), queue.ErrLost)
				require.NoError(t, commit())
			}

			require.Equal(t, queue.Out, item(t, other, at[0].Position).State)
			require.NoError(t, theirs[0].Complete(t.Context()))
		})
	}
}

// twins open databases of which each gives out the same positions.
var twins = map[string]func(t *testing.T) database{
	"PostgreSQL": func(t *testing.T) database { return postgresDatabase(t, pgtest.Connect(t, pgtest.Migrated(t))) },
	"SQLite":     databases["SQLite"],
}

// A session is left while a transaction has a row of it: nobody waits for that.
func TestASessionIsLeftWithoutWaitingForATransaction(t *testing.T) {
	t.Parallel()
	db := databases["PostgreSQL"](t)
	driver, err := db.store.Driver()
	require.NoError(t, err)
	queues := driver.(queuing.Driver) //nolint:errcheck,forcetypeassert // it keeps queues
	q := testkit.Must(queue.New(db.store, storetest.Category(t), &queue.Config{Logger: logger.Silent()}))
	of := queuing.Queue{Name: q.Name(), Category: q.Category()}
	at := []queue.Inserted{insert(t, q, Send{To: "ann"}, nil), insert(t, q, Send{To: "bob"}, nil)}
	_, err = queues.QueueTake(t.Context(), queuing.Take{Queue: of, Policy: queuing.Policy{MaxFailures: 9}, Session: 1, Lease: time.Hour, Want: 2})
	require.NoError(t, err)
	tx, commit, _, err := db.begin(t.Context())
	require.NoError(t, err)
	inTx := testkit.Must(queuing.Of(testkit.Must(db.store.Over(t.Context(), tx))))
	ann, bob := queuing.Delivery{Position: at[0].Position}, queuing.Delivery{Position: at[1].Position}
	_, err = inTx.QueueFinish(t.Context(), of, 1, []queuing.Delivery{ann})
	require.NoError(t, err)

	err = queues.QueueLeave(t.Context(), queuing.Leave{Queue: of, Session: 1, Next: 2, Lease: time.Hour, Keep: []queuing.Delivery{ann, bob}})

	require.NoError(t, err, "a wait would have ended with an error after 10 seconds")
	require.EqualValues(t, 2, item(t, q, bob.Position).Session)
	require.EqualValues(t, 1, item(t, q, ann.Position).Session)
	require.NoError(t, commit())
	awaitState(t, q, ann.Position, queue.Finished)
}

// To complete once more tells whether the first was committed, and does not wait for it.
func TestACompletionInATransactionIsAskedFor(t *testing.T) {
	eachDatabase(t, func(t *testing.T, q *queue.Queue, db database) {
		answers := make(chan error, 3)
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			job := queue.JobOf(ctx)
			for _, commits := range []bool{false, true} {
				tx, commit, rollBack, err := db.begin(ctx)
				if err != nil {
					return err
				}
				answers <- job.CompleteTx(ctx, tx)
				if !commits {
					if err := rollBack(); err != nil {
						return err
					}
				} else if err := commit(); err != nil {
					return err
				}
				answers <- job.Complete(ctx)
			}
			return nil
		}, soon)
		at := insert(t, q, Send{To: "ann"}, nil)

		require.NoError(t, testkit.Receive(t, "the first", answers))
		require.ErrorContains(t, testkit.Receive(t, "its end", answers), "its completion was not committed")
		require.NoError(t, testkit.Receive(t, "the second", answers))
		require.NoError(t, testkit.Receive(t, "its end", answers))
		require.Empty(t, awaitState(t, q, at.Position, queue.Finished).Log)
		testkit.AwaitEqual(t, "the counts", queue.Counts{Completed: 1}, q.Counts)
	})
}

// Over gives the driver itself for a transaction that commits each call.
func (d *cut) Over(_ context.Context, tx any) (messagestore.Driver, error) {
	if _, is := tx.(committing); is {
		return d, nil
	}
	return d.Driver.Over(context.Background(), tx)
}

type committing struct{}

// A handler whose item is finished in a transaction goes on, though its session has the item no more.
func TestAHandlerGoesOnAfterItsTransaction(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		ended := make(chan error, 1)
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			if err := queue.JobOf(ctx).CompleteTx(ctx, committing{}); err != nil {
				return err
			}
			time.Sleep(50 * time.Second)
			ended <- context.Cause(ctx)
			return errors.New("no space left on device")
		}, nil)
		at := insert(t, q, Send{To: "ann"}, nil)

		require.NoError(t, <-ended)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, item(t, q, at.Position).Log)
		require.Equal(t, queue.Counts{Completed: 1}, q.Counts())
	})
}

func TestACompletionInAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		insert(t, q, Send{To: "ann"}, nil)
		jobs, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		other := databases["SQLite"](t)
		tx, _, rollBack, err := other.begin(t.Context())
		require.NoError(t, err)
		want := messagestore.ErrNotSupported
		if name(t) == "SQLite" {
			want = queue.ErrLost
		}
		require.ErrorIs(t, jobs[0].CompleteTx(t.Context(), tx), want)
		require.NoError(t, rollBack())
		require.ErrorIs(t, jobs[0].CompleteTx(t.Context(), nil), messagestore.ErrInvalid)
		require.NoError(t, jobs[0].Complete(t.Context()))
	})
}

// It would be made at once, and stand if the caller's transaction is rolled back.
func TestACompletionOverNoTransactionIsRefused(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		at := insert(t, q, Send{To: "ann"}, nil)
		jobs, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 1)

		err = jobs[0].CompleteTx(t.Context(), store)

		require.ErrorIs(t, err, messagestore.ErrNotSupported)
		if name(t) != "memory" {
			require.ErrorContains(t, err, "a *messagestore.Store is not a ")
		}
		require.Equal(t, queue.Out, item(t, q, at.Position).State)
		require.NoError(t, jobs[0].Complete(t.Context()), "it was not taken for one in a transaction")
		require.Equal(t, queue.Finished, item(t, q, at.Position).State)
	})
}

func TestACompletionByTheContextOfATransaction(t *testing.T) {
	t.Parallel()
	db := stdlib.OpenDBFromPool(pgtest.Pool(t))
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	store := testkit.Must(messagestore.New(testkit.Must(postgres.NewSQL(db, nil)), nil))
	q := testkit.Must(queue.New(store, storetest.Category(t), &queue.Config{Logger: logger.Silent()}))
	at := insert(t, q, Send{To: "ann"}, nil)
	jobs, err := q.Receive(t.Context(), 1, nil)
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	transact := transacts[*sql.Tx](store)
	for _, fails := range []error{errors.New("rolled back"), nil} {
		err := transact(t.Context(), func(ctx context.Context, tx any) ([]messagestore.StreamWrite, error) {
			if err := jobs[0].CompleteTx(t.Context(), tx); !errors.Is(err, messagestore.ErrNotSupported) {
				return nil, fmt.Errorf("without the function's context: %w", err)
			}
			_, err := q.InsertTx(ctx, tx, Send{To: "bob"}, nil)
			return nil, errors.Join(jobs[0].CompleteTx(ctx, tx), err, fails)
		})
		require.ErrorIs(t, err, fails)
		require.Equal(t, map[bool]queue.State{true: queue.Out, false: queue.Finished}[fails != nil], item(t, q, at.Position).State)
	}
}

// name is the last part of a test's name.
func name(t *testing.T) string {
	t.Helper()
	return filepath.Base(t.Name())
}

// A producer needs no right to the queue's items, also in a transaction of its own. A worker without the right ends with an error that
// names the role.
func TestAWriterInsertsAndDoesNotWork(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolAs(t, "dibs_writer")
	q := testkit.Must(queue.New(testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), storetest.Category(t), &queue.Config{Logger: logger.Silent()}))
	_, err := q.Insert(t.Context(), Send{To: "ann"}, &queue.InsertOpts{Unique: "ann", UniqueUntil: queue.UntilFinished})
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := q.InsertTx(t.Context(), tx, Send{To: "bob"}, nil)
		return err
	}))

	ended := make(chan error, 1)
	none := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
	go func() { ended <- q.Work(t.Context(), none, nil) }()

	err = testkit.Receive(t, "the end of Work", ended)
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "grant dibs_worker to the user of this connection")
	_, err = q.Receive(t.Context(), 1, nil)
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
}
