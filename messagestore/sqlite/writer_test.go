package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// hold takes the write lock of a file, as another process may, and returns a function that
// releases it.
func hold(t testing.TB, path string) (release func()) {
	t.Helper()
	tx := begin(t, database(t, path))
	return func() { require.NoError(t, tx.Rollback()) }
}

// awaitQueue waits until so many calls wait for the next commit.
func awaitQueue(t testing.TB, driver *sqlite.Driver, calls int) {
	t.Helper()
	testkit.AwaitEqual(t, "calls in the queue", calls, driver.Queued)
}

// awaitAll waits for calls that are under way.
func awaitAll(t testing.TB, what string, calls *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		calls.Wait()
		close(done)
	}()
	testkit.Receive(t, what, done)
}

// together runs appends so that one commit takes them all, in order, and returns their errors.
func together(t *testing.T, driver *sqlite.Driver, path string, appends ...messagestore.Append) []error {
	t.Helper()
	calls := make([]func() error, len(appends))
	for i, a := range appends {
		calls[i] = func() error {
			_, err := driver.Append(t.Context(), a)
			return err
		}
	}
	return calledTogether(t, driver, path, nil, calls...)
}

// calledTogether makes calls that write so that one commit takes them all, in order, and
// returns their errors. Two calls that write nothing go before them: when one is in the
// queue, the writer has the other and asks for the lock. It calls before, if that is not nil,
// when all are in the queue and the lock is about to be free.
func calledTogether(t *testing.T, driver *sqlite.Driver, path string, before func(), calls ...func() error) []error {
	t.Helper()
	release := hold(t, path)
	errs := make([]error, len(calls)+2)
	var done sync.WaitGroup
	for i := range 2 {
		done.Go(func() { _, errs[len(calls)+i] = driver.Find(t.Context(), "filler-1", nil) })
	}
	awaitQueue(t, driver, 1)
	for i, call := range calls {
		done.Go(func() { errs[i] = call() })
		awaitQueue(t, driver, i+2)
	}
	if before != nil {
		before()
	}
	release()
	awaitAll(t, "the calls of a commit end", &done)
	require.NoError(t, errors.Join(errs[len(calls):]...))
	return errs[:len(calls)]
}

func TestCallersShareACommit(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	var appends []messagestore.Append
	for range 64 {
		appends = append(appends, appendOf(messagestore.StreamName("account-"+uuid.NewString()), messagestore.NoStream, 1))
	}

	for _, err := range together(t, driver, path, appends...) {
		require.NoError(t, err)
	}

	commits, calls := driver.Commits()
	require.EqualValues(t, 1, commits)
	require.EqualValues(t, 64+2, calls)
}

// inDriver reports whether a function calls a driver, [sqlite.Driver.Call] excepted. It looks at
// the stacks, since to wait for the functions' ends would order what they did before what comes
// next, and the race detector would see no race.
func inDriver(function string) bool {
	stacks := make([]byte, 8<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return slices.ContainsFunc(strings.Split(string(stacks), "\n\n"), func(stack string) bool {
		return strings.Contains(stack, function) && strings.Contains(stack, "(*Driver).") && !strings.Contains(stack, "(*Driver).Call")
	})
}

// After its caller has left, a call must not touch the caller's variables: the race detector
// watches.
func TestACallWhoseCallerHasLeftHarmsNothing(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	testkit.Do(driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 3)))(t)
	q := queuing.Queue{Name: "q", Category: "account"}
	take := queuing.Take{Queue: q, Policy: queuing.Policy{MaxFailures: 1}, Session: 1, Lease: time.Hour, Want: 1}
	testkit.Do(driver.QueueTake(t.Context(), take))(t)
	of := map[string]func(ctx context.Context) error{
		"AppendAll": func(ctx context.Context) error {
			_, err := driver.AppendAll(ctx, []messagestore.Append{appendOf("account-2", messagestore.AnyVersion, 1)})
			return err
		},
		"TryAppend": func(ctx context.Context) error {
			_, _, err := driver.TryAppend(ctx, []messagestore.Append{appendOf("account-1", messagestore.NoStream, 1)})
			return err
		},
		"Find": func(ctx context.Context) error {
			_, err := driver.Find(ctx, "account-1", []uuid.UUID{uuid.New()})
			return err
		},
		"QueueTake": func(ctx context.Context) error {
			_, err := driver.QueueTake(ctx, take)
			return err
		},
		"QueueExtend": func(ctx context.Context) error {
			_, err := driver.QueueExtend(ctx, queuing.Extension{Queue: q, Session: 1, Lease: time.Hour})
			return err
		},
		"QueueLeave": func(ctx context.Context) error { return driver.QueueLeave(ctx, queuing.Leave{Queue: q, Session: 1}) },
		"TrimCheckpoints": func(ctx context.Context) error {
			_, err := driver.TrimCheckpoints(ctx, "account-1", 1)
			return err
		},
		"Trim": func(ctx context.Context) error {
			_, err := driver.Trim(ctx, "account-1", &retention.TrimOptions{Keep: 1})
			return err
		},
		"Delete": func(ctx context.Context) error {
			_, err := driver.Delete(ctx, "account-1", messagestore.AnyVersion, nil)
			return err
		},
		"Examine": func(ctx context.Context) error {
			_, err := driver.Examine(ctx)
			return err
		},
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	calls := []func() error{func() error {
		return driver.Call(func() {
			leave()
			testkit.AwaitTrue(t, "the callers have left", func() bool { return !inDriver("CallerHasLeftHarmsNothing.func") })
		})
	}}
	for _, call := range of {
		calls = append(calls, func() error { return call(ctx) })
	}

	errs := calledTogether(t, driver, path, nil, calls...)

	require.NoError(t, errs[0])
	for _, err := range errs[1:] {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, driver.Call(func() {}), "the calls have ended")
}

// Calls that come while a commit is under way are in the next one together.
func TestBusyCallersShareCommits(t *testing.T) {
	t.Parallel()
	const callers = 64
	driver, release := committing(t, newFile(t), func(string, faultyConn) error { return nil }, patient)
	var done sync.WaitGroup
	errs := make([]error, callers)
	for i := range errs {
		done.Go(func() {
			_, errs[i] = driver.Append(t.Context(), appendOf(messagestore.StreamName("account-"+uuid.NewString()), messagestore.NoStream, 1))
		})
	}
	awaitQueue(t, driver, callers)

	release()

	awaitAll(t, "the callers end", &done)
	require.NoError(t, errors.Join(errs...))
	commits, calls := driver.Commits()
	require.EqualValues(t, 1+callers, calls)
	require.EqualValues(t, 2, commits)
}

// committing returns a driver with a fault whose first commit is under way until it is released.
func committing(t *testing.T, path string, more fault, config *sqlite.Config) (driver *sqlite.Driver, release func()) {
	t.Helper()
	begun, blocked := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	driver = testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
		if statement == "COMMIT" && armed.CompareAndSwap(true, false) {
			close(begun)
			<-blocked
		}
		return more(statement, on)
	}), path, config))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	armed.Store(true)
	first := testkit.Go(func() error {
		return testkit.ErrorOf(driver.Append(context.WithoutCancel(t.Context()), appendOf("filler-1", messagestore.AnyVersion, 1)))
	})
	proceed := sync.OnceFunc(func() { close(blocked) })
	t.Cleanup(proceed)
	testkit.Receive(t, "the first commit is under way", begun)
	return driver, func() {
		t.Helper()
		proceed()
		require.NoError(t, testkit.Receive(t, "the first commit ends", first))
	}
}

func TestGroupOfOneCommitsEachByItself(t *testing.T) {
	t.Parallel()
	driver := open(t, newFile(t), &sqlite.Config{MaxGroup: 1, Readers: 1, BusyTimeout: patient.BusyTimeout})

	appendFrom(t, driver, 16, 50)

	commits, calls := driver.Commits()
	require.EqualValues(t, 50, calls)
	require.EqualValues(t, 50, commits)
}

func TestBadAppendHarmsNoneOfItsGroup(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	recorded := appendOf("account-0", messagestore.NoStream, 1)
	testkit.Do(driver.Append(t.Context(), recorded))(t)
	reused := appendOf("account-3", messagestore.NoStream, 3)
	reused.Records[2].ID = recorded.Records[0].ID

	errs := together(
		t, driver, path,
		appendOf("account-1", messagestore.NoStream, 1),
		appendOf("account-1", messagestore.NoStream, 2), // after the one before it
		appendOf("account-2", 7, 2),
		reused,
		appendOf("account-1", 0, 2), // after the first
		recorded,                    // again
		appendOf("account-3", messagestore.NoStream, 1),
	)

	require.NoError(t, errs[0])
	conflict := testkit.As[*messagestore.VersionConflictError](t, errs[1])
	require.EqualValues(t, 0, conflict.Actual)
	require.ErrorIs(t, errs[2], messagestore.ErrVersionConflict)
	require.ErrorIs(t, errs[3], messagestore.ErrIDConflict)
	require.NoError(t, errs[4])
	require.NoError(t, errs[5])
	require.NoError(t, errs[6])
	for stream, want := range map[messagestore.StreamName]messagestore.Version{
		"account-0": 0, "account-1": 2, "account-2": messagestore.NoStream, "account-3": 0,
	} {
		require.Equal(t, want, testkit.Do(driver.Version(t.Context(), stream))(t), stream)
	}
	commits, _ := driver.Commits()
	require.EqualValues(t, 2, commits)
}

func TestFailedAppendHarmsNoneOfItsGroup(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
		if strings.HasSuffix(statement, "[account-bad]") {
			_ = on.execute("ROLLBACK")    // as SQLite does by itself, or does not
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		}
		return nil
	}), path, patient))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })

	errs := together(
		t, driver, path,
		appendOf("account-1", messagestore.NoStream, 1),
		appendOf("account-bad", messagestore.NoStream, 2),
		appendOf("account-2", messagestore.NoStream, 2),
	)

	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], sqliteError(10|1<<8))
	require.NotErrorIs(t, errs[1], messagestore.ErrOutcomeUnknown)
	require.NoError(t, errs[2])
	for stream, want := range map[messagestore.StreamName]messagestore.Version{"account-1": 0, "account-2": 1} {
		require.Equal(t, want, testkit.Do(driver.Version(t.Context(), stream))(t), stream)
	}
}

func TestWhatWasFoundMissingIsNotWrittenThoughItsGroupWas(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	var stop atomic.Bool
	again, blocked := make(chan struct{}), make(chan struct{})
	proceed := sync.OnceFunc(func() { close(blocked) })
	driver := testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
		switch {
		case strings.HasSuffix(statement, "[account-bad]") && stop.CompareAndSwap(false, true):
			_ = on.execute("ROLLBACK")
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		case statement == "BEGIN IMMEDIATE" && stop.Load() && again != nil:
			close(again)
			again = nil // one goroutine writes
			<-blocked
		}
		return nil
	}), path, patient))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	t.Cleanup(proceed)
	begun := again
	release := hold(t, path)
	ctx, leave := context.WithCancel(t.Context())
	result, others := make(chan error, 1), make(chan error, 2)
	go func() {
		_, err := driver.Find(t.Context(), "filler-1", nil)
		others <- err
	}()
	go func() {
		_, err := driver.Append(t.Context(), appendOf("account-bad", messagestore.NoStream, 1))
		others <- err
	}()
	awaitQueue(t, driver, 1)
	go func() {
		_, err := testkit.Must(messagestore.New(driver, nil)).Write(ctx, "account-1", messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
		result <- err
	}()
	awaitQueue(t, driver, 2)
	release()
	testkit.Receive(t, "the group falls apart", begun) // and the lock is free
	leave()
	err := testkit.Receive(t, "the call ends", result)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)

	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(messagestore.New(open(t, path, nil), nil)).Resolve(t.Context(), err)), messagestore.ErrNotWritten)
	proceed()
	require.NoError(t, errors.Join(testkit.Receive(t, "a call ends", others), testkit.Receive(t, "a call ends", others)))
	_, err = driver.Append(t.Context(), appendOf("account-2", messagestore.NoStream, 1)) // after all of the group
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, testkit.Do(driver.Version(t.Context(), "account-1"))(t))
}

// The group asks for the lock as often as one write may in its time, and then once for each other
// write.
func TestAGroupThatFellApartWaitsForALockOnce(t *testing.T) {
	t.Parallel()
	const timeout, many, leastPause = 200 * time.Millisecond, 20, time.Millisecond / 2
	path := newFile(t)
	open(t, path, nil)
	another := database(t, path)
	var asked atomic.Int64
	held, holding := make(chan *sql.Tx, 1), false // one goroutine writes
	driver, release := committing(t, path, func(statement string, on faultyConn) error {
		switch {
		case statement == "BEGIN IMMEDIATE" && holding:
			asked.Add(1)
		case strings.HasSuffix(statement, "[account-bad]"):
			_ = on.execute("ROLLBACK")
			tx, err := another.BeginTx(context.WithoutCancel(t.Context()), nil)
			if err != nil {
				return err
			}
			held <- tx
			holding = true
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		}
		return nil
	}, &sqlite.Config{BusyTimeout: timeout})
	var calls sync.WaitGroup
	errs := make([]error, many+1)
	for i := range errs {
		stream := messagestore.StreamName(fmt.Sprintf("account-%d", i))
		if i == many {
			stream = "account-bad"
		}
		calls.Go(func() { _, errs[i] = driver.Append(t.Context(), appendOf(stream, messagestore.NoStream, 1)) })
	}
	awaitQueue(t, driver, len(errs))

	release()

	tx := testkit.Receive(t, "another process holds the lock", held)
	awaitAll(t, "the calls end", &calls)
	require.NoError(t, tx.Rollback())
	for _, err := range errs {
		require.ErrorIs(t, err, sqlite.ErrBusy)
	}
	require.Greater(t, asked.Load(), int64(many))
	require.LessOrEqual(t, asked.Load(), int64(timeout/leastPause+1+many))
}

func TestCallerWhoLeavesBeforeItsCommitWritesNothing(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	release := hold(t, path)
	gone, cancel := context.WithCancel(t.Context())
	results := make(chan error, 3)
	go func() {
		_, err := driver.Append(gone, appendOf("account-1", messagestore.NoStream, 1)) // the writer asks for the lock for this one
		results <- err
	}()
	go func() {
		_, err := driver.Append(gone, appendOf("account-2", messagestore.NoStream, 1))
		results <- err
	}()
	awaitQueue(t, driver, 1)

	cancel()
	for range 2 {
		err := testkit.Receive(t, "a call ends", results)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	}

	release()
	for _, stream := range []messagestore.StreamName{"account-1", "account-2"} {
		require.EqualValues(t, 0, testkit.Do(driver.Append(t.Context(), appendOf(stream, messagestore.NoStream, 1)))(t).Version)
	}
}

func TestCallerWhoLeavesDuringTheCommitDoesNotKnow(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	committing, blocked := make(chan struct{}), make(chan struct{})
	proceed := sync.OnceFunc(func() { close(blocked) })
	var stop atomic.Bool
	driver := testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
		if statement == "COMMIT" && stop.CompareAndSwap(true, false) {
			close(committing)
			<-blocked
		}
		return nil
	}), path, patient))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	t.Cleanup(proceed)
	stop.Store(true)
	store := testkit.Must(messagestore.New(driver, nil))
	ctx, cancel := context.WithCancel(t.Context())
	result := testkit.Go(func() error {
		return testkit.ErrorOf(store.Write(ctx, "account-1", messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)}))
	})
	testkit.Receive(t, "the commit is under way", committing)
	cancel()

	err := testkit.Receive(t, "the call ends though its commit does not", result)

	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.Canceled)
	proceed()
	require.EqualValues(t, 0, testkit.Do(store.Resolve(t.Context(), err))(t)[0].Version)
}

func TestBusyDatabaseIsADefiniteError(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, &sqlite.Config{BusyTimeout: 20 * time.Millisecond})
	release := hold(t, path)

	_, err := driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1))
	require.ErrorIs(t, err, sqlite.ErrBusy)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, testkit.ErrorOf(driver.Find(t.Context(), "account-1", []uuid.UUID{uuid.New()})), sqlite.ErrBusy)
	require.NoError(t, testkit.ErrorOf(driver.Version(t.Context(), "account-1")), "readers do not wait")

	release()
	testkit.Do(driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1)))(t)
}

func TestCommitThatMeetsALockIsTriedAgain(t *testing.T) {
	t.Parallel()
	var refusals atomic.Int64
	path := newFile(t)
	name := faulty(t, func(statement string, _ faultyConn) error {
		if statement == "COMMIT" && refusals.Add(-1) >= 0 {
			return sqliteError(5)
		}
		return nil
	})
	driver := testkit.Do(sqlite.OpenWith(t.Context(), name, path, patient))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	hasty := testkit.Do(sqlite.OpenWith(t.Context(), name, path, &sqlite.Config{BusyTimeout: 50 * time.Millisecond}))(t)
	t.Cleanup(func() { require.NoError(t, hasty.Close()) })

	refusals.Store(3)
	testkit.Do(driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1)))(t)
	require.Negative(t, refusals.Load())
	refusals.Store(1 << 40)
	_, err := hasty.Append(t.Context(), appendOf("account-1", 0, 1))
	require.ErrorIs(t, err, sqlite.ErrBusy)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)

	refusals.Store(0)
	w, err := driver.Append(t.Context(), appendOf("account-1", 0, 1))
	require.NoError(t, err, "it was rolled back")
	require.EqualValues(t, 1, w.Version)
}

// A commit that fails may have left all of itself in the log, where a crash would
// bring it back: it is neither done nor undone until Find has settled it.
func TestFailedCommitIsUnknownUntilItIsSettled(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]bool{"it happened": true, "it did not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			var failures atomic.Int64
			driver := testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
				if statement != "COMMIT" || failures.Add(-1) < 0 {
					return nil
				}
				if happens {
					if err := on.execute("COMMIT"); err != nil {
						return err
					}
				}
				return sqliteError(10 | 4<<8) // SQLITE_IOERR_FSYNC
			}), path, patient))(t)
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			settled := func() (n int) {
				require.NoError(t, database(t, path).QueryRow("SELECT settled FROM dibs_store").Scan(&n))
				return n
			}

			failures.Store(1)
			a := appendOf("account-1", messagestore.NoStream, 2)
			_, err := driver.Append(t.Context(), a)
			unknown := testkit.As[*messagestore.OutcomeUnknownError](t, err)
			require.Equal(t, a.Stream, unknown.Writes[0].Stream)
			require.Len(t, unknown.Writes[0].Records, 2)
			before := settled()

			failures.Store(1)
			_, err = driver.Find(t.Context(), a.Stream, []uuid.UUID{a.Records[0].ID, a.Records[1].ID})
			require.ErrorIs(t, err, sqliteError(10|4<<8), "what could not be settled is not found missing")
			found := testkit.Do(driver.Find(t.Context(), a.Stream, []uuid.UUID{a.Records[0].ID, a.Records[1].ID}))(t)
			if happens {
				require.Len(t, found, 2)
				return
			}
			require.Empty(t, found)
			require.Equal(t, before+1, settled())

			failures.Store(1)
			store := testkit.Must(messagestore.New(driver, nil))
			w, err := store.Write(t.Context(), "account-1", messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
			require.NoError(t, err, "the store asks, and writes again")
			require.EqualValues(t, 0, w.Version)
		})
	}
}

func TestCloseDuringLoadLosesNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	var acked, refused sync.Map
	var count atomic.Int64
	enough := make(chan struct{})
	var callers sync.WaitGroup
	failures := make(chan error, 32)
	for range 32 {
		callers.Go(func() {
			for {
				a := appendOf("account-1", messagestore.AnyVersion, 2)
				if _, err := driver.Append(t.Context(), a); err != nil {
					refused.Store(a.Records[0].ID, true)
					failures <- err
					return
				}
				acked.Store(a.Records[0].ID, true)
				if count.Add(1) == 200 {
					close(enough)
				}
			}
		})
	}
	testkit.Receive(t, "enough is acknowledged", enough)

	var closers sync.WaitGroup
	for range 2 {
		closers.Go(func() {
			if err := driver.Close(); err != nil {
				failures <- err
			}
		})
	}
	awaitAll(t, "the closers end", &closers)
	awaitAll(t, "the callers end", &callers)
	close(failures)

	for err := range failures {
		require.ErrorIs(t, err, messagestore.ErrClosed)
	}
	recorded := map[any]bool{}
	for m, err := range testkit.Must(messagestore.New(open(t, path, nil), nil)).ReadStream(t.Context(), "account-1", 0) {
		require.NoError(t, err)
		recorded[m.ID] = true
	}
	acked.Range(func(id, _ any) bool { require.True(t, recorded[id], "acknowledged and lost"); return true })
	refused.Range(func(id, _ any) bool { require.False(t, recorded[id], "refused and written"); return true })
}

func TestCloseDoesNotWaitForAnothersLock(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	release := hold(t, path)
	results := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := driver.Append(t.Context(), appendOf("account-1", messagestore.AnyVersion, 1))
			results <- err
		}()
	}
	awaitQueue(t, driver, 2)

	require.NoError(t, driver.Close())

	for range 3 {
		require.ErrorIs(t, testkit.Receive(t, "a call ends", results), messagestore.ErrClosed)
	}
	release()
}

// everyCall are the methods of a driver that use its database.
var everyCall = map[string]func(ctx context.Context, d *sqlite.Driver) error{
	"append": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.Append(ctx, appendOf("account-1", messagestore.AnyVersion, 1))
		return err
	},
	"append all": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.AppendAll(ctx, []messagestore.Append{appendOf("account-1", messagestore.AnyVersion, 1)})
		return err
	},
	"append or meet": func(ctx context.Context, d *sqlite.Driver) error {
		_, _, err := d.TryAppend(ctx, []messagestore.Append{appendOf("account-1", messagestore.AnyVersion, 1)})
		return err
	},
	"find": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.Find(ctx, "account-1", []uuid.UUID{uuid.New()})
		return err
	},
	"read stream": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.ReadStream(ctx, messagestore.StreamQuery{Stream: "account-1", Limit: 1})
		return err
	},
	"read category": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.ReadCategory(ctx, messagestore.CategoryQuery{Category: "account", Limit: 1})
		return err
	},
	"read category with a filter": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.ReadCategory(ctx, messagestore.CategoryQuery{Category: "account", Limit: 1, Filter: messagestore.Filter{GroupSize: 2}})
		return err
	},
	"last":    func(ctx context.Context, d *sqlite.Driver) error { return found(d.Last(ctx, "account-1", "")) },
	"version": func(ctx context.Context, d *sqlite.Driver) error { _, err := d.Version(ctx, "account-1"); return err },
	"now":     func(ctx context.Context, d *sqlite.Driver) error { _, err := d.Now(ctx); return err },
	"report": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.Report(ctx, report.Query{By: []report.Key{report.ByType}})
		return err
	},
	"categories": func(ctx context.Context, d *sqlite.Driver) error { _, err := d.Categories(ctx, ""); return err },
	"count": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.Count(ctx, messagestore.CategoryQuery{Category: "account", Limit: 1})
		return err
	},
	"check":         func(ctx context.Context, d *sqlite.Driver) error { return d.Check(ctx, true) },
	"check reading": func(ctx context.Context, d *sqlite.Driver) error { return d.Check(ctx, false) },
	"examine":       func(ctx context.Context, d *sqlite.Driver) error { _, err := d.Examine(ctx); return err },
	"verify":        func(ctx context.Context, d *sqlite.Driver) error { _, err := d.Verify(ctx, nil); return err },
	"trim": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.Trim(ctx, "account-1", &retention.TrimOptions{Keep: 1})
		return err
	},
	"trim checkpoints": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.TrimCheckpoints(ctx, "account:position-1", 1)
		return err
	},
	"trim category": func(ctx context.Context, d *sqlite.Driver) error {
		for _, err := range d.TrimCategory(ctx, "account", &retention.TrimOptions{Keep: 1}) {
			return err
		}
		return nil
	},
	"forget": func(ctx context.Context, d *sqlite.Driver) error {
		_, err := d.Forget(ctx, "account:inbox", removal.InboxKeyLife, nil)
		return err
	},
}

func found(_ *messagestore.Message, err error) error {
	if errors.Is(err, messagestore.ErrNotFound) {
		return nil
	}
	return err
}

func TestClosedDriverRefusesEveryCall(t *testing.T) {
	t.Parallel()
	closed := open(t, newFile(t), nil)
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	drivers := map[string]*sqlite.Driver{"closed": closed}
	over := func(of string, tx *sql.Tx, end func() error) {
		drivers[of+", not used before"] = testkit.Must(sqlite.New(tx))
		drivers[of] = testkit.Must(sqlite.New(tx))
		for call, f := range everyCall {
			require.NoError(t, f(t.Context(), drivers[of]), call) // which prepares its statements
		}
		require.NoError(t, end())
	}
	tx := begin(t, newDatabase(t))
	over("committed", tx, tx.Commit)
	tx = begin(t, newDatabase(t))
	over("rolled back", tx, tx.Rollback)

	for of, driver := range drivers {
		for call, f := range everyCall {
			err := f(t.Context(), driver)

			require.ErrorIs(t, err, messagestore.ErrClosed, "%s: %s", of, call)
			require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, "%s: %s", of, call)
		}
	}
	require.ErrorIs(t, sqlite.Schema(t.Context(), tx), messagestore.ErrClosed)
}

// The end of a context that a transaction was begun with rolls it back.
func TestTransactionOfAnEndedContextRefusesEveryCall(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	tx := testkit.Do(newDatabase(t).BeginTx(ctx, nil))(t)
	driver := testkit.Must(sqlite.New(tx))
	require.NoError(t, everyCall["append"](t.Context(), driver))

	cancel()

	testkit.AwaitTrue(t, "the transaction's end", func() bool { return everyCall["now"](t.Context(), driver) != nil })
	for call, f := range everyCall {
		require.ErrorIs(t, f(t.Context(), driver), messagestore.ErrClosed, call)
	}
}

// A write that panics, or ends its goroutine, is an error of the calls that are committed together,
// and the next is written.
func TestAPanicIsAnErrorOfTheWritesThatWentTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	driver := testkit.Must(sqlite.Open(t.Context(), path, nil))
	defer driver.Close()
	for what, breaks := range map[string]func(){"a panic": func() { panic("broken") }, "the end of a goroutine": runtime.Goexit} {
		release := hold(t, path)
		errs := make(chan error, 3)
		for i, f := range []func(){func() {}, func() {}, breaks} {
			go func() { errs <- driver.Write(t.Context(), f, messagestore.ErrOutcomeUnknown) }()
			awaitQueue(t, driver, i)
		}
		release()
		for range 3 {
			err := testkit.Receive(t, "a write", errs)
			require.NotNil(t, calling.PanicOf(err), "%s: %v", what, err)
			require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		}
		require.NoError(t, driver.Write(t.Context(), func() {}, nil))
	}
}
