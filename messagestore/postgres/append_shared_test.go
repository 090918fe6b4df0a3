package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// transacted writes appends by Transact.
func transacted(ctx context.Context, d *postgres.Driver, appends ...messagestore.Append) ([]messagestore.Written, error) {
	return d.Transact(ctx, "", func(context.Context, pgx.Tx, *messagestore.Message) ([]messagestore.Append, error) {
		return appends, nil
	})
}

// Each way to write to two streams in one transaction waits for the stream whose name is first, and
// does not hold the other by then: so no two of them wait for each other.
func TestAWriteOfTwoStreamsLocksInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := must.New(postgres.New(pool, nil))
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
			tx := must.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
			if _, err := must.New(postgres.New(tx, nil)).AppendAll(t.Context(), []messagestore.Append{second, first}); err != nil {
				return err
			}
			return tx.Commit(t.Context())
		}},
		"by itself": {true, func(first, second messagestore.Append) error {
			_, err := must.New(postgres.New(connect(t, pgtest.URL(t)), nil)).AppendAll(t.Context(), []messagestore.Append{second, first})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// By chance the locks of one pair of categories are in this order whatever they are
			// sorted by.
			for _, suffix := range []messagestore.Category{"1", "2", "3", "4", "5"} {
				one := storetest.Category(t) + "a" + suffix
				two := one + "b"
				for _, category := range []messagestore.Category{one, two} {
					must.Do(transacted(t.Context(), driver, appendOne(category.Stream("first"), messagestore.NoStream)))(t)
				}
				holder, store := begun(t, pool)
				write(t, store, one.Stream("first"), 0, opened())
				first, second := appendOne(one.Stream("first"), messagestore.AnyVersion), appendOne(two.Stream("second"), messagestore.AnyVersion)
				done := await.Go(func() error { return c.write(first, second) })
				await.True(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })

				// The second stream is nobody's.
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
				require.NoError(t, await.Receive(t, "the end of the write", done))
			}
		})
	}
}

// The messages of a category come in the order in which the function returned them, and not in that
// of the locks.
func TestATransactionKeepsTheOrderOfItsMessages(t *testing.T) {
	t.Parallel()
	driver, category := must.New(postgres.New(pgtest.Pool(t), nil)), storetest.Category(t)
	appends := []messagestore.Append{
		appendOne(category.Stream("b"), messagestore.NoStream), appendOne(category.Stream("a"), messagestore.NoStream), appendOne(category.Stream("c"), messagestore.NoStream),
	}
	for range 2 {
		written := must.Do(transacted(t.Context(), driver, appends...))(t)
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
	driver, category := must.New(postgres.New(pool, nil)), storetest.Category(t)
	store := must.New(messagestore.New(driver, nil))
	must.Do(transacted(t.Context(), driver, appendOne(category.Stream("first"), messagestore.NoStream)))(t)

	// It waits for a message with the same id in the index, with its position drawn.
	slow := appendOne(category.Stream("slow"), messagestore.NoStream)
	holder := must.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
	same := slow
	same.Stream = (storetest.Category(t) + "held").Stream("1")
	must.Do(must.New(postgres.New(holder, nil)).AppendAll(t.Context(), []messagestore.Append{same}))(t)
	done := await.Go(func() error { return must.ErrorOf(transacted(t.Context(), driver, slow)) })
	await.True(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })
	must.Do(transacted(t.Context(), driver, appendOne(category.Stream("fast"), messagestore.NoStream)))(t)

	require.Equal(t, []messagestore.StreamName{category.Stream("first")}, streamsOf(t, store, category))

	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, await.Receive(t, "the end of the transaction", done))
	require.Equal(t, []messagestore.StreamName{category.Stream("first"), category.Stream("slow"), category.Stream("fast")}, streamsOf(t, store, category))
}

// The id of the message becomes another message's while the transaction is under way.
func TestATransactionIsToldThatAnIdIsTaken(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, category := must.New(postgres.New(pool, nil)), storetest.Category(t)
	for _, same := range []bool{true, false} {
		a := appendOne(category.Stream("late"), messagestore.AnyVersion)
		other := a
		if !same {
			other.Stream = category.Stream("early")
		}
		holder := must.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
		early := must.Do(must.New(postgres.New(holder, nil)).AppendAll(t.Context(), []messagestore.Append{other}))(t)
		type end struct {
			written []messagestore.Written
			err     error
		}
		done := await.Go(func() end {
			var e end
			e.err = retried(func() (err error) {
				e.written, err = transacted(t.Context(), driver, a)
				return err
			})
			return e
		})
		await.True(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })
		require.NoError(t, holder.Commit(t.Context()))

		e := await.Receive(t, "the end of the transaction", done)
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
	driver, stream := must.New(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	must.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.NoStream)))(t)
	holder, store := begun(t, pool)
	write(t, store, stream, 0, opened())
	done := await.Go(func() error {
		written, err := transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion))
		if err == nil && written[0].Version != 2 {
			err = fmt.Errorf("it is at %d", written[0].Version)
		}
		return err
	})
	await.True(t, "a session that waits for the holder", func() bool { return blocks(t, pool, holder.Conn().PgConn().PID()) })
	require.NoError(t, holder.Commit(t.Context()))
	require.NoError(t, await.Receive(t, "the end of the transaction", done))
}

// A question for a lost write keeps transactions that were sent before it from being committed:
// they carry an older fence.
func TestATransactionOfBeforeAQuestionIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, other, stream := must.New(postgres.New(pool, nil)), must.New(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	must.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.NoStream)))(t)
	lost := appendOne(stream, messagestore.AnyVersion)
	require.Empty(t, must.Do(other.Find(t.Context(), stream, []uuid.UUID{lost.Records[0].ID}))(t))

	_, err := transacted(t.Context(), driver, lost)

	require.ErrorAs(t, err, new(*failure.RetryableError))
	require.ErrorContains(t, err, "a fence was raised")
	must.Do(transacted(t.Context(), driver, lost))(t)
}

// All messages are recorded, one of them is, or one stream is at another version: the answer is for
// all.
func TestARefusedTransactionIsToldWhatItMet(t *testing.T) {
	t.Parallel()
	driver, category := must.New(postgres.New(pgtest.Pool(t), nil)), storetest.Category(t)
	a, b := appendOne(category.Stream("a"), messagestore.NoStream), appendOne((category+"b").Stream("b"), messagestore.NoStream)
	first := must.Do(transacted(t.Context(), driver, b, a))(t)

	again := must.Do(transacted(t.Context(), driver, b, a))(t)
	for i := range first {
		first[i].Duplicate = true
	}
	require.Equal(t, first, again)

	require.ErrorIs(t, must.ErrorOf(transacted(t.Context(), driver, a, appendOne((category+"b").Stream("new"), messagestore.NoStream))), messagestore.ErrIDConflict)

	conflict := new(messagestore.VersionConflictError)
	require.ErrorAs(t, must.ErrorOf(transacted(t.Context(), driver, appendOne((category+"b").Stream("b"), 7), appendOne(category.Stream("a"), 8))), &conflict)
	require.Equal(t, messagestore.VersionConflictError{Stream: b.Stream, Expected: 7, Actual: 0}, *conflict)
}

// A store that was put back may have lost the mark by which readers know that a category is shared.
func TestATransactionMarksACategoryAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver, stream := must.New(postgres.New(pool, nil)), storetest.Category(t).Stream("1")
	for _, lost := range []string{"delete from dibs.fences", "update dibs.fences set shared = false"} {
		must.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion)))(t)
		must.Do(pool.Exec(t.Context(), lost))(t)

		require.ErrorAs(t, must.ErrorOf(transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion))), new(*failure.RetryableError))
		for range 2 {
			must.Do(transacted(t.Context(), driver, appendOne(stream, messagestore.AnyVersion)))(t)
		}

		require.True(t, pgtest.Value[bool](t, pool, "select shared from dibs.fences where category = $1", string(stream.Category())))
	}
}

// In a category of which a stream was erased, a transaction writes to that stream and to others.
func TestATransactionWritesToAStreamThatWasErased(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, category := must.New(postgres.New(pool, nil)), storetest.Category(t)
	must.Do(transacted(t.Context(), driver, appendOne(category.Stream("gone"), messagestore.NoStream)))(t)
	must.Do(must.New(admin.New(pool, nil)).Delete(t.Context(), category.Stream("gone"), 0, &retention.DeleteOptions{EraseName: true}))(t)

	require.ErrorIs(t, must.ErrorOf(transacted(t.Context(), driver, appendOne(category.Stream("gone"), messagestore.NoStream))), messagestore.ErrVersionConflict)
	written := must.Do(transacted(t.Context(), driver, appendOne(category.Stream("gone"), messagestore.AnyVersion)))(t)
	require.EqualValues(t, 2, written[0].Version)
	written = must.Do(transacted(t.Context(), driver, appendOne(category.Stream("other"), messagestore.NoStream)))(t)
	require.EqualValues(t, 0, written[0].Version)
}

// A trigger that is deferred to COMMIT writes a message for each row of a table of the caller's.
func TestATriggerAtCommitWritesMessages(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	store, category := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil)), storetest.Category(t)
	must.Do(pool.Exec(t.Context(), `
		create table public.staged (stream text, id uuid);
		create function public.send() returns trigger language plpgsql as $$
		begin
			perform dibs.append_shared(new.stream, -2, new.id, 'Sent', '{}', null);
			return null;
		end $$;
		create constraint trigger send after insert on public.staged deferrable initially deferred for each row execute function public.send()`))(t)
	id := uuid.Must(uuid.NewV7())

	tx := must.Do(pool.Begin(t.Context()))(t)
	must.Do(tx.Exec(t.Context(), "insert into public.staged values ($1, $2), ($3, gen_random_uuid())", string(category.Stream("1")), id, string(category.Stream("2"))))(t)
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
