package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// serializable is held by the test that has a serializable transaction.
var serializable sync.Mutex

// alone waits, before a serializable transaction begins, until no other test has one: PostgreSQL
// may refuse one because of others on the same pages.
func alone(t *testing.T, level pgx.TxIsoLevel) {
	t.Helper()
	if level == pgx.Serializable {
		serializable.Lock()
		t.Cleanup(serializable.Unlock)
	}
}

// eachLevel runs test in a transaction of each level, which has its snapshot, with another store
// outside of it.
func eachLevel(t *testing.T, test func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store)) {
	t.Helper()
	pool := pgtest.Pool(t)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			alone(t, level)
			tx := testkit.Do(connect(t, pgtest.URL(t)).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
			testkit.Do(tx.Exec(t.Context(), "select from dibs.stream_version('snapshot-1')"))(t)

			test(t, level, tx, testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)))
		})
	}
}

func opened() messagestore.Envelope {
	return messagestore.Envelope{ID: uuid.Must(uuid.NewV7()), Body: messagestore.Raw{Type: "Opened", Data: []byte(`{"name":"Ann"}`)}}
}

func write(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) messagestore.Written {
	t.Helper()
	return testkit.Do(store.Write(t.Context(), stream, expected, bodies...))(t)
}

// requireUsable writes in the transaction, commits it, and sees it outside.
func requireUsable(t *testing.T, tx pgx.Tx, outside *messagestore.Store) {
	t.Helper()
	stream := storetest.Category(t).Stream("after")
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)), stream, messagestore.NoStream, opened())
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, messagestore.Version(0), testkit.Do(outside.Version(t.Context(), stream))(t))
}

func TestWritesCommitAndRollBackWithTheTransaction(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, _ pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		kept, undone := storetest.Category(t).Stream("kept"), storetest.Category(t).Stream("undone")
		write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)), kept, messagestore.NoStream, opened())
		savepoint := testkit.Do(tx.Begin(t.Context()))(t)
		write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(savepoint, nil)), nil)), undone, messagestore.NoStream, opened())
		require.NoError(t, savepoint.Rollback(t.Context()))
		version := testkit.Do(outside.Version(t.Context(), kept))(t)
		require.Equal(t, messagestore.NoStream, version)

		require.NoError(t, tx.Commit(t.Context()))

		version = testkit.Do(outside.Version(t.Context(), kept))(t)
		require.Equal(t, messagestore.Version(0), version)
		version = testkit.Do(outside.Version(t.Context(), undone))(t)
		require.Equal(t, messagestore.NoStream, version)
	})
}

func TestConflictLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, _ pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		stream := storetest.Category(t).Stream("1")
		inside := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil))
		first := opened()
		write(t, inside, stream, messagestore.NoStream, first)

		_, err := inside.Write(t.Context(), stream, messagestore.NoStream, opened())
		conflict := testkit.As[*messagestore.VersionConflictError](t, err)
		require.Equal(t, messagestore.VersionConflictError{Stream: stream, Expected: messagestore.NoStream, Actual: 0}, *conflict)

		first.Body = messagestore.Raw{Type: "Closed", Data: []byte(`{}`)}
		require.ErrorIs(t, testkit.ErrorOf(inside.Write(t.Context(), stream, messagestore.AnyVersion, first)), messagestore.ErrIDConflict)
		require.ErrorIs(t, testkit.ErrorOf(inside.Write(t.Context(), stream, messagestore.AnyVersion, opened(), first)), messagestore.ErrIDConflict)
		requireUsable(t, tx, outside)
	})
}

// A unique index knows the rows that were committed after the transaction's snapshot. Only at
// READ COMMITTED does a statement see it; a serializable transaction may be told to try again.
func TestConflictWithWhatTheTransactionCannotSee(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		stream := storetest.Category(t).Stream("1")
		for range 3 {
			write(t, outside, stream, messagestore.AnyVersion, opened())
		}

		_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(t.Context(), stream, messagestore.NoStream, opened(), opened())

		conflict := testkit.As[*messagestore.VersionConflictError](t, err)
		require.Equal(t, stream, conflict.Stream)
		require.Equal(t, messagestore.NoStream, conflict.Expected)
		if level == pgx.ReadCommitted {
			require.Equal(t, messagestore.Version(2), conflict.Actual)
		} else {
			require.Equal(t, messagestore.Version(0), conflict.Actual, "it is at least this")
		}
		requireUsable(t, tx, outside)
	})
}

func TestCheckMeetsWhatTheTransactionCannotSee(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, _ pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		checked, written := storetest.Category(t).Stream("checked"), storetest.Category(t).Stream("written")
		write(t, outside, checked, messagestore.NoStream, opened())
		inside := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil))

		_, err := inside.WriteStreams(t.Context(),
			messagestore.StreamWrite{Stream: checked, Expected: messagestore.NoStream},
			messagestore.StreamWrite{Stream: written, Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened()}})

		conflict := testkit.As[*messagestore.VersionConflictError](t, err)
		require.Equal(t, checked, conflict.Stream)
		requireUsable(t, tx, outside)
	})
}

// Neither the next position nor whether it is the same message can be known by a
// transaction that does not see the other: it has to be tried again.
func TestTransactionTooOldToTellIsASerializationFailure(t *testing.T) {
	t.Parallel()
	again := opened()
	for name, message := range map[string]messagestore.Envelope{"any version": opened(), "same id": again} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachLevel(t, func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
				stream := storetest.Category(t).Stream("1")
				theirs, mine, expected := opened(), message, messagestore.AnyVersion
				mine.ID = uuid.Must(uuid.NewV7())
				if name == "same id" {
					theirs, expected = mine, messagestore.NoStream
				}
				write(t, outside, stream, messagestore.NoStream, theirs)

				written, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(t.Context(), stream, expected, mine)

				if level == pgx.ReadCommitted {
					require.NoError(t, err)
					require.Equal(t, name == "same id", written.Duplicate)
					requireUsable(t, tx, outside)
					return
				}
				require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
				require.NotErrorIs(t, err, messagestore.ErrVersionConflict)
				refused := testkit.As[*pgconn.PgError](t, err)
				require.Equal(t, "40001", refused.Code)
			})
		})
	}
}

// The same id in two categories is under two locks.
func TestIDTakenInAnotherCategoryMeanwhileIsARow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, bodies := range map[string]int{"one message": 1, "several messages": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outside := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
			theirs, ours := storetest.Category(t).Stream("1"), storetest.Category(t).Stream("2")
			taken := opened()
			other := testkit.Do(pool.Begin(t.Context()))(t)
			write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(other, nil)), nil)), theirs, messagestore.NoStream, taken)

			tx := begin(t, pgx.ReadCommitted)
			done := testkit.Go(func() error {
				messages := []messagestore.Body{taken}
				for range bodies - 1 {
					messages = append(messages, opened())
				}
				_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(t.Context(), ours, messagestore.NoStream, messages...)
				return err
			})
			waitUntilBlocked(t, pool, tx.Conn().PgConn().PID())
			require.NoError(t, other.Commit(t.Context()))

			conflict := testkit.As[*messagestore.IDConflictError](t, testkit.Receive(t, "the end of the call", done))
			require.Equal(t, messagestore.IDConflictError{ID: taken.ID, Stream: theirs, Position: 0}, *conflict)
			requireUsable(t, tx, outside)
		})
	}
}

// The snapshot is older than the write that was waited for, so "not written" cannot be said.
func TestWhatATransactionCannotSeeIsNotSaidToBeNotWritten(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		stream := storetest.Category(t).Stream("1")
		message := opened()
		inside := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil))
		lost := &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: stream, Records: []messagestore.Encoded{{ID: message.ID}}}}}
		write(t, outside, stream, messagestore.NoStream, message)

		written, err := inside.Resolve(t.Context(), lost)

		if level == pgx.ReadCommitted {
			require.NoError(t, err)
			require.Equal(t, messagestore.Version(0), written[0].Version)
			requireUsable(t, tx, outside)
			return
		}
		require.NotErrorIs(t, err, messagestore.ErrNotWritten)
		refused := testkit.As[*pgconn.PgError](t, err)
		require.Equal(t, "0A000", refused.Code)
		require.Equal(t, "what was not written is known at READ COMMITTED only, and this transaction is at "+string(level), refused.Message)
	})
}

// A message that is found is there, although a transaction may not see others.
func TestWhatATransactionSeesIsFoundAtEveryLevel(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, _ pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		stream := storetest.Category(t).Stream("1")
		message := opened()
		driver := testkit.Must(postgres.New(tx, nil))
		write(t, testkit.Must(messagestore.New(driver, nil)), stream, messagestore.NoStream, message)

		require.Len(t, testkit.Do(driver.Find(t.Context(), stream, []uuid.UUID{message.ID}))(t), 1)
		requireUsable(t, tx, outside)
	})
}

func begin(t *testing.T, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	return testkit.Do(connect(t, pgtest.URL(t)).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
}

// waitUntilBlocked returns when the backend waits for somebody's lock.
func waitUntilBlocked(t *testing.T, db postgres.DB, pid uint32) {
	t.Helper()
	testkit.AwaitTrue(t, fmt.Sprintf("backend %d, which waits for a lock", pid), func() bool {
		rows, err := db.Query(t.Context(), "select cardinality(pg_blocking_pids($1)) > 0", int32(pid))
		require.NoError(t, err)
		return testkit.Do(pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]))(t)
	})
}

// Other languages' clients may call append_one in a transaction of theirs, which may be too old
// to see a conflicting row.
func TestOneMessageOfATransactionThatIsTooOldMeetsAConflict(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	tx := testkit.Do(pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
	defer tx.Rollback(t.Context())                                   //nolint:errcheck // whatever became of the test
	_, err := tx.Exec(t.Context(), "select 1 from pg_class limit 1") // it begins to see
	require.NoError(t, err)
	testkit.Do(testkit.Must(postgres.New(pool, nil)).Append(t.Context(), appendOne(stream, messagestore.NoStream)))(t)

	outcome := pgtest.Value[string](t, tx, "select outcome from dibs.append_one($1, -1, gen_random_uuid(), 'Opened', '{}', null)", string(stream))

	require.Equal(t, "version_conflict", outcome)
}
