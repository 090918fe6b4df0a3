package queuetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of what an operator does: retry, drop and cancel items, list and count them. Below are
// the tests of removing a queue.
var operatorTests = []test{
	{"Operate/RetryOffersNow", 0, func(t *testing.T, f *fixture) {
		failed := f.insert(t, "")[0]
		f.take(t, queuing.Take{Finishes: []queuing.Finish{{Delivery: f.one(t, queuing.Take{}).Delivery(), Kind: queuing.Retry, Delay: long}}})
		require.Equal(t, []messagestore.GlobalPosition{failed}, f.change(t, queuing.RetryNow, failed))
		f.is(t, failed, "later 2/1 rR")
		f.done(t, queuing.Complete, f.one(t, queuing.Take{}).Delivery())
		at := f.inEachState(t)

		require.Equal(t, []messagestore.GlobalPosition{at[1], at[3]}, f.change(t, queuing.RetryNow, append(at, at[3])...))

		f.is(t, at[1], "later 1/0 R")
		f.is(t, at[3], "later 2/0 xR")
		require.Equal(t, "sent twice", f.item(t, at[3]).Log[1].Text)
		taken := f.take(t, queuing.Take{Want: 9})
		require.ElementsMatch(t, []messagestore.GlobalPosition{at[1], at[3], at[4]}, positions(taken))
	}},
	{"Operate/DropFinishesWhatIsNotOut", 0, func(t *testing.T, f *fixture) {
		at := f.inEachState(t)

		require.Equal(t, at[1:4], f.change(t, queuing.Drop, at...))

		for _, p := range at[1:4] {
			require.Equal(t, queuing.Finished, f.item(t, p).State)
		}
		f.is(t, at[3], "finished 2/0 xD")
		require.Equal(t, at[4:], f.next(t, queuing.Delivery{Position: at[0]}))
	}},
	{"Operate/CancelFinishesInAnyState", 0, func(t *testing.T, f *fixture) {
		at := f.inEachState(t)

		require.Equal(t, at, f.change(t, queuing.Cancel, at...))

		for _, p := range at {
			require.Equal(t, queuing.Finished, f.item(t, p).State)
		}
		requireEnding(t, queuing.Lost, f.end(t, queuing.Complete, queuing.Delivery{Position: at[0]}))
		f.none(t, queuing.Take{})
	}},
	{"Operate/ListsByState", 0, func(t *testing.T, f *fixture) {
		at := f.inEachState(t)
		list := func(state queuing.State, from messagestore.GlobalPosition, limit int) (listed []messagestore.GlobalPosition) {
			items := testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: state, From: from, Limit: limit}))(t)
			for _, item := range items {
				require.Equal(t, state, item.State)
				require.Equal(t, item.Position, item.Message.GlobalPosition)
				listed = append(listed, item.Position)
			}
			return listed
		}
		for i, state := range []queuing.State{queuing.Out, queuing.Later, queuing.Held, queuing.Dead, queuing.Waiting} {
			require.Equal(t, at[i:i+1], list(state, 0, 9), state)
			require.Equal(t, at[i:i+1], list(state, at[i], 9), state)
			require.Empty(t, list(state, at[i]+1, 9), state)
		}
		waiting := append(at[4:], f.insert(t, "", "")...)
		require.Equal(t, waiting, list(queuing.Waiting, 0, 9))
		require.Equal(t, waiting[:2], list(queuing.Waiting, 0, 2))
		f.change(t, queuing.Cancel, f.insert(t, "")...)
		require.Equal(t, waiting, list(queuing.Waiting, 0, 9))
		f.take(t, queuing.Take{Want: 9, Session: 2})
		require.Equal(t, waiting, list(queuing.Out, waiting[0], 9))
		require.Equal(t, waiting[1:2], list(queuing.Out, waiting[1], 1))
	}},
	// A list has at most 4 MiB of messages. The next list begins after the last message.
	{"Operate/ListsEndAtFourMiB", 0, func(t *testing.T, f *fixture) {
		data := fmt.Appendf(nil, `{"a":"%s"}`, bytes.Repeat([]byte("a"), 900<<10))
		var at []messagestore.GlobalPosition
		for range 10 {
			written := testkit.Do(f.driver.Append(t.Context(), messagestore.Append{
				Stream: f.of.Category.Stream("large"), Expected: messagestore.AnyVersion,
				Records: []messagestore.Encoded{{ID: uuid.New(), Type: "Item", Data: data}},
			}))(t)
			at = append(at, written.GlobalPosition)
		}
		all := func(state queuing.State) (listed []messagestore.GlobalPosition) {
			for from := messagestore.GlobalPosition(0); ; {
				items := testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: state, From: from, Limit: 100}))(t)
				if len(items) == 0 {
					return listed
				}
				held := 0
				for _, item := range items {
					held += len(item.Message.Data)
					listed = append(listed, item.Position)
					from = item.Position + 1
				}
				require.LessOrEqual(t, held, queuing.MaxListBytes)
			}
		}
		require.Equal(t, at, all(queuing.Waiting))
		f.take(t, queuing.Take{Want: 9})
		require.Equal(t, at[1:], all(queuing.Held))
	}},
	// A queue exists from the first change on, like from the first take on.
	{"Operate/PausedBeforeTheFirstTake", 0, func(t *testing.T, f *fixture) {
		require.Nil(t, f.status(t))
		f.change(t, queuing.Pause)
		require.NotNil(t, f.status(t))
		require.True(t, f.status(t).Paused)
		require.Equal(t, f.of, f.status(t).Queue)
		at := f.insert(t, "a", "a")

		f.none(t, queuing.Take{})

		require.False(t, f.ready(t).Ready)
		f.change(t, queuing.Resume)
		require.Equal(t, at[:1], positions(f.take(t, queuing.Take{Want: 9})))
	}},
	{"Operate/CancelledBeforeTheFirstTake", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a", "")
		require.Nil(t, f.status(t))

		require.Equal(t, []messagestore.GlobalPosition{at[0], at[2]}, f.change(t, queuing.Cancel, at[0], at[2], at[2]+1_000_000))

		require.EqualValues(t, 2, f.status(t).Finished)
		require.Equal(t, queuing.Finished, f.item(t, at[0]).State)
		require.Equal(t, at[1], f.soon(t, queuing.Take{}).Message.GlobalPosition)
		f.none(t, queuing.Take{})
		require.Equal(t, queuing.Finished, f.item(t, at[2]).State)
	}},
	{"Operate/StatusCounts", 0, func(t *testing.T, f *fixture) {
		f.take(t, queuing.Take{})
		f.change(t, queuing.Pause)
		f.change(t, queuing.Resume)
		first := f.insert(t, "")[0]
		status := f.status(t)
		require.NotNil(t, status)
		require.True(t, f.item(t, first).Message.Time.Equal(status.Oldest))
		f.done(t, queuing.Bury, f.one(t, queuing.Take{}).Delivery())
		require.Zero(t, f.status(t).Oldest, "what is dead does not count")
		require.NotEmpty(t, f.change(t, queuing.Drop, first))

		at := f.inEachState(t)
		status = f.status(t)
		require.Equal(t, f.of, status.Queue)
		require.Equal(t, []int64{1, 1, 1, 1}, []int64{status.Out, status.Later, status.Held, status.Dead})
		require.Equal(t, []int64{3, 1, 0, 2}, []int64{status.Taken, status.Finished, status.Back, status.Buried})
		require.True(t, status.Waiting)
		require.Equal(t, at[3], status.Cursor)
		require.True(t, f.item(t, at[0]).Message.Time.Equal(status.Oldest))

		f.done(t, queuing.Complete, queuing.Delivery{Position: at[0]})
		f.take(t, queuing.Take{Want: 9})
		f.leave(t, queuing.Leave{Session: 1})
		status = f.status(t)
		require.Equal(t, []int64{0, 3, 0, 1}, []int64{status.Out, status.Later, status.Held, status.Dead})
		require.Equal(t, []int64{5, 2, 2, 2}, []int64{status.Taken, status.Finished, status.Back, status.Buried})
		require.False(t, status.Waiting)
	}},
	// A completion in a transaction counts from its commit on, whether it is reported or not, and
	// counts once.
	{"Operate/StatusOfOneQueueIsBounded", 0, func(t *testing.T, f *fixture) {
		_, err := f.driver.QueueStatus(t.Context(), f.of)
		require.ErrorIs(t, err, messagestore.ErrNotFound)
		const more = 50
		for left := queuing.MaxCount + more; left > 0; { // of one key, so that all but one are held
			var items []messagestore.Encoded
			for range min(left, 1000) {
				items = append(items, messagestore.Encoded{ID: uuid.New(), Type: "Item", Data: []byte(`{}`)})
			}
			testkit.Do(f.driver.Append(t.Context(), messagestore.Append{Stream: f.of.Category.Stream("a"), Expected: messagestore.AnyVersion, Records: items}))(t)
			left -= len(items)
		}
		for f.take(t, queuing.Take{Want: queuing.MaxItems}).More {
		}

		one := testkit.Do(f.driver.QueueStatus(t.Context(), f.of))(t)

		require.True(t, one.Partial)
		require.EqualValues(t, 1, one.Out)
		require.EqualValues(t, queuing.MaxCount-1, one.Held)
		all := f.status(t)
		require.False(t, all.Partial)
		require.EqualValues(t, queuing.MaxCount+more-1, all.Held)
		for _, other := range []queuing.Queue{{Name: f.of.Name, Category: "other"}, {Name: f.of.Name + "2", Category: f.of.Category}} {
			_, err := f.driver.QueueStatus(t.Context(), other)
			require.ErrorIs(t, err, messagestore.ErrNotFound)
		}
	}},
	{"Operate/StatusCountsWhatIsCommitted", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "", "")
		f.take(t, queuing.Take{Want: 4})
		finished := func(want int64) {
			t.Helper()
			require.Equal(t, want, f.status(t).Finished)
		}
		f.finishIn(t, queuing.Done, queuing.Delivery{Position: at[0]}, false)
		finished(0)
		f.finishIn(t, queuing.Done, queuing.Delivery{Position: at[0]}, true)
		finished(1)
		f.finishIn(t, queuing.Done, queuing.Delivery{Position: at[1]}, true)
		for range 2 {
			f.done(t, queuing.Committed, queuing.Delivery{Position: at[0]})
			f.done(t, queuing.Complete, queuing.Delivery{Position: at[0]})
		}
		finished(2)
		f.done(t, queuing.Complete, queuing.Delivery{Position: at[2]})
		finished(3)
		f.leave(t, queuing.Leave{Session: 1})
		finished(3)
		f.change(t, queuing.Cancel, at...)
		f.change(t, queuing.Cancel, at...)
		finished(4)
	}},
	// An item that is finished without a worker counts once, in any state.
	{"Operate/StatusCountsWhatIsCancelled", 0, func(t *testing.T, f *fixture) {
		at := append(f.inEachState(t), f.insert(t, "")...)
		before := f.status(t).Finished
		for i, p := range at {
			require.Len(t, f.change(t, queuing.Cancel, p), 1)
			require.Empty(t, f.change(t, queuing.Cancel, p))
			require.Equal(t, before+int64(i)+1, f.status(t).Finished)
		}
		f.take(t, queuing.Take{Want: 9})
		require.Equal(t, before+int64(len(at)), f.status(t).Finished)
	}},
	// An item is out until the end of its session, even before any take has noticed that end.
	{"Operate/StatusCountsSessionsAndWhatIsDue", 0, func(t *testing.T, f *fixture) {
		scheduled := f.insertAt(t, "", f.now(t).Add(long))
		at := f.insert(t, "", "", "")
		before := f.now(t)
		items := f.take(t, queuing.Take{Want: 3}).Items
		require.Len(t, items, 3)
		after := f.now(t)
		f.done(t, queuing.Retry, items[0].Delivery())
		f.done(t, queuing.Retry, items[1].Delivery())
		require.Equal(t, at[0], f.one(t, queuing.Take{Session: 2, Lease: brief}).Message.GlobalPosition)

		var status *queuing.Status
		testkit.Await(t, "a session is over", func() (bool, any) {
			status = f.status(t)
			return status.Sessions == 1, status
		})

		require.Equal(t, []int64{2, 2, 1}, []int64{status.Out, status.Later, status.Due})
		require.False(t, status.Time.Before(after))
		require.False(t, status.Time.After(f.now(t)))
		until := func(p messagestore.GlobalPosition) time.Time {
			t.Helper()
			item := f.item(t, p)
			listed := testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: item.State, From: p, Limit: 1}))(t)
			require.True(t, item.Until.Equal(listed[0].Until))
			return item.Until
		}
		require.Zero(t, until(scheduled))
		require.Zero(t, until(at[1]))
		require.False(t, until(at[2]).Before(before.Add(long)))
		require.False(t, until(at[2]).After(after.Add(long)))
		require.NotZero(t, until(at[0]))
		require.False(t, until(at[0]).After(status.Time))
	}},
	{"Operate/WhatIsNoItemIsNotFound", 0, func(t *testing.T, f *fixture) {
		other := newFixture(f.driver, f.options)
		at := other.insert(t, "")
		other.take(t, queuing.Take{})
		f.insert(t, "")
		for _, p := range []messagestore.GlobalPosition{at[0], at[0] + 1_000_000_000} {
			require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueItem(t.Context(), f.of, p)), messagestore.ErrNotFound)
		}
		require.Empty(t, f.change(t, queuing.Cancel, at...))
		other.is(t, at[0], "waiting 0/0 ")
	}},
	{"Refused/AnotherCategory", 0, func(t *testing.T, f *fixture) {
		f.insert(t, "")
		f.take(t, queuing.Take{})
		other := newFixture(f.driver, f.options)
		other.of.Name = f.of.Name
		other.insert(t, "")

		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueTake(t.Context(), other.full(queuing.Take{Want: 1}))), messagestore.ErrInvalid)
	}},
	{"Refused/WhatBreaksTheState", 0, func(t *testing.T, f *fixture) {
		refused := func(what string, err error) {
			t.Helper()
			var invalid *messagestore.InvalidError
			require.ErrorAs(t, err, &invalid, what)
			require.NotEmpty(t, invalid.Field, what)
		}
		for what, spoil := range map[string]func(*queuing.Take){
			"queue":        func(t *queuing.Take) { t.Name = "a-b" },
			"queue name":   func(t *queuing.Take) { t.Name = "a b" },
			"category":     func(t *queuing.Take) { t.Category = "a-b" },
			"session":      func(t *queuing.Take) { t.Session = 0 },
			"lease":        func(t *queuing.Take) { t.Lease = queuing.MinLease - time.Microsecond },
			"want":         func(t *queuing.Take) { t.Want = queuing.MaxItems + 1 },
			"wait":         func(t *queuing.Take) { t.Wait = queuing.MaxWait + time.Microsecond },
			"max failures": func(t *queuing.Take) { t.MaxFailures = 0 },
			"max out":      func(t *queuing.Take) { t.MaxOut = -1 },
			"rate":         func(t *queuing.Take) { t.Rate = -1 },
			"burst":        func(t *queuing.Take) { t.Rate = 1 },
			"finishes": func(t *queuing.Take) {
				t.Finishes = slices.Repeat([]queuing.Finish{{Kind: queuing.Defer}}, queuing.MaxItems+1)
			},
			"kind":         func(t *queuing.Take) { t.Finishes = []queuing.Finish{{Kind: '?'}} },
			"kind of item": func(t *queuing.Take) { t.Finishes = []queuing.Finish{{Kind: queuing.Wait}} },
			"wakes":        func(t *queuing.Take) { t.Wakes = slices.Repeat([]string{"Signal"}, queuing.MaxWakes+1) },
			"type":         func(t *queuing.Take) { t.Wakes = []string{""} },
		} {
			q := f.full(queuing.Take{})
			spoil(&q)
			_, err := f.driver.QueueTake(t.Context(), q)
			refused(what, err)
		}
		ctx := context.Background()
		refused("the same session", f.driver.QueueLeave(ctx, queuing.Leave{Queue: f.of, Session: 1, Next: 1, Lease: long}))
		_, err := f.driver.QueueExtend(ctx, queuing.Extension{Queue: f.of, Session: 1})
		refused("no lease", err)
		_, err = f.driver.QueueFinish(ctx, f.of, 1, nil)
		refused("no deliveries", err)
		_, err = f.driver.QueueChange(ctx, queuing.Change{Queue: f.of, Action: "stop"})
		refused("action", err)
		_, err = f.driver.QueueItems(ctx, queuing.List{Queue: f.of, State: queuing.Finished, Limit: 1})
		refused("state", err)
		require.Nil(t, f.status(t), "no queue was made for a call that was refused")
	}},
}

// inEachState returns items that are out, later, held, dead and beyond the cursor, one each.
func (f *fixture) inEachState(t testing.TB) (at []messagestore.GlobalPosition) {
	t.Helper()
	at = append(f.insert(t, "a"), f.insertAt(t, "", f.now(t).Add(long)))
	at = append(at, f.insert(t, "a", "")...)
	items := f.take(t, queuing.Take{Want: 9}).Items
	require.Len(t, items, 2)
	f.done(t, queuing.Bury, items[1].Delivery())
	at = append(at, f.insert(t, "")...)
	for i, state := range []queuing.State{queuing.Out, queuing.Later, queuing.Held, queuing.Dead, queuing.Waiting} {
		require.Equal(t, state, f.item(t, at[i]).State)
	}
	return at
}

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
	// A worker that still runs learns of it, and starts again with an empty queue.
	{"Remove/KeepsNothingButTheName", 0, func(t *testing.T, f *fixture) {
		at := f.inEachState(t)
		out := queuing.Delivery{Position: at[0]}
		want := queuing.RemovedQueue{Done: true, NameKept: true, Waiting: 1, Out: 1, Later: 1, Held: 1, Dead: 1}
		require.Equal(t, want, f.remove(t, queuing.Removal{Unfinished: true}))

		require.Nil(t, f.status(t))
		require.Equal(t, []queuing.Delivery{out}, f.extend(t, 1, long, out))
		requireEnding(t, queuing.Lost, testkit.Do(f.driver.QueueFinish(t.Context(), f.of, 1, []queuing.Delivery{out}))(t)[0])
		require.True(t, f.ready(t).Ready, "so that an idle worker takes, and is told")
		_, err := f.driver.QueueTake(t.Context(), f.full(queuing.Take{Want: 9, Finishes: []queuing.Finish{{Delivery: out, Kind: queuing.Complete}}}))
		require.ErrorIs(t, err, queuing.ErrRemoved)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueChange(t.Context(), queuing.Change{Queue: f.of, Action: queuing.Pause})), queuing.ErrRemoved)
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
	// Such a queue has a mistyped name, or another category than intended.
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

		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueRemove(t.Context(), queuing.Removal{Queue: other, Unfinished: true})), messagestore.ErrInvalid)
		require.NotNil(t, f.status(t))
	}},
	// Queues of a category keep its messages, so their number is bounded. Callers that make the
	// last queues at the same time do not exceed the bound.
	{"Remove/ACategoryHasSoManyQueues", 0, func(t *testing.T, f *fixture) {
		f.take(t, queuing.Take{})
		named := func(n int) queuing.Take {
			take := f.full(queuing.Take{})
			take.Name = fmt.Sprintf("%sn%d", f.of.Name, n)
			return take
		}
		for n := 1; n < queuing.MaxQueues-3; n++ {
			testkit.Do(f.driver.QueueTake(t.Context(), named(n)))(t)
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
			if err := testkit.Receive(t, "an answer", errs); err != nil {
				require.ErrorIs(t, err, queuing.ErrTooManyQueues)
				refused++
			}
		}
		require.Equal(t, callers-3, refused)

		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueTake(t.Context(), named(1000))), queuing.ErrTooManyQueues)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueChange(t.Context(), queuing.Change{Queue: named(1000).Queue, Action: queuing.Pause})), queuing.ErrTooManyQueues)
		f.take(t, queuing.Take{}) // of one that is there
		other := named(1001)
		other.Category += "x"
		testkit.Do(f.driver.QueueTake(t.Context(), other))(t)

		require.True(t, f.remove(t, queuing.Removal{}).NameKept)
		testkit.Do(f.driver.QueueTake(t.Context(), named(1000)))(t)
	}},
}

// remove removes the queue twice, like a caller that has lost the first answer.
func (f *fixture) remove(t testing.TB, r queuing.Removal) queuing.RemovedQueue {
	t.Helper()
	r.Queue = f.of
	removed := testkit.Do(f.driver.QueueRemove(t.Context(), r))(t)
	require.Equal(t, removed.Done, testkit.Do(f.driver.QueueRemove(t.Context(), r))(t).Done)
	return removed
}
