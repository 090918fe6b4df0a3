package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// TransactOptions describe the driver that [RunTransact] tests, with transactions of type Tx, and
// the SQL for a table of counters, which the options must create.
type TransactOptions[Tx any] struct {
	// Open is like [Options.Open], and returns a [messagestore.TransactDriver] of Tx.
	Open func(t *testing.T) messagestore.Driver

	// Add adds one to the counter of that name, in the transaction.
	Add func(ctx context.Context, tx Tx, counter string) error

	// Count returns the committed value of a counter: 0 before its first commit.
	Count func(t *testing.T, driver messagestore.Driver, counter string) int

	// Commit and Rollback call the transaction's own methods.
	Commit, Rollback func(ctx context.Context, tx Tx) error

	// Fail runs a statement that fails like a serialization failure or a deadlock, and returns its
	// error.
	//
	// Defaults to leaving out the sub-tests that need it: the database has no such failures.
	Fail func(ctx context.Context, tx Tx) error
}

// RunTransact tests the promises of [messagestore.TransactDriver], by way of
// [messagestore.TxStore]. [Run] tests the others.
func RunTransact[Tx any](t *testing.T, options TransactOptions[Tx]) {
	t.Helper()
	for _, test := range transactTests[Tx]() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.fails && options.Fail == nil {
				t.Skip("not applicable: the database has no failures that another attempt may not meet")
			}
			driver := options.Open(t)
			store := testkit.Do(messagestore.Transactional[Tx](testkit.Must(messagestore.New(driver, &messagestore.Config{BatchSize: 3}))))(t)
			category := freshCategory()
			test.run(t, &transacting[Tx]{
				TransactOptions: options, fixture: &fixture{driver: driver, store: store.Store, category: category}, tx: store, counter: string(category),
			})
		})
	}
}

type transactTest[Tx any] struct {
	name  string
	run   func(t *testing.T, f *transacting[Tx])
	fails bool // whether it needs a database with retryable failures
}

func transactTests[Tx any]() []transactTest[Tx] {
	return []transactTest[Tx]{
		{"Transact/CommitsBoth", commitsBoth[Tx], false},
		{"Transact/CommitsWithoutMessages", commitsWithoutMessages[Tx], false},
		{"Transact/ErrorRollsBack", errorRollsBack[Tx], false},
		{"Transact/PanicRollsBack", panicRollsBack[Tx], false},
		{"Transact/CancelledContextRollsBack", cancelledTransactRollsBack[Tx], false},
		{"Transact/ConflictRunsAgain", conflictRunsAgain[Tx], false},
		{"Transact/LastConflictIsReturned", lastConflictIsReturned[Tx], false},
		{"Transact/IDConflictRollsBack", idConflictRollsBack[Tx], false},
		{"Transact/DuplicateIsDoneOnce", duplicateIsDoneOnce[Tx], false},
		{"Transact/WritesPastTypes", transactsPastTypes[Tx], false},
		{"Transact/WritesToAStreamThatExists", transactsToAStreamThatExists[Tx], false},
		{"Transact/WritesAfterAMessage", transactsAfter[Tx], false},
		{"Transact/FirstMessageIsSeen", firstMessageIsSeen[Tx], false},
		{"Transact/CommitIsRefused", commitIsRefused[Tx], false},
		{"Transact/RollbackIsRefused", rollbackIsRefused[Tx], false},
		{"Transact/RetryableFailureRunsAgain", retryableFailureRunsAgain[Tx], true},
		{"Transact/LastRetryableFailureIsReturned", lastRetryableFailureIsReturned[Tx], true},
		{"Transact/ConcurrentCallersLoseNothing", concurrentTransacts[Tx], false},
		{"Transact/LostAnswerOfACommitIsResolved", lostAnswerIsResolved[Tx], false},
		{"Transact/LostCommitRunsAgain", lostCommitRunsAgain[Tx], false},
	}
}

// transacting is the driver, store and counter of a sub-test.
type transacting[Tx any] struct {
	TransactOptions[Tx]
	*fixture
	tx      *messagestore.TxStore[Tx]
	counter string
}

func (f *transacting[Tx]) count(t *testing.T) int {
	t.Helper()
	return f.Count(t, f.driver, f.counter)
}

// adding returns a function that counts its calls, adds one and returns writes.
func (f *transacting[Tx]) adding(calls *int, writes ...messagestore.StreamWrite) func(context.Context, Tx) ([]messagestore.StreamWrite, error) {
	return func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		*calls++
		return writes, f.Add(ctx, tx, f.counter)
	}
}

func commitsBoth[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	other := f.category.WithType("other").Stream("1")

	written := testkit.Do(f.tx.Transact(t.Context(), f.adding(&calls,
		messagestore.To(f.stream(), messagestore.NoStream, opened(2)...), messagestore.To(other, messagestore.NoStream, opened(1)...))))(t)

	require.Equal(t, 1, calls)
	require.Equal(t, 1, f.count(t))
	messages := f.read(t, f.stream())
	requireDense(t, messages)
	require.Equal(t, []string{"0", "1"}, names(t, messages))
	require.Len(t, f.read(t, other), 1)
	require.Len(t, written, 2)
	require.Equal(t, messagestore.Written{
		Stream: f.stream(), Version: 1, GlobalPosition: messages[1].GlobalPosition, Time: messages[1].Time, IDs: ids(messages),
	}, written[0])
}

func commitsWithoutMessages[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	require.Empty(t, testkit.Do(f.tx.Transact(t.Context(), f.adding(&calls)))(t))
	require.Equal(t, 1, f.count(t))
}

var errOfTheCaller = errors.New("the caller's")

func errorRollsBack[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	_, err := f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		_, addErr := f.adding(&calls)(ctx, tx)
		require.NoError(t, addErr)
		return []messagestore.StreamWrite{messagestore.To(f.stream(), messagestore.NoStream, opened(1)...)}, errOfTheCaller
	})

	require.Equal(t, errOfTheCaller, err, "as it is")
	require.Equal(t, 1, calls)
	require.Zero(t, f.count(t))
	require.Empty(t, f.read(t, f.stream()))

	_, err = f.tx.Transact(t.Context(), f.adding(&calls, messagestore.To("no stream", messagestore.NoStream, opened(1)...)))
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.Zero(t, f.count(t))
	_, err = f.tx.Transact(t.Context(), f.adding(&calls, messagestore.To(f.stream(), messagestore.NoStream, opened(1)...)))
	require.NoError(t, err, "the next transaction is sound")
	require.Equal(t, 1, f.count(t))
}

func panicRollsBack[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	require.PanicsWithValue(t, "of the caller", func() {
		_, _ = f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			testkit.Do(f.adding(&calls)(ctx, tx))(t)
			panic("of the caller")
		})
	})

	require.Zero(t, f.count(t))
	_, err := f.tx.Transact(t.Context(), f.adding(&calls, messagestore.To(f.stream(), messagestore.NoStream, opened(1)...)))
	require.NoError(t, err, "the next transaction is sound")
	require.Equal(t, 1, f.count(t))
}

func cancelledTransactRollsBack[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, testkit.ErrorOf(f.tx.Transact(ctx, f.adding(&calls))), context.Canceled)
	require.Zero(t, calls)

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	_, err := f.tx.Transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		_, addErr := f.adding(&calls)(ctx, tx)
		cancel()
		return []messagestore.StreamWrite{messagestore.To(f.stream(), messagestore.NoStream, opened(1)...)}, addErr
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Zero(t, f.count(t))
	require.Empty(t, f.read(t, f.stream()))
}

func conflictRunsAgain[Tx any](t *testing.T, f *transacting[Tx]) {
	f.fill(t, f.stream(), 1)
	calls := 0
	written := testkit.Do(f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		calls++
		expected := messagestore.NoStream // which it is not
		if calls == 2 {
			expected = 0
		}
		return []messagestore.StreamWrite{
			messagestore.To(f.stream("other"), messagestore.NoStream, opened(1)...), messagestore.To(f.stream(), expected, opened(1)...),
		}, f.Add(ctx, tx, f.counter)
	}))(t)

	require.Equal(t, 2, calls)
	require.Equal(t, messagestore.Version(1), written[1].Version)
	require.Equal(t, 1, f.count(t), "the first attempt was rolled back")
	require.Len(t, f.read(t, f.stream("other")), 1)
}

func lastConflictIsReturned[Tx any](t *testing.T, f *transacting[Tx]) {
	f.fill(t, f.stream(), 1)
	calls := 0
	_, err := f.tx.Transact(t.Context(), f.adding(&calls, messagestore.To(f.stream(), messagestore.NoStream, opened(1)...)))

	require.Equal(t, messagestore.VersionConflictError{Stream: f.stream(), Expected: messagestore.NoStream, Actual: 0}, conflict(t, err))
	require.Equal(t, 5, calls)
	require.Zero(t, f.count(t))
	require.Len(t, f.read(t, f.stream()), 1)
}

func idConflictRollsBack[Tx any](t *testing.T, f *transacting[Tx]) {
	id := uuid.New()
	f.write(t, f.stream(), messagestore.NoStream, messagestore.Envelope{ID: id, Body: Opened{Name: "first"}})
	calls := 0
	_, err := f.tx.Transact(t.Context(), f.adding(&calls, messagestore.To(f.stream("other"), messagestore.NoStream, messagestore.Envelope{ID: id, Body: Opened{Name: "second"}})))

	require.ErrorIs(t, err, messagestore.ErrIDConflict)
	require.Equal(t, 1, calls)
	require.Zero(t, f.count(t))
}

// If a transaction's messages are recorded, it was committed before, together with its SQL.
func duplicateIsDoneOnce[Tx any](t *testing.T, f *transacting[Tx]) {
	write := messagestore.To(f.stream(), messagestore.NoStream, messagestore.Envelope{ID: uuid.New(), Body: Opened{Name: "once"}})
	calls := 0
	first := testkit.Do(f.tx.Transact(t.Context(), f.adding(&calls, write)))(t)
	f.write(t, f.stream(), 0, Opened{})

	second := testkit.Do(f.tx.Transact(t.Context(), f.adding(&calls, write)))(t)

	first[0].Duplicate = true
	require.Equal(t, first, second)
	require.Equal(t, 1, f.count(t))
	require.Len(t, f.read(t, f.stream()), 2)
}

func transactsPastTypes[Tx any](t *testing.T, f *transacting[Tx]) {
	testkit.Do(f.store.Write(t.Context(), f.stream(), messagestore.NoStream, typed("Reserved", "Extended", "Waiting")...))(t)
	calls := 0

	written := testkit.Do(f.tx.Transact(t.Context(), f.adding(&calls, goingPast(messagestore.To(f.stream(), 0, typed("Confirmed")...), "Waiting", "Extended"))))(t)
	require.Equal(t, messagestore.Version(3), written[0].Version)

	written, err := f.tx.Transact(t.Context(), f.adding(&calls, goingPast(messagestore.To(f.stream(), 2), "Confirmed")))
	require.NoError(t, err, "a check alone")
	require.Equal(t, []messagestore.Written{{Stream: f.stream(), Version: 3}}, written)
	require.Equal(t, 2, calls)
	require.Equal(t, 2, f.count(t))

	for _, w := range []messagestore.StreamWrite{messagestore.To(f.stream(), 1), messagestore.To(f.stream(), 1, opened(1)...)} {
		_, err = f.tx.Transact(t.Context(), f.adding(&calls, goingPast(w, "Waiting")))
		require.Equal(t, messagestore.VersionConflictError{Stream: f.stream(), Expected: 1, Actual: 3}, conflict(t, err))
		require.Equal(t, 2, f.count(t))
	}
	require.Len(t, f.read(t, f.stream()), 4)
}

func transactsToAStreamThatExists[Tx any](t *testing.T, f *transacting[Tx]) {
	f.write(t, f.stream(), messagestore.NoStream, opened(2)...)
	calls := 0
	for _, w := range []messagestore.StreamWrite{messagestore.To(f.stream(), messagestore.StreamExists, opened(1)...), messagestore.To(f.stream(), messagestore.StreamExists)} {
		require.Equal(t, messagestore.Version(2), testkit.Do(f.tx.Transact(t.Context(), f.adding(&calls, w)))(t)[0].Version)
	}
	require.Equal(t, 2, f.count(t))

	none := f.stream("none")
	for _, w := range []messagestore.StreamWrite{messagestore.To(none, messagestore.StreamExists, opened(1)...), messagestore.To(none, messagestore.StreamExists)} {
		_, err := f.tx.Transact(t.Context(), f.adding(&calls, w))
		require.Equal(t, messagestore.VersionConflictError{Stream: none, Expected: messagestore.StreamExists, Actual: messagestore.NoStream}, conflict(t, err))
	}
	require.Equal(t, 2, f.count(t))
}

func transactsAfter[Tx any](t *testing.T, f *transacting[Tx]) {
	first := testkit.Do(f.store.Write(t.Context(), f.stream(), messagestore.NoStream, typed("Reserved", "Extended")...))(t)
	calls := 0
	for _, w := range []messagestore.StreamWrite{messagestore.To(f.stream(), 1, opened(1)...), messagestore.To(f.stream(), 1)} {
		_, err := f.tx.Transact(t.Context(), f.adding(&calls, follows(first.IDs[0], w)))
		require.Equal(t, messagestore.VersionConflictError{Stream: f.stream(), Expected: 1, Actual: 1}, conflict(t, err))
		require.Zero(t, f.count(t))
	}

	written := testkit.Do(f.tx.Transact(t.Context(), f.adding(&calls, follows(first.IDs[1], messagestore.To(f.stream(), 1, opened(1)...)), messagestore.To(f.stream("other"), messagestore.NoStream, opened(1)...))))(t)
	require.Equal(t, messagestore.Version(2), written[0].Version)
	require.Equal(t, 1, f.count(t))
}

func firstMessageIsSeen[Tx any](t *testing.T, f *transacting[Tx]) {
	var seen []*messagestore.Message
	look := func(_ context.Context, _ Tx, begun *messagestore.Message) ([]messagestore.StreamWrite, error) {
		seen = append(seen, begun)
		return nil, nil
	}
	for range 2 {
		testkit.Do(f.tx.TransactFrom(t.Context(), f.stream(), look))(t)
		f.fill(t, f.stream(), 2)
	}
	require.ErrorIs(t, testkit.ErrorOf(f.tx.TransactFrom(t.Context(), "", look)), messagestore.ErrInvalid)

	require.Equal(t, []*messagestore.Message{nil, f.read(t, f.stream())[0]}, seen)
}

func commitIsRefused[Tx any](t *testing.T, f *transacting[Tx]) { endIsRefused(t, f, f.Commit) }

func rollbackIsRefused[Tx any](t *testing.T, f *transacting[Tx]) { endIsRefused(t, f, f.Rollback) }

func endIsRefused[Tx any](t *testing.T, f *transacting[Tx], end func(context.Context, Tx) error) {
	for _, returned := range []error{nil, errOfTheCaller} {
		calls := 0
		_, err := f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			writes := testkit.Do(f.adding(&calls, messagestore.To(f.stream(), messagestore.NoStream, opened(1)...))(ctx, tx))(t)
			require.ErrorIs(t, end(ctx, tx), messagestore.ErrTransactionEnded)
			return writes, returned
		})

		require.ErrorIs(t, err, messagestore.ErrTransactionEnded)
		require.Equal(t, 1, calls)
		require.Zero(t, f.count(t))
		require.Empty(t, f.read(t, f.stream()))
	}
	calls := 0
	require.NoError(t, testkit.ErrorOf(f.tx.Transact(t.Context(), f.adding(&calls))), "the next transaction is sound")
	require.Equal(t, 1, f.count(t))
}

func retryableFailureRunsAgain[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	testkit.Do(f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		writes, err := f.adding(&calls, messagestore.To(f.stream(), messagestore.NoStream, opened(1)...))(ctx, tx)
		if err == nil && calls < 3 {
			err = fmt.Errorf("in my own words: %w", f.Fail(ctx, tx))
		}
		return writes, err
	}))(t)

	require.Equal(t, 3, calls)
	require.Equal(t, 1, f.count(t))
	require.Len(t, f.read(t, f.stream()), 1)
}

func lastRetryableFailureIsReturned[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	var last error
	_, err := f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		calls++
		last = f.Fail(ctx, tx)
		return nil, last
	})

	require.Error(t, last)
	require.Equal(t, last, err, "as it is")
	require.Equal(t, 5, calls)
}

// Each caller decides by its own reads in the transaction, so callers must not overwrite each
// other.
func concurrentTransacts[Tx any](t *testing.T, f *transacting[Tx]) {
	const callers, each = 4, 5
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for done := 0; done < each; {
				_, err := f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
					return []messagestore.StreamWrite{messagestore.To(f.stream(), messagestore.AnyVersion, opened(1)...)}, f.Add(ctx, tx, f.counter)
				})
				if err == nil {
					done++
				} else if !errors.Is(err, messagestore.ErrVersionConflict) {
					t.Errorf("transact: %v", err)
					return
				}
			}
		})
		group.Go(func() { // writers beside them
			for range each {
				if _, err := f.store.Write(t.Context(), f.stream("beside"), messagestore.AnyVersion, Opened{}); err != nil {
					t.Errorf("write: %v", err)
				}
			}
		})
	}
	group.Wait()

	require.Equal(t, callers*each, f.count(t))
	messages := f.read(t, f.stream())
	requireDense(t, messages)
	require.Len(t, messages, callers*each)
	require.Len(t, f.read(t, f.stream("beside")), callers*each)
}

// A losing driver loses the answer to its first COMMIT.
type losing[Tx any] struct {
	messagestore.TransactDriver[Tx]
	committed bool // whether that COMMIT happened
	calls     int
}

func (d *losing[Tx]) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(context.Context, Tx, *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	if f != nil {
		d.calls++
	}
	if d.calls != 1 {
		return d.TransactDriver.Transact(ctx, first, f)
	}
	lost := &messagestore.OutcomeUnknownError{Cause: errors.New("the connection was reset")}
	_, err := d.TransactDriver.Transact(ctx, first, func(ctx context.Context, tx Tx, begun *messagestore.Message) ([]messagestore.Append, error) {
		appends, err := f(ctx, tx, begun)
		if err == nil && !d.committed {
			err = lost
		}
		return appends, err
	})
	if err != nil && !errors.Is(err, lost) {
		return nil, err
	}
	return nil, lost
}

func (f *transacting[Tx]) losing(t *testing.T, committed bool) *messagestore.TxStore[Tx] {
	t.Helper()
	store := testkit.Do(messagestore.Transactional[Tx](testkit.Must(messagestore.New(&losing[Tx]{
		TransactDriver: f.driver.(messagestore.TransactDriver[Tx]), committed: committed, //nolint:errcheck // it is one
	}, nil))))(t)
	return store
}

func lostAnswerIsResolved[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	written := testkit.Do(f.losing(t, true).Transact(t.Context(), f.adding(&calls, messagestore.To(f.stream(), messagestore.NoStream, opened(2)...))))(t)

	require.Equal(t, messagestore.Version(1), written[0].Version)
	require.Equal(t, 1, calls)
	require.Equal(t, 1, f.count(t))
	require.Len(t, f.read(t, f.stream()), 2)

	_, err := f.losing(t, true).Transact(t.Context(), f.adding(&calls))
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown, "no message shows it")
	require.Equal(t, 2, calls)
	require.ErrorIs(t, testkit.ErrorOf(f.store.Resolve(t.Context(), err)), messagestore.ErrOutcomeUnknown)
}

func lostCommitRunsAgain[Tx any](t *testing.T, f *transacting[Tx]) {
	calls := 0
	written := testkit.Do(f.losing(t, false).Transact(t.Context(), f.adding(&calls, messagestore.To(f.stream(), messagestore.NoStream, opened(2)...))))(t)

	require.Equal(t, messagestore.Version(1), written[0].Version)
	require.Equal(t, 2, calls)
	require.Equal(t, 1, f.count(t))
	require.Len(t, f.read(t, f.stream()), 2)
}
