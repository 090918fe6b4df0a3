package consumer

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A floor is lanes of strings such as "a1", whose key is the first letter, with the journal
// of their work. An item is worked on for a second.
type floor struct {
	*lanes[string]

	mu       sync.Mutex
	began    []string
	inFlight map[string]int // by key
	most     int            // items in flight at the same time
	failing  map[string]bool
	left     []*laneItem[string] // not finished by Work
	woken    int
}

func newFloor(t *testing.T, workers int, failing ...string) *floor {
	t.Helper()
	f := &floor{inFlight: map[string]int{}, failing: map[string]bool{}}
	for _, value := range failing {
		f.failing[value] = true
	}
	f.lanes = newLanes(lanesConfig[string]{
		Workers: workers,
		Key:     func(value *string) string { return (*value)[:1] },
		Work:    func(_ context.Context, it *laneItem[string]) bool { return f.work(t, it) },
		Wake: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.woken++
		},
	})
	f.Limit(1 << 40)
	return f
}

func (f *floor) work(t *testing.T, it *laneItem[string]) bool {
	key := it.Value[:1]
	f.mu.Lock()
	f.began = append(f.began, it.Value)
	f.inFlight[key]++
	if f.inFlight[key] > 1 {
		t.Errorf("%s is worked on beside another item of its key", it.Value)
	}
	all := 0
	for _, n := range f.inFlight {
		all += n
	}
	f.most = max(f.most, all)
	f.mu.Unlock()

	time.Sleep(time.Second)

	f.mu.Lock()
	defer f.mu.Unlock()
	f.inFlight[key]--
	if f.failing[it.Value] {
		f.left = append(f.left, it)
		return false
	}
	return true
}

// add adds items, numbered from 1, and dispatches them.
func (f *floor) add(ctx context.Context, values ...string) {
	f.Add(func(yield func(*laneItem[string]) bool) {
		for i, value := range values {
			if !yield(&laneItem[string]{Value: value, Number: int64(i + 1)}) {
				return
			}
		}
	})
	f.Dispatch(ctx, ctx, time.Now())
}

// begunOf returns the values of a key in the order in which work on them began.
func (f *floor) begunOf(key string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.began), func(value string) bool { return !strings.HasPrefix(value, key) })
}

// take returns the one item that Work did not finish.
func (f *floor) take(t *testing.T) *laneItem[string] {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Len(t, f.left, 1)
	it := f.left[0]
	f.left = nil
	return it
}

func (f *floor) end() {
	f.Stop()
	f.Wait()
}

func TestItemsOfAKeyAreWorkedOnInOrderOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloor(t, 4)
		defer f.end()
		var values []string
		for i := range 10 {
			for _, key := range []string{"a", "b", "c"} {
				values = append(values, fmt.Sprint(key, i))
			}
		}

		f.add(t.Context(), values...)
		aMinute()

		for _, key := range []string{"a", "b", "c"} {
			var want []string
			for i := range 10 {
				want = append(want, fmt.Sprint(key, i))
			}
			require.Equal(t, want, f.begunOf(key))
		}
		require.Equal(t, 3, f.most, "a lane does not wait for another")
		require.Zero(t, f.InFlight())
		require.Zero(t, f.Working())
	})
}

func TestWorkersBoundTheItemsInFlight(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			f := newFloor(t, workers)
			defer f.end()

			f.add(t.Context(), "a1", "b1", "c1", "d1", "e1", "f1")
			synctest.Wait()

			require.Equal(t, workers, f.InFlight())
			require.Len(t, f.Items(), workers)
			aMinute()
			require.Equal(t, workers, f.most)
			require.Equal(t, []string{"a1", "b1", "c1", "d1", "e1", "f1"}, sorted(f.began))
		})
	}
}

// An item that Work did not finish counts as in flight until its owner decides on it.
func TestAnUndecidedItemTakesAWorkersPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloor(t, 1, "a1")
		defer f.end()

		f.add(t.Context(), "a1", "b1")
		aMinute()

		require.Equal(t, []string{"a1"}, f.began)
		require.Equal(t, 1, f.InFlight())
		require.Zero(t, f.Working())
	})
}

func TestARetriedItemKeepsItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloor(t, 2, "a1")
		defer f.end()
		f.add(t.Context(), "a1", "a2", "b1", "b2")
		aMinute()
		due := time.Now().Add(time.Hour)

		f.Retry(f.take(t), due)
		f.Dispatch(t.Context(), t.Context(), due.Add(-1))
		aMinute()

		require.Equal(t, []string{"a1"}, f.begunOf("a"), "before it is due")
		require.Equal(t, []string{"b1", "b2"}, f.begunOf("b"))
		next, ok := f.NextDue()
		require.True(t, ok)
		require.Equal(t, due, next)

		f.failing["a1"] = false
		f.Dispatch(t.Context(), t.Context(), due)
		aMinute()

		require.Equal(t, []string{"a1", "a1", "a2"}, f.begunOf("a"))
		_, ok = f.NextDue()
		require.False(t, ok)
	})
}

// A consumer finishes a message that it has parked.
func TestAFinishedItemOpensItsLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloor(t, 2, "a1")
		defer f.end()
		f.add(t.Context(), "a1", "a2")
		aMinute()
		require.Equal(t, []string{"a1"}, f.began)

		f.Finish(f.take(t))
		f.Dispatch(t.Context(), t.Context(), time.Now())
		aMinute()

		require.Equal(t, []string{"a1", "a2"}, f.began)
		require.Zero(t, f.InFlight())
	})
}

func TestADroppedItemKeepsItsLaneClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloor(t, 2, "a1")
		defer f.end()
		f.add(t.Context(), "a1", "a2", "b1")
		aMinute()

		f.Drop(f.take(t))
		f.Dispatch(t.Context(), t.Context(), time.Now())
		aMinute()

		require.Equal(t, []string{"a1"}, f.begunOf("a"))
		require.Equal(t, []string{"b1"}, f.begunOf("b"))
		require.Zero(t, f.InFlight())
	})
}

func TestNoItemIsTakenAtTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloor(t, 4)
		defer f.end()
		f.Limit(2)

		f.add(t.Context(), "a1", "b1", "c1")
		aMinute()
		require.Equal(t, []string{"a1"}, f.began)

		f.Limit(3)
		f.Dispatch(t.Context(), t.Context(), time.Now())
		aMinute()
		require.Equal(t, []string{"a1", "b1"}, f.began)
	})
}

func TestStoppedLanesTakeNoFurtherItem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloor(t, 2)
		f.add(t.Context(), "a1", "a2", "b1", "b2")
		synctest.Wait()
		woken := f.woken

		f.end()

		require.Equal(t, []string{"a1", "b1"}, sorted(f.began))
		require.Zero(t, f.InFlight())
		require.Greater(t, f.woken, woken, "the owner is told that nothing is in flight")
	})
}

func TestAWorkerOutlivesAGoroutineThatWorkEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var worked []string
		l := newLanes(lanesConfig[string]{
			Workers: 1,
			Work: func(_ context.Context, it *laneItem[string]) bool {
				worked = append(worked, it.Value)
				if it.Value == "a1" {
					runtime.Goexit()
				}
				return true
			},
			Wake: func() {},
		})
		l.Limit(10)
		first := &laneItem[string]{Value: "a1", Number: 1}
		l.Add(slices.Values([]*laneItem[string]{first, {Value: "a2", Number: 2}}))
		l.Dispatch(t.Context(), t.Context(), time.Now())
		synctest.Wait()
		require.Equal(t, []*laneItem[string]{first}, l.Items())

		l.Finish(first)
		l.Dispatch(t.Context(), t.Context(), time.Now())
		synctest.Wait()

		require.Equal(t, []string{"a1", "a2"}, worked)
		l.Stop()
		l.Wait()
	})
}

// aMinute is time for all work there is.
func aMinute() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func sorted(values []string) []string { return slices.Sorted(slices.Values(values)) }
