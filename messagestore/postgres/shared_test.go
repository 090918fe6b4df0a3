package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// shares writes to a category in a transaction, after which others share its lock.
func shares(t *testing.T, pool *pgxpool.Pool, category messagestore.Category) {
	t.Helper()
	tx, store := begun(t, pool)
	write(t, store, category.Stream("first"), messagestore.NoStream, opened())
	require.NoError(t, tx.Commit(t.Context()))
}

// begun returns a transaction and a store over it.
func begun(t *testing.T, pool *pgxpool.Pool) (pgx.Tx, *messagestore.Store) {
	t.Helper()
	tx := testkit.Do(connect(t, pool.Config().ConnString()).Begin(t.Context()))(t)
	return tx, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil))
}

// blocks reports whether a session waits for the session with the given process id.
func blocks(t *testing.T, pool *pgxpool.Pool, process uint32) (waits bool) {
	t.Helper()
	err := pool.QueryRow(t.Context(), "select exists (select from pg_stat_activity a where $1 = any (pg_blocking_pids(a.pid)))", int32(process)).Scan(&waits) //nolint:gosec // as PostgreSQL has it
	require.NoError(t, err)
	return waits
}

// streamsOf returns the streams of a category's messages, as a reader finds them.
func streamsOf(t *testing.T, store *messagestore.Store, category messagestore.Category) []messagestore.StreamName {
	t.Helper()
	var streams []messagestore.StreamName
	for m, err := range store.ReadCategory(t.Context(), category, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		streams = append(streams, m.Stream)
	}
	return streams
}

// Each way to read a category, for tests of where it ends.
func categoryReaders(t *testing.T, pool *pgxpool.Pool) map[string]func(category messagestore.Category) []messagestore.StreamName {
	t.Helper()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	rows := func(sql string, args ...any) []messagestore.StreamName {
		found, err := pool.Query(t.Context(), sql, args...)
		require.NoError(t, err)
		return testkit.Do(pgx.CollectRows(found, pgx.RowTo[messagestore.StreamName]))(t)
	}
	return map[string]func(category messagestore.Category) []messagestore.StreamName{
		"a page": func(category messagestore.Category) []messagestore.StreamName { return streamsOf(t, store, category) },
		"a page with a filter": func(category messagestore.Category) []messagestore.StreamName {
			page := testkit.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 100, Filter: messagestore.Filter{Types: []string{"Opened"}}}))(t)
			streams := make([]messagestore.StreamName, len(page.Messages))
			for i, m := range page.Messages {
				streams[i] = m.Stream
				require.Less(t, m.GlobalPosition, page.Next)
			}
			require.Equal(t, page.Messages[len(page.Messages)-1].GlobalPosition+1, page.Next)
			require.False(t, page.More)
			return streams
		},
		"get_category_messages": func(category messagestore.Category) []messagestore.StreamName {
			return rows("select stream_name::text from message_store.get_category_messages($1)", string(category))
		},
		"get_category_messages for a member": func(category messagestore.Category) []messagestore.StreamName {
			return rows("select stream_name::text from message_store.get_category_messages($1, consumer_group_member => 0, consumer_group_size => 1)", string(category))
		},
	}
}

func TestReadersStopBelowATransactionThatIsUnderWay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, read := range categoryReaders(t, pool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, end := range []string{"commit", "rollback"} {
				category := storetest.Category(t) + messagestore.Category(end)
				shares(t, pool, category)
				slow, slowStore := begun(t, pool)
				write(t, slowStore, category.Stream("slow"), messagestore.NoStream, opened())

				// It does not wait for the one before it.
				fast, fastStore := begun(t, pool)
				write(t, fastStore, category.Stream("fast"), messagestore.NoStream, opened())
				require.NoError(t, fast.Commit(t.Context()))

				require.Equal(t, []messagestore.StreamName{category.Stream("first")}, read(category))
				want := []messagestore.StreamName{category.Stream("first"), category.Stream("slow"), category.Stream("fast")}
				if end == "rollback" {
					want = []messagestore.StreamName{category.Stream("first"), category.Stream("fast")}
					require.NoError(t, slow.Rollback(t.Context()))
				} else {
					require.NoError(t, slow.Commit(t.Context()))
				}
				require.Equal(t, want, read(category))
			}
		})
	}
}

func TestAPreparedTransactionHoldsReadersBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	most := pgtest.Value[int](t, pool, "select current_setting('max_prepared_transactions')::int")
	if most == 0 {
		t.Skip("the server has max_prepared_transactions = 0")
	}
	category := storetest.Category(t)
	shares(t, pool, category)
	conn := connect(t, pgtest.URL(t))
	tx := testkit.Do(conn.Begin(t.Context()))(t)
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, &postgres.Config{NoNotify: true})), nil)), category.Stream("slow"), messagestore.NoStream, opened())
	testkit.Do(conn.Exec(t.Context(), fmt.Sprintf("prepare transaction '%s'", category)))(t)
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), fmt.Sprintf("rollback prepared '%s'", category)) })

	fast, fastStore := begun(t, pool)
	write(t, fastStore, category.Stream("fast"), messagestore.NoStream, opened())
	require.NoError(t, fast.Commit(t.Context()))
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	require.Len(t, streamsOf(t, store, category), 1)

	testkit.Do(conn.Exec(t.Context(), fmt.Sprintf("commit prepared '%s'", category)))(t)
	require.Equal(t, []messagestore.StreamName{category.Stream("first"), category.Stream("slow"), category.Stream("fast")}, streamsOf(t, store, category))
}

func TestATransactionReadsItsOwnMessages(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	shares(t, pool, category)
	tx, store := begun(t, pool)
	defer func() { _ = tx.Rollback(context.Background()) }()
	write(t, store, category.Stream("own"), messagestore.NoStream, opened())
	require.Equal(t, []messagestore.StreamName{category.Stream("first"), category.Stream("own")}, streamsOf(t, store, category))
}

// Locks of transactions that write to one stream, or hold the category for themselves.
func TestWhichWritersWaitForATransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	outside := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	for name, c := range map[string]struct {
		waits bool
		write func(t *testing.T, category messagestore.Category) error
	}{
		"another stream in a transaction": {false, func(t *testing.T, category messagestore.Category) error {
			_, store := begun(t, pool)
			_, err := store.Write(t.Context(), category.Stream("another"), messagestore.NoStream, opened())
			return err
		}},
		"the same stream in a transaction": {true, func(t *testing.T, category messagestore.Category) error {
			_, store := begun(t, pool)
			_, err := store.Write(t.Context(), category.Stream("slow"), messagestore.NoStream, opened())
			if errors.Is(err, messagestore.ErrVersionConflict) {
				return nil
			}
			return errors.Join(errors.New("no conflict"), err)
		}},
		"a stream that it checks, in a transaction": {true, func(t *testing.T, category messagestore.Category) error {
			_, store := begun(t, pool)
			_, err := store.Write(t.Context(), category.Stream("first"), 0, opened())
			return err
		}},
		"a transaction at REPEATABLE READ": {true, func(t *testing.T, category messagestore.Category) error {
			tx := testkit.Do(connect(t, pgtest.URL(t)).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
			_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(t.Context(), category.Stream("another"), messagestore.NoStream, opened())
			return err
		}},
		"a write by itself": {true, func(t *testing.T, category messagestore.Category) error {
			_, err := outside.Write(t.Context(), category.Stream("another"), messagestore.NoStream, opened())
			return err
		}},
		"a write of two streams": {true, func(t *testing.T, category messagestore.Category) error {
			_, err := outside.WriteStreams(t.Context(),
				messagestore.To(category.Stream("another"), messagestore.NoStream, opened()), messagestore.To(category.Stream("third"), messagestore.NoStream, opened()))
			return err
		}},
		"the question what became of a write": {true, func(t *testing.T, category messagestore.Category) error {
			found, err := testkit.Must(postgres.New(pool, nil)).Find(t.Context(), category.Stream("slow"), nil)
			require.Empty(t, found)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			category := storetest.Category(t)
			shares(t, pool, category)
			slow, slowStore := begun(t, pool)
			testkit.Do(slowStore.WriteStreams(t.Context(),
				messagestore.To(category.Stream("slow"), messagestore.NoStream, opened()), messagestore.StreamWrite{Stream: category.Stream("first"), Expected: 0}))(t)

			done := make(chan error, 1)
			go func() { done <- c.write(t, category) }()
			if c.waits {
				testkit.AwaitTrue(t, "a session that waits for the transaction", func() bool { return blocks(t, pool, slow.Conn().PgConn().PID()) })
				require.Empty(t, done)
			} else {
				require.NoError(t, testkit.Receive(t, "the end of the call", done))
				done <- nil
			}
			require.NoError(t, slow.Commit(t.Context()))
			require.NoError(t, testkit.Receive(t, "the end of the call", done))
		})
	}
}

func TestASharedCategoryIsNotReadAboveReadCommitted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	shares(t, pool, category)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		alone(t, level)
		tx := testkit.Do(connect(t, pgtest.URL(t)).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
		_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 100})
		require.ErrorContains(t, err, "read at READ COMMITTED", level)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// A transaction that has written to another category before goes on from where this one is: a
// reader still finds the last message that it has read.
func TestATransactionHoldsNoReaderBackFromAMessageThatWasThereBefore(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	category, other := storetest.Category(t)+"a", storetest.Category(t)+"b"
	shares(t, pool, category)
	shares(t, pool, other)
	slow, slowStore := begun(t, pool)
	write(t, slowStore, other.Stream("slow"), messagestore.NoStream, opened())
	write(t, store, category.Stream("read"), messagestore.NoStream, opened())
	page := testkit.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 100}))(t)
	require.Len(t, page.Messages, 2)

	write(t, slowStore, category.Stream("slow"), messagestore.NoStream, opened())

	require.Equal(t, []messagestore.StreamName{category.Stream("first"), category.Stream("read")}, streamsOf(t, store, category))
	require.Equal(t, page.Next, testkit.Do(store.End(t.Context(), category))(t))
	require.NoError(t, slow.Commit(t.Context()))
	require.Len(t, streamsOf(t, store, category), 3)
}

// If a transaction rolls back, or its process is killed, it sends no wake-up. The poll finds the
// message that it held back.
func TestAMessageBehindATransactionThatRollsBackIsFound(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	shares(t, pool, category)
	txs := testkit.Do(messagestore.Transactional[pgx.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))))(t)
	page := testkit.Do(txs.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 100}))(t)
	bell, stop := txs.Watch(category, 10*time.Millisecond)
	defer stop()

	slow, slowStore := begun(t, pool)
	write(t, slowStore, category.Stream("slow"), messagestore.NoStream, opened())
	testkit.Do(txs.Transact(t.Context(), func(context.Context, pgx.Tx) ([]messagestore.StreamWrite, error) {
		return []messagestore.StreamWrite{messagestore.To(category.Stream("fast"), messagestore.NoStream, opened())}, nil
	}))(t)

	// Its own ring, with which there is nothing to read yet.
	require.Zero(t, testkit.Receive(t, "a ring", bell))
	require.Equal(t, page.Next-1, testkit.Do(testkit.Must(postgres.New(pool, nil)).Heads(t.Context(), []messagestore.Category{category}))(t)[0])
	held := testkit.Do(txs.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 100, From: page.Next}))(t)
	require.Empty(t, held.Messages)
	require.Equal(t, page.Next, held.Next)

	require.NoError(t, slow.Rollback(t.Context()))
	for found := 0; found == 0; {
		at := testkit.Receive(t, "a ring", bell)
		if at > 0 && at < held.Next {
			continue
		}
		held = testkit.Do(txs.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 100, From: held.Next}))(t)
		found = len(held.Messages)
	}
	require.Equal(t, category.Stream("fast"), held.Messages[0].Stream)
}

// Transactions of all kinds write to a few streams of two categories, and readers follow both.
// Every message comes once, in the order of its stream.
func TestReadersOfTransactionsThatOverlapSkipNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	txs := testkit.Do(messagestore.Transactional[pgx.Tx](store))(t)
	categories := []messagestore.Category{storetest.Category(t) + "a", storetest.Category(t) + "b"}
	const writers, streams = 6, 5
	rounds := 15
	if testkit.Long() {
		rounds = 40
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // of all writers and readers together
	defer cancel()
	stream := func() messagestore.StreamName {
		return categories[rand.IntN(len(categories))].Stream(fmt.Sprint(rand.IntN(streams)))
	}
	var written, ended atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			defer ended.Add(1)
			for range rounds {
				one, two := stream(), stream()
				all := []messagestore.StreamWrite{messagestore.To(one, messagestore.AnyVersion, opened())}
				if two != one {
					all = append(all, messagestore.To(two, messagestore.AnyVersion, opened()))
				}
				var err error
				switch rand.IntN(4) {
				case 0: // it goes on for a while after its write
					tx, over, failed := begunOnce(ctx, pool)
					if failed != nil {
						t.Error(failed)
						return
					}
					if _, err = over.WriteStreams(ctx, all...); err == nil {
						_, err = tx.Exec(ctx, "select pg_sleep(0.002)")
					}
					if err == nil && rand.IntN(4) == 0 {
						all, err = nil, tx.Rollback(ctx)
					} else if err == nil {
						err = tx.Commit(ctx)
					}
					_ = tx.Conn().Close(ctx)
				case 1:
					_, err = store.WriteStreams(ctx, all...)
				default:
					_, err = txs.Transact(ctx, func(context.Context, pgx.Tx) ([]messagestore.StreamWrite, error) {
						return all, nil
					})
				}
				if err == nil {
					written.Add(int64(len(all)))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}

	seen := make([][]*messagestore.Message, len(categories))
	var readers sync.WaitGroup
	for i, category := range categories {
		readers.Go(func() {
			q := messagestore.CategoryQuery{Category: category, Limit: 7}
			for last := false; ; {
				page, err := store.ReadCategoryPage(ctx, q)
				if err != nil {
					t.Error(err)
					return
				}
				seen[i] = append(seen[i], page.Messages...)
				if q.From = page.Next; len(page.Messages) > 0 {
					continue
				}
				if last {
					return
				}
				last = ended.Load() == writers
			}
		})
	}
	wg.Wait()
	readers.Wait()
	found := 0
	for _, messages := range seen {
		found += len(messages)
		next := map[messagestore.StreamName]messagestore.Version{}
		for _, m := range messages {
			require.Equal(t, next[m.Stream], m.Position, m.Stream)
			next[m.Stream]++
		}
	}
	require.EqualValues(t, written.Load(), found)
}

func begunOnce(ctx context.Context, pool *pgxpool.Pool) (pgx.Tx, *messagestore.Store, error) {
	conn, err := pgx.Connect(ctx, pool.Config().ConnString())
	if err != nil {
		return nil, nil, err
	}
	tx, err := conn.Begin(ctx)
	return tx, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)), err
}

// A constraint of the caller's own table that is checked at COMMIT is the caller's error, and no
// reason to run the function again.
func TestAUniqueViolationOfTheCallersIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	txs := testkit.Do(messagestore.Transactional[pgx.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))))(t)
	category := storetest.Category(t)
	calls := 0

	_, err := txs.Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
		calls++
		_, err := tx.Exec(ctx, "create temp table once (id int unique deferrable initially deferred) on commit drop; insert into once values (1), (1)")
		return []messagestore.StreamWrite{messagestore.To(category.Stream("1"), messagestore.NoStream, opened())}, err
	})

	require.ErrorContains(t, err, "once_id_key")
	require.Equal(t, 1, calls)
	require.Empty(t, streamsOf(t, txs.Store, category))
}

// transacted writes appends by Transact.
func transacted(ctx context.Context, d *postgres.Driver, appends ...messagestore.Append) ([]messagestore.Written, error) {
	return d.Transact(ctx, "", func(context.Context, pgx.Tx, *messagestore.Message) ([]messagestore.Append, error) {
		return appends, nil
	})
}

// Each way to write to two streams in one transaction waits for the stream that is first by name,
// before it holds the other: so two of them never wait for each other.
func TestAWriteOfTwoStreamsLocksInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := testkit.Must(postgres.New(pool, nil))
	for name, c := range map[string]struct {
		alone bool // it takes the category for itself
		write func(first, second messagestore.Append) error
	}{
		"transact": {false, func(first, second messagestore.Append) error {
			_, err := transacted(t.Context(), driver, second, first)
			return err
		}},
		"transact, of a message and a check": {false, func(first, second messagestore.Append) error {
			first.Expected, first.Records = 0, nil
			_, err := transacted(t.Context(), driver, second, first)
			return err
		}},
		"in a caller's transaction": {false, func(first, second messagestore.Append) error {
			tx := testkit.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
			if _, err := testkit.Must(postgres.New(tx, nil)).AppendAll(t.Context(), []messagestore.Append{second, first}); err != nil {
				return err
			}
			return tx.Commit(t.Context())
		}},
		"by itself": {true, func(first, second messagestore.Append) error {
			_, err := testkit.Must(postgres.New(connect(t, pgtest.URL(t)), nil)).AppendAll(t.Context(), []messagestore.Append{second, first})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// By chance a pair of categories may have its locks in this order for any sort key, so
			// there are several pairs.
			for _, suffix := range []messagestore.Category{"1", "2", "3", "4", "5"} {
				one := storetest.Category(t) + "a" + suffix
				two := one + "b"
				for _, category := range []messagestore.Category{one, two} {
					testkit.Do(transacted(t.Context(), driver, appendOne(category.Stream("first"), messagestore.NoStream)))(t)
				}
				holder, store := begun(t, pool)
				write(t, store, one.Stream("first"), 0, opened())
				first, second := appendOne(one.Stream("first"), messagestore.AnyVersion), appendOne(two.Stream("second"), messagestore.AnyVersion)
				done := testkit.Go(func() error { return c.write(first, second) })
				testkit.AwaitTrue(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })

				// The second stream is not locked.
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var err error
				if another := appendOne(second.Stream, messagestore.NoStream); c.alone {
					_, err = driver.Append(ctx, another)
				} else {
					_, err = transacted(ctx, driver, another)
				}
				require.NoError(t, err)

				require.NoError(t, holder.Rollback(t.Context()))
				require.NoError(t, testkit.Receive(t, "the end of the write", done))
			}
		})
	}
}

// The messages of a category come in the order in which the function returned them, and not in that
// of the locks.
func TestATransactionKeepsTheOrderOfItsMessages(t *testing.T) {
	t.Parallel()
	driver, category := testkit.Must(postgres.New(pgtest.Pool(t), nil)), storetest.Category(t)
	appends := []messagestore.Append{
		appendOne(category.Stream("b"), messagestore.NoStream), appendOne(category.Stream("a"), messagestore.NoStream), appendOne(category.Stream("c"), messagestore.NoStream),
	}
	for range 2 {
		written := testkit.Do(transacted(t.Context(), driver, appends...))(t)
		require.Less(t, written[0].GlobalPosition, written[1].GlobalPosition)
		require.Less(t, written[1].GlobalPosition, written[2].GlobalPosition)
		for i := range appends {
			require.Equal(t, appends[i].Stream, written[i].Stream)
			appends[i] = appendOne(appends[i].Stream, written[i].Version)
		}
	}
}

// Its floor is there before its first position: a message is under way, its position drawn, when a
// later one is committed.
func TestNoReaderPassesAMessageOfATransactionThatIsUnderWay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, category := testkit.Must(postgres.New(pool, nil)), storetest.Category(t)
	store := testkit.Must(messagestore.New(driver, nil))
	testkit.Do(transacted(t.Context(), driver, appendOne(category.Stream("first"), messagestore.NoStream)))(t)

	// It waits for a message with the same id in the index, with its position drawn.
	slow := appendOne(category.Stream("slow"), messagestore.NoStream)
	holder := testkit.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
	same := slow
	same.Stream = (storetest.Category(t) + "held").Stream("1")
	testkit.Do(testkit.Must(postgres.New(holder, nil)).AppendAll(t.Context(), []messagestore.Append{same}))(t)
	done := testkit.Go(func() error { return testkit.ErrorOf(transacted(t.Context(), driver, slow)) })
	testkit.AwaitTrue(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })
	testkit.Do(transacted(t.Context(), driver, appendOne(category.Stream("fast"), messagestore.NoStream)))(t)

	require.Equal(t, []messagestore.StreamName{category.Stream("first")}, streamsOf(t, store, category))

	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, testkit.Receive(t, "the end of the transaction", done))
	require.Equal(t, []messagestore.StreamName{category.Stream("first"), category.Stream("slow"), category.Stream("fast")}, streamsOf(t, store, category))
}

// The id of the message becomes another message's while the transaction is under way.
func TestATransactionIsToldThatAnIdIsTaken(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, category := testkit.Must(postgres.New(pool, nil)), storetest.Category(t)
	for _, same := range []bool{true, false} {
		a := appendOne(category.Stream("late"), messagestore.AnyVersion)
		other := a
		if !same {
			other.Stream = category.Stream("early")
		}
		holder := testkit.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
		early := testkit.Do(testkit.Must(postgres.New(holder, nil)).AppendAll(t.Context(), []messagestore.Append{other}))(t)
		type end struct {
			written []messagestore.Written
			err     error
		}
		done := testkit.Go(func() end {
			var e end
			e.err = retried(func() (err error) {
				e.written, err = transacted(t.Context(), driver, a)
				return err
			})
			return e
		})
		testkit.AwaitTrue(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })
		require.NoError(t, holder.Commit(t.Context()))

		e := testkit.Receive(t, "the end of the transaction", done)
		if same {
			early[0].Duplicate = true
			require.NoError(t, e.err)
			require.Equal(t, early, e.written)
			continue
		}
		require.ErrorIs(t, e.err, messagestore.ErrIDConflict)
	}
}

// A transaction waits for another that writes to its stream, and goes behind it.
func TestATransactionGoesBehindAnotherOfItsStream(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	testkit.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.NoStream)))(t)
	holder, store := begun(t, pool)
	write(t, store, stream, 0, opened())
	done := testkit.Go(func() error {
		written, err := transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion))
		if err == nil && written[0].Version != 2 {
			err = fmt.Errorf("it is at %d", written[0].Version)
		}
		return err
	})
	testkit.AwaitTrue(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })
	require.NoError(t, holder.Commit(t.Context()))
	require.NoError(t, testkit.Receive(t, "the end of the transaction", done))
}

// A question for a lost write keeps transactions that were sent before it from being committed:
// they carry an older fence.
func TestATransactionOfBeforeAQuestionIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, other, stream := testkit.Must(postgres.New(pool, nil)), testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	testkit.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.NoStream)))(t)
	lost := appendOne(stream, messagestore.AnyVersion)
	require.Empty(t, testkit.Do(other.Find(t.Context(), stream, []uuid.UUID{lost.Records[0].ID}))(t))

	_, err := transacted(t.Context(), driver, lost)

	require.ErrorAs(t, err, new(*calling.RetryableError))
	require.ErrorContains(t, err, "a fence was raised")
	testkit.Do(transacted(t.Context(), driver, lost))(t)
}

// All messages are recorded, one of them is, or one stream is at another version: the answer is for
// all.
func TestARefusedTransactionIsToldWhatItMet(t *testing.T) {
	t.Parallel()
	driver, category := testkit.Must(postgres.New(pgtest.Pool(t), nil)), storetest.Category(t)
	a, b := appendOne(category.Stream("a"), messagestore.NoStream), appendOne((category+"b").Stream("b"), messagestore.NoStream)
	first := testkit.Do(transacted(t.Context(), driver, b, a))(t)

	again := testkit.Do(transacted(t.Context(), driver, b, a))(t)
	for i := range first {
		first[i].Duplicate = true
	}
	require.Equal(t, first, again)

	require.ErrorIs(t, testkit.ErrorOf(transacted(t.Context(), driver, a, appendOne((category+"b").Stream("new"), messagestore.NoStream))), messagestore.ErrIDConflict)

	conflict := new(messagestore.VersionConflictError)
	require.ErrorAs(t, testkit.ErrorOf(transacted(t.Context(), driver, appendOne((category+"b").Stream("b"), 7), appendOne(category.Stream("a"), 8))), &conflict)
	require.Equal(t, messagestore.VersionConflictError{Stream: b.Stream, Expected: 7, Actual: 0}, *conflict)
}

// A store that was put back may have lost the mark by which readers know that a category is shared.
func TestATransactionMarksACategoryAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver, stream := testkit.Must(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	for _, lost := range []string{"delete from dibs.fences", "update dibs.fences set shared = false"} {
		testkit.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion)))(t)
		testkit.Do(pool.Exec(t.Context(), lost))(t)

		require.ErrorAs(t, testkit.ErrorOf(transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion))), new(*calling.RetryableError))
		for range 2 {
			testkit.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion)))(t)
		}

		require.True(t, pgtest.Value[bool](t, pool, "select shared from dibs.fences where category = $1", string(stream.Category())))
	}
}

// In a category of which a stream was erased, a transaction writes to that stream and to others.
func TestATransactionWritesToAStreamThatWasErased(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, category := testkit.Must(postgres.New(pool, nil)), storetest.Category(t)
	testkit.Do(transacted(t.Context(), driver, appendOne(category.Stream("gone"), messagestore.NoStream)))(t)
	testkit.Do(testkit.Must(admin.New(pool, nil)).Delete(t.Context(), category.Stream("gone"), 0, &retention.DeleteOptions{EraseName: true}))(t)

	require.ErrorIs(t, testkit.ErrorOf(transacted(t.Context(), driver, appendOne(category.Stream("gone"), messagestore.NoStream))), messagestore.ErrVersionConflict)
	written := testkit.Do(transacted(t.Context(), driver, appendOne(category.Stream("gone"), messagestore.AnyVersion)))(t)
	require.EqualValues(t, 2, written[0].Version)
	written = testkit.Do(transacted(t.Context(), driver, appendOne(category.Stream("other"), messagestore.NoStream)))(t)
	require.EqualValues(t, 0, written[0].Version)
}

// A trigger that is deferred to COMMIT writes a message for each row of a table of the caller's.
func TestATriggerAtCommitWritesMessages(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	store, category := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), storetest.Category(t)
	testkit.Do(pool.Exec(t.Context(), `
		create table public.staged (stream text, id uuid);
		create function public.send() returns trigger language plpgsql as $$
		begin
			perform dibs.append_shared(new.stream, -2, new.id, 'Sent', '{}', null);
			return null;
		end $$;
		create constraint trigger send after insert on public.staged deferrable initially deferred for each row execute function public.send()`))(t)
	id := uuid.Must(uuid.NewV7())

	tx := testkit.Do(pool.Begin(t.Context()))(t)
	testkit.Do(tx.Exec(t.Context(), "insert into public.staged values ($1, $2), ($3, gen_random_uuid())", string(category.Stream("1")), id, string(category.Stream("2"))))(t)
	require.Empty(t, streamsOf(t, store, category))
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, []messagestore.StreamName{category.Stream("1"), category.Stream("2")}, streamsOf(t, store, category))

	for sqlstate, values := range map[string]string{
		"23505": "('" + string(category.Stream("3")) + "', '" + id.String() + "')", // recorded already
		"DB001": "('" + string(category) + "', gen_random_uuid())",                 // no stream
	} {
		_, err := pool.Exec(t.Context(), "insert into public.staged values "+values)
		refused := new(pgconn.PgError)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, sqlstate, refused.Code)
	}
	require.Len(t, streamsOf(t, store, category), 2)
}
