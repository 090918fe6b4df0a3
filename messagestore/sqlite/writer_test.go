package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// hold takes the write lock of a file, as another process may, and returns a function that
// releases it.
func hold(t testing.TB, path string) (release func()) {
	t.Helper()
	tx := begin(t, database(t, path))
	return func() { require.NoError(t, tx.Rollback()) }
}

// until waits for a condition.
func until(t testing.TB, condition func() bool) {
	t.Helper()
	await.True(t, "the writer has come so far", condition)
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
	until(t, func() bool { return driver.Queued() == 1 })
	for i, call := range calls {
		done.Go(func() { errs[i] = call() })
		until(t, func() bool { return driver.Queued() == i+2 })
	}
	if before != nil {
		before()
	}
	release()
	done.Wait()
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

func TestBusyCallersShareCommits(t *testing.T) {
	t.Parallel()
	driver := open(t, newFile(t), nil)

	appendFrom(t, driver, 64, 1000)

	commits, calls := driver.Commits()
	require.EqualValues(t, 1000, calls)
	require.Less(t, commits, calls/4)
}

func TestGroupOfOneCommitsEachByItself(t *testing.T) {
	t.Parallel()
	driver := open(t, newFile(t), &sqlite.Config{MaxGroup: 1, Readers: 1})

	appendFrom(t, driver, 16, 200)

	commits, calls := driver.Commits()
	require.EqualValues(t, 200, calls)
	require.EqualValues(t, 200, commits)
}

func TestBadAppendHarmsNoneOfItsGroup(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	recorded := appendOf("account-0", messagestore.NoStream, 1)
	_, err := driver.Append(t.Context(), recorded)
	require.NoError(t, err)
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
	conflict, ok := errors.AsType[*messagestore.VersionConflictError](errs[1])
	require.True(t, ok)
	require.EqualValues(t, 0, conflict.Actual)
	require.ErrorIs(t, errs[2], messagestore.ErrVersionConflict)
	require.ErrorIs(t, errs[3], messagestore.ErrIDConflict)
	require.NoError(t, errs[4])
	require.NoError(t, errs[5])
	require.NoError(t, errs[6])
	for stream, want := range map[messagestore.StreamName]messagestore.Version{
		"account-0": 0, "account-1": 2, "account-2": messagestore.NoStream, "account-3": 0,
	} {
		got, err := driver.Version(t.Context(), stream)
		require.NoError(t, err)
		require.Equal(t, want, got, stream)
	}
	commits, _ := driver.Commits()
	require.EqualValues(t, 2, commits)
}

func TestFailedAppendHarmsNoneOfItsGroup(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver, err := sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
		if strings.HasSuffix(statement, "[account-bad]") {
			_ = on.execute("ROLLBACK")    // as SQLite does by itself, or does not
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		}
		return nil
	}), path, nil)
	require.NoError(t, err)
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
		got, err := driver.Version(t.Context(), stream)
		require.NoError(t, err)
		require.Equal(t, want, got, stream)
	}
}

func TestWhatWasFoundMissingIsNotWrittenThoughItsGroupWas(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	var stop atomic.Bool
	again, blocked := make(chan struct{}), make(chan struct{})
	proceed := sync.OnceFunc(func() { close(blocked) })
	driver, err := sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
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
	}), path, nil)
	require.NoError(t, err)
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
	until(t, func() bool { return driver.Queued() == 1 })
	go func() {
		_, err := messagestore.New(driver, nil).Write(ctx, "account-1", messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
		result <- err
	}()
	until(t, func() bool { return driver.Queued() == 2 })
	release()
	<-begun // the group has fallen apart, and the lock is free
	leave()
	err = <-result
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)

	_, err = messagestore.New(open(t, path, nil), nil).Resolve(t.Context(), err)

	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	proceed()
	require.NoError(t, errors.Join(<-others, <-others))
	_, err = driver.Append(t.Context(), appendOf("account-2", messagestore.NoStream, 1)) // after all of the group
	require.NoError(t, err)
	version, err := driver.Version(t.Context(), "account-1")
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
}

func TestAGroupThatFellApartWaitsForALockOnce(t *testing.T) {
	t.Parallel()
	const timeout, many = 100 * time.Millisecond, 20
	path := newFile(t)
	held := make(chan func(), 1)
	driver, err := sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
		if strings.HasSuffix(statement, "[account-bad]") {
			_ = on.execute("ROLLBACK")
			held <- hold(t, path)
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		}
		return nil
	}), path, &sqlite.Config{BusyTimeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	var asked sync.WaitGroup
	errs := make([]error, many+1)
	for i := range errs {
		stream := messagestore.StreamName(fmt.Sprintf("account-%d", i))
		if i == many {
			stream = "account-bad"
		}
		asked.Go(func() { _, errs[i] = driver.Append(t.Context(), appendOf(stream, messagestore.NoStream, 1)) })
	}
	release := <-held
	defer release()
	began := time.Now()

	asked.Wait()

	require.Less(t, time.Since(began), many*timeout/2)
	for i, err := range errs {
		alone := i == many && err != nil && strings.Contains(err.Error(), "made to fail") // there was no group to fall apart
		if err != nil && !alone {                                                         // it was in a commit before
			require.ErrorIs(t, err, sqlite.ErrBusy)
		}
	}
}

func TestCallerWhoLeavesBeforeItsCommitWritesNothing(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	release := hold(t, path)
	gone, cancel := context.WithCancel(t.Context())
	results := make(chan error)
	go func() {
		_, err := driver.Append(gone, appendOf("account-1", messagestore.NoStream, 1)) // the writer asks for the lock for this one
		results <- err
	}()
	go func() {
		_, err := driver.Append(gone, appendOf("account-2", messagestore.NoStream, 1))
		results <- err
	}()
	until(t, func() bool { return driver.Queued() == 1 })

	cancel()
	for range 2 {
		err := <-results
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	}

	release()
	for _, stream := range []messagestore.StreamName{"account-1", "account-2"} {
		w, err := driver.Append(t.Context(), appendOf(stream, messagestore.NoStream, 1))
		require.NoError(t, err)
		require.EqualValues(t, 0, w.Version)
	}
}

func TestCallerWhoLeavesDuringTheCommitDoesNotKnow(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	committing, blocked := make(chan struct{}), make(chan struct{})
	proceed := sync.OnceFunc(func() { close(blocked) })
	var stop atomic.Bool
	driver, err := sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
		if statement == "COMMIT" && stop.CompareAndSwap(true, false) {
			close(committing)
			<-blocked
		}
		return nil
	}), path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	t.Cleanup(proceed)
	stop.Store(true)
	store := messagestore.New(driver, nil)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := store.Write(ctx, "account-1", messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
		result <- err
	}()
	<-committing
	cancel()
	left := time.Now()

	err = <-result

	require.Less(t, time.Since(left), time.Second)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.Canceled)
	proceed()
	written, err := store.Resolve(t.Context(), err)
	require.NoError(t, err)
	require.EqualValues(t, 0, written[0].Version)
}

func TestBusyDatabaseIsADefiniteError(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, &sqlite.Config{BusyTimeout: 20 * time.Millisecond})
	release := hold(t, path)

	_, err := driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1))
	require.ErrorIs(t, err, sqlite.ErrBusy)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	_, err = driver.Find(t.Context(), "account-1", []uuid.UUID{uuid.New()})
	require.ErrorIs(t, err, sqlite.ErrBusy)
	_, err = driver.Version(t.Context(), "account-1")
	require.NoError(t, err, "readers do not wait")

	release()
	_, err = driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1))
	require.NoError(t, err)
}

func TestCommitThatMeetsALockIsTriedAgain(t *testing.T) {
	t.Parallel()
	var refusals atomic.Int64
	driver, err := sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
		if statement == "COMMIT" && refusals.Add(-1) >= 0 {
			return sqliteError(5)
		}
		return nil
	}), newFile(t), &sqlite.Config{BusyTimeout: 50 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })

	refusals.Store(3)
	_, err = driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1))
	require.NoError(t, err)
	refusals.Store(1 << 40)
	_, err = driver.Append(t.Context(), appendOf("account-1", 0, 1))
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
			driver, err := sqlite.OpenWith(t.Context(), faulty(t, func(statement string, on faultyConn) error {
				if statement != "COMMIT" || failures.Add(-1) < 0 {
					return nil
				}
				if happens {
					if err := on.execute("COMMIT"); err != nil {
						return err
					}
				}
				return sqliteError(10 | 4<<8) // SQLITE_IOERR_FSYNC
			}), path, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			settled := func() (n int) {
				require.NoError(t, database(t, path).QueryRow("SELECT settled FROM dibs_store").Scan(&n))
				return n
			}

			failures.Store(1)
			a := appendOf("account-1", messagestore.NoStream, 2)
			_, err = driver.Append(t.Context(), a)
			unknown, ok := errors.AsType[*messagestore.OutcomeUnknownError](err)
			require.True(t, ok, err)
			require.Equal(t, a.Stream, unknown.Writes[0].Stream)
			require.Len(t, unknown.Writes[0].IDs, 2)
			before := settled()

			failures.Store(1)
			_, err = driver.Find(t.Context(), a.Stream, unknown.Writes[0].IDs)
			require.ErrorIs(t, err, sqliteError(10|4<<8), "what could not be settled is not found missing")
			found, err := driver.Find(t.Context(), a.Stream, unknown.Writes[0].IDs)
			require.NoError(t, err)
			if happens {
				require.Len(t, found, 2)
				return
			}
			require.Empty(t, found)
			require.Equal(t, before+1, settled())

			failures.Store(1)
			store := messagestore.New(driver, nil)
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
	await.Receive(t, "appends that are acknowledged", enough)

	var closers sync.WaitGroup
	for range 2 {
		closers.Go(func() {
			if err := driver.Close(); err != nil {
				failures <- err
			}
		})
	}
	closers.Wait()
	callers.Wait()
	close(failures)

	for err := range failures {
		require.ErrorIs(t, err, messagestore.ErrClosed)
	}
	recorded := map[any]bool{}
	for m, err := range messagestore.New(open(t, path, nil), nil).ReadStream(t.Context(), "account-1", 0) {
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
	results := make(chan error)
	for range 3 {
		go func() {
			_, err := driver.Append(t.Context(), appendOf("account-1", messagestore.AnyVersion, 1))
			results <- err
		}()
	}
	until(t, func() bool { return driver.Queued() == 2 })

	require.NoError(t, driver.Close())

	for range 3 {
		require.ErrorIs(t, <-results, messagestore.ErrClosed)
	}
	release()
}

func TestClosedDriverRefusesEveryCall(t *testing.T) {
	t.Parallel()
	driver := open(t, newFile(t), nil)
	require.NoError(t, driver.Close())
	require.NoError(t, driver.Close())

	ctx := t.Context()
	_, err := driver.Append(ctx, appendOf("account-1", messagestore.NoStream, 1))
	require.ErrorIs(t, err, messagestore.ErrClosed)
	_, err = driver.Find(ctx, "account-1", []uuid.UUID{uuid.New()})
	require.ErrorIs(t, err, messagestore.ErrClosed)
	_, err = driver.ReadStream(ctx, messagestore.StreamQuery{Stream: "account-1", Limit: 1})
	require.ErrorIs(t, err, messagestore.ErrClosed)
	_, err = driver.ReadCategory(ctx, messagestore.CategoryQuery{Category: "account", Limit: 1})
	require.ErrorIs(t, err, messagestore.ErrClosed)
	_, err = driver.ReadCategory(ctx, messagestore.CategoryQuery{Category: "account", Limit: 1, Filter: messagestore.Filter{GroupSize: 2}})
	require.ErrorIs(t, err, messagestore.ErrClosed)
	_, err = driver.Last(ctx, "account-1", "")
	require.ErrorIs(t, err, messagestore.ErrClosed)
	_, err = driver.Version(ctx, "account-1")
	require.ErrorIs(t, err, messagestore.ErrClosed)
}
