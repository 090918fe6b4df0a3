package intenttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// RunTransact tests intents that are confirmed in the caller's transaction, over the drivers that
// [storetest.RunTransact] tests: the caller's rows and the confirmation are committed together, or
// neither is.
func RunTransact[Tx any](t *testing.T, options storetest.TransactOptions[Tx]) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(t *testing.T, f *transacting[Tx])
	}{
		{"Transact/ConfirmsWithTheRows", confirmsWithRows[Tx]},
		{"Transact/GoesPastExtensionsAndWaiters", goesPast[Tx]},
		{"Transact/LostLeaseCommitsNothing", lostCommitsNothing[Tx]},
		{"Transact/AnotherDatabaseIsRefused", anotherDatabaseIsRefused[Tx]},
		{"Transact/AgainIsOnce", againIsOnce[Tx]},
		{"Transact/OneOfManyResultsIsCommitted", oneResultIsCommitted[Tx]},
		{"Transact/FailureConfirmsNothing", failureConfirmsNothing[Tx]},
		{"Transact/RefusedResultConfirmsNothing", refusedConfirmsNothing[Tx]},
		{"Transact/ReleaseFencesALateCommit", releaseFences[Tx]},
		{"Transact/GuardedIsACheckAlone", guardedAlone[Tx]},
		{"Transact/DoTellsWhatWasCommitted", doTells[Tx]},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := &transacting[Tx]{TransactOptions: options}
			f.fixture = &fixture{category: Category(t)}
			f.open(t)
			test.run(t, f)
			f.verify(t, f.category)
		})
	}
}

// transacting has the store and counter of a sub-test.
type transacting[Tx any] struct {
	storetest.TransactOptions[Tx]
	*fixture
	driver messagestore.Driver
	tx     *messagestore.TxStore[Tx]
	calls  atomic.Int64
}

func (f *transacting[Tx]) open(t *testing.T) {
	t.Helper()
	f.driver = f.Open(t)
	tx, err := messagestore.Transactional[Tx](testkit.Must(messagestore.New(f.driver, nil)))
	require.NoError(t, err)
	f.tx = tx
	f.use(t, tx.Store)
}

// transact adds one to the counter, and appends writes in the same transaction.
func (f *transacting[Tx]) transact(ctx context.Context, writes []messagestore.StreamWrite) error {
	_, err := f.tx.Transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		f.calls.Add(1)
		return writes, f.Add(ctx, tx, string(f.category))
	})
	return err
}

func (f *transacting[Tx]) count(t *testing.T) int {
	t.Helper()
	return f.Count(t, f.driver, string(f.category))
}

func confirmsWithRows[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))
	other := f.category.WithType("other").Stream("1")

	require.NoError(t, f.transact(t.Context(), l.Confirmation("paid", messagestore.To(other, messagestore.NoStream, effect()))))

	require.Equal(t, 1, f.count(t))
	a := reserve(t, f.m, request("B"))
	require.Equal(t, intent.Done, a.Outcome)
	result, err := intent.Result[string](a)
	require.NoError(t, err)
	require.Equal(t, "paid", result)
	_, err = f.store.Last(t.Context(), other)
	require.NoError(t, err)
	require.NoError(t, l.Confirm(t.Context(), "paid"), "it is the same confirmation")
	require.ErrorIs(t, l.Confirm(t.Context(), "paid twice"), intent.ErrLeaseLost)
}

func goesPast[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))
	writes := l.Confirmation("paid")
	require.NoError(t, l.Extend(t.Context()))
	f.leaveInLine(t, f.m, key, "W")
	require.NoError(t, l.Extend(t.Context()))

	require.NoError(t, f.transact(t.Context(), writes))

	require.EqualValues(t, 1, f.calls.Load(), "the caller's SQL ran again")
	require.Equal(t, 1, f.count(t))
	require.Equal(t, intent.Done, f.lookup(t).Status)
	require.Empty(t, f.lookup(t).Line)
}

func lostCommitsNothing[Tx any](t *testing.T, f *transacting[Tx]) {
	late := lease(t, f.m, request("late"))
	confirmation, guarded := late.Confirmation("late"), late.Guarded()
	require.NoError(t, f.m.ForceRelease(t.Context(), "", key, "it hangs"))
	refused := func(state string) {
		t.Helper()
		for _, writes := range [][]messagestore.StreamWrite{confirmation, guarded} {
			before := f.calls.Load()
			err := f.transact(t.Context(), writes)
			require.ErrorIs(t, err, messagestore.ErrVersionConflict, state)
			require.Equal(t, before+1, f.calls.Load(), "the caller's SQL ran again, for a lease that is lost: %s", state)
			require.True(t, late.Lost(err), state)
			require.Zero(t, f.count(t), state)
		}
	}
	refused("released")
	next := lease(t, f.m, request("next"))
	refused("taken over")
	require.NoError(t, next.Extend(t.Context()))
	refused("taken over and extended")
	require.NoError(t, next.Confirm(t.Context(), "next's"))
	refused("confirmed by another")
	require.JSONEq(t, `"next's"`, string(f.lookup(t).Result))
}

// The other database has the stream too, at the same version and with the same holder's name: only
// the message differs.
func anotherDatabaseIsRefused[Tx any](t *testing.T, f *transacting[Tx]) {
	elsewhere, err := intent.New(testkit.Must(messagestore.New(memory.New(), nil)), f.category, nil)
	require.NoError(t, err)
	stranger := lease(t, elsewhere, request("A"))
	l := lease(t, f.m, request("A"))

	for _, writes := range [][]messagestore.StreamWrite{stranger.Confirmation("paid"), stranger.Guarded()} {
		err := f.transact(t.Context(), writes)
		require.True(t, stranger.Lost(err), "%v", err)
		require.Zero(t, f.count(t))
	}
	require.NoError(t, f.transact(t.Context(), l.Confirmation("paid")))
	require.Equal(t, 1, f.count(t))
}

func againIsOnce[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))
	for range 3 {
		require.NoError(t, f.transact(t.Context(), l.Confirmation("paid")))
	}
	require.Equal(t, 1, f.count(t))
	err := f.transact(t.Context(), l.Confirmation("paid twice"))
	require.True(t, l.Lost(err))
	require.Equal(t, 1, f.count(t))
}

func oneResultIsCommitted[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))
	errs := make([]error, 3)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = f.transact(t.Context(), l.Confirmation(i)) })
	}
	all.Wait()

	committed := -1
	for i, err := range errs {
		if err == nil {
			require.Equal(t, -1, committed, "two were committed")
			committed = i
			continue
		}
		require.True(t, l.Lost(err), err)
	}
	require.Equal(t, 1, f.count(t))
	require.JSONEq(t, fmt.Sprint(committed), string(f.lookup(t).Result))
}

var errOfTheCaller = errors.New("the caller's")

func failureConfirmsNothing[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))

	_, err := f.tx.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		return l.Confirmation("paid"), errors.Join(f.Add(ctx, tx, string(f.category)), errOfTheCaller)
	})

	require.ErrorIs(t, err, errOfTheCaller)
	require.False(t, l.Lost(err))
	require.Zero(t, f.count(t))
	require.Equal(t, intent.Held, f.lookup(t).Status)
}

func refusedConfirmsNothing[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))

	err := f.transact(t.Context(), l.Confirmation(make(chan int)))

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.False(t, l.Lost(err))
	require.Zero(t, f.count(t))
	require.Equal(t, intent.Held, f.lookup(t).Status)
}

func releaseFences[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))
	writes := l.Confirmation("in doubt")
	require.NoError(t, l.Release(t.Context(), "the commit's answer was lost"))

	err := f.transact(t.Context(), writes)

	require.True(t, l.Lost(err))
	require.Zero(t, f.count(t))
	require.Equal(t, intent.Free, f.lookup(t).Status)
}

func guardedAlone[Tx any](t *testing.T, f *transacting[Tx]) {
	l := lease(t, f.m, request("A"))
	checks := l.Guarded()
	require.NoError(t, l.Extend(t.Context()))
	for i := range 3 {
		require.NoError(t, f.transact(t.Context(), checks))
		require.Equal(t, i+1, f.count(t))
	}
	require.NoError(t, l.Confirm(t.Context(), nil))

	require.True(t, l.Lost(f.transact(t.Context(), checks)))
	require.Equal(t, 3, f.count(t))
}

func doTells[Tx any](t *testing.T, f *transacting[Tx]) {
	a, err := f.m.Do(t.Context(), request("A"), func(ctx context.Context, l *intent.Lease) (any, error) {
		if err := f.transact(ctx, l.Confirmation("paid")); err != nil {
			return nil, err
		}
		return nil, &messagestore.OutcomeUnknownError{Cause: errOfTheCaller}
	})

	require.NoError(t, err)
	require.Equal(t, intent.Reserved, a.Outcome)
	require.Equal(t, 1, f.count(t))
	result, err := intent.Result[string](a)
	require.NoError(t, err)
	require.Equal(t, "paid", result)
}
