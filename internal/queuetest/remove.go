package queuetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

var removeTests = []test{
	{"Remove/LeavesAQueueWithItems", 0, func(t *testing.T, f *fixture) {
		at := f.inEachState(t)
		cursor := f.status(t).Cursor
		counts := queuing.RemovedQueue{Waiting: 1, Out: 1, Later: 1, Held: 1, Dead: 1}
		require.Equal(t, counts, f.remove(t, queuing.Removal{}))
		require.Equal(t, counts, f.remove(t, queuing.Removal{FreeName: true}))

		require.Equal(t, cursor, f.status(t).Cursor)
		for i, state := range []queuing.State{queuing.Out, queuing.Later, queuing.Held, queuing.Dead, queuing.Waiting} {
			require.Equal(t, state, f.item(t, at[i]).State)
		}
		require.Len(t, f.change(t, queuing.Cancel, at...), len(at))
		f.take(t, queuing.Take{})
		require.Equal(t, queuing.RemovedQueue{Done: true, NameKept: true}, f.remove(t, queuing.Removal{}))
	}},
	{"Remove/CountsStreams", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		f.turn(t, queuing.Suspend, f.one(t, queuing.Take{}).Delivery(), at)
		f.write(t, "b", signal, 3)

		require.Equal(t, queuing.RemovedQueue{Waiting: 1, Suspended: 1}, f.remove(t, queuing.Removal{}))
		require.Equal(t, queuing.RemovedQueue{Done: true, NameKept: true, Waiting: 1, Suspended: 1}, f.remove(t, queuing.Removal{Unfinished: true}))
	}},
	// A worker that still runs is told, and begins with nothing again.
	{"Remove/KeepsNothingButTheName", 0, func(t *testing.T, f *fixture) {
		at := f.inEachState(t)
		out := queuing.Delivery{Position: at[0]}
		want := queuing.RemovedQueue{Done: true, NameKept: true, Waiting: 1, Out: 1, Later: 1, Held: 1, Dead: 1}
		require.Equal(t, want, f.remove(t, queuing.Removal{Unfinished: true}))

		require.Nil(t, f.status(t))
		require.Equal(t, []queuing.Delivery{out}, f.extend(t, 1, long, out))
		requireEnding(t, queuing.Lost, must.Do(f.driver.QueueFinish(t.Context(), f.of, 1, []queuing.Delivery{out}))(t)[0])
		require.True(t, f.ready(t).Ready, "so that an idle worker takes, and is told")
		_, err := f.driver.QueueTake(t.Context(), f.full(queuing.Take{Want: 9, Finishes: []queuing.Finish{{Delivery: out, Kind: queuing.Complete}}}))
		require.ErrorIs(t, err, queuing.ErrRemoved)
		require.ErrorIs(t, must.ErrorOf(f.driver.QueueChange(t.Context(), queuing.Change{Queue: f.of, Action: queuing.Pause})), queuing.ErrRemoved)
		require.ErrorIs(t, f.driver.QueueLeave(t.Context(), queuing.Leave{Queue: f.of, Session: 1}), queuing.ErrRemoved)
		require.Nil(t, f.status(t))
	}},
	{"Remove/AFreeNameBeginsAnew", 0, func(t *testing.T, f *fixture) {
		at := f.inEachState(t)
		require.True(t, f.remove(t, queuing.Removal{Unfinished: true}).NameKept)
		require.Equal(t, queuing.RemovedQueue{Done: true}, f.remove(t, queuing.Removal{FreeName: true}))

		require.Equal(t, []messagestore.GlobalPosition{at[0], at[3], at[4]}, positions(f.take(t, queuing.Take{Want: 9, Session: 2})))
		f.is(t, at[0], "out 0/0 ")
		f.is(t, at[3], "out 0/0 ")
		f.is(t, at[1], "later 0/0 ")
		require.False(t, f.remove(t, queuing.Removal{Unfinished: true, FreeName: true}).NameKept)
		require.Len(t, f.take(t, queuing.Take{Want: 9, Session: 3}).Items, 3)
	}},
	// Such a queue is of a name that was mistyped, or of another category than meant.
	{"Remove/ANameThatNeverTookIsFree", 0, func(t *testing.T, f *fixture) {
		f.insert(t, "", "")
		f.change(t, queuing.Pause)

		require.Equal(t, queuing.RemovedQueue{Done: true}, f.remove(t, queuing.Removal{}))

		require.Nil(t, f.status(t))
		f.of.Category += "x"
		at := f.insert(t, "")
		require.Equal(t, at, positions(f.take(t, queuing.Take{Want: 9})))
	}},
	{"Remove/AnotherCategoryIsRefused", 0, func(t *testing.T, f *fixture) {
		f.take(t, queuing.Take{})
		other := f.of
		other.Category += "x"

		require.ErrorIs(t, must.ErrorOf(f.driver.QueueRemove(t.Context(), queuing.Removal{Queue: other, Unfinished: true})), messagestore.ErrInvalid)
		require.NotNil(t, f.status(t))
	}},
	// Queues of a category keep its messages, so they are not without bound. Callers that make the last
	// ones at once do not pass it.
	{"Remove/ACategoryHasSoManyQueues", 0, func(t *testing.T, f *fixture) {
		f.take(t, queuing.Take{})
		named := func(n int) queuing.Take {
			take := f.full(queuing.Take{})
			take.Name = fmt.Sprintf("%sn%d", f.of.Name, n)
			return take
		}
		for n := 1; n < queuing.MaxQueues-3; n++ {
			must.Do(f.driver.QueueTake(t.Context(), named(n)))(t)
		}
		const callers = 9
		errs := make(chan error, callers)
		for n := range callers {
			go func() {
				_, err := f.driver.QueueTake(t.Context(), named(queuing.MaxQueues+n))
				errs <- err
			}()
		}
		refused := 0
		for range callers {
			if err := await.Receive(t, "an answer", errs); err != nil {
				require.ErrorIs(t, err, queuing.ErrTooManyQueues)
				refused++
			}
		}
		require.Equal(t, callers-3, refused)

		require.ErrorIs(t, must.ErrorOf(f.driver.QueueTake(t.Context(), named(1000))), queuing.ErrTooManyQueues)
		require.ErrorIs(t, must.ErrorOf(f.driver.QueueChange(t.Context(), queuing.Change{Queue: named(1000).Queue, Action: queuing.Pause})), queuing.ErrTooManyQueues)
		f.take(t, queuing.Take{}) // of one that is there
		other := named(1001)
		other.Category += "x"
		must.Do(f.driver.QueueTake(t.Context(), other))(t)

		require.True(t, f.remove(t, queuing.Removal{}).NameKept)
		must.Do(f.driver.QueueTake(t.Context(), named(1000)))(t)
	}},
}

// remove removes the queue, twice: a call whose answer was lost is made again.
func (f *fixture) remove(t testing.TB, r queuing.Removal) queuing.RemovedQueue {
	t.Helper()
	r.Queue = f.of
	removed := must.Do(f.driver.QueueRemove(t.Context(), r))(t)
	require.Equal(t, removed.Done, must.Do(f.driver.QueueRemove(t.Context(), r))(t).Done)
	return removed
}
