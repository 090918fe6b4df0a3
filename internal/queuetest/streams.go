package queuetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of queues of streams: that each stream is one item, has one turn at a time, and is
// woken by what comes.
var streamTests = []test{
	{"Q16/EachStreamIsOneItem", 0, func(t *testing.T, f *fixture) {
		f.streams()
		a := f.insert(t, "a")[0]
		later := f.write(t, "a", signal, 3)
		b := f.insert(t, "b")[0]

		first := f.take(t, queuing.Take{Want: 1})
		require.True(t, first.More)
		taken := f.take(t, queuing.Take{Want: 100})

		taken.Items = append(first.Items, taken.Items...)
		require.Equal(t, []messagestore.GlobalPosition{a, b}, positions(taken))
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueItem(t.Context(), f.of, later)), messagestore.ErrNotFound)
		for _, item := range taken.Items {
			f.done(t, queuing.Complete, item.Delivery())
		}
		f.is(t, a, "finished 0/0 ")
		last := f.write(t, "a", signal, 1)
		require.Empty(t, testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: queuing.Waiting, Limit: 10}))(t))
		require.Empty(t, f.change(t, queuing.Cancel, last))
		f.none(t, queuing.Take{})
	}},
	{"Q16/OneTurnAtATime", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		for version := range 3 {
			require.Equal(t, queuing.Delivery{Position: at, Version: version}, f.one(t, queuing.Take{}).Delivery())
			seen := f.write(t, "a", signal, 2)
			f.none(t, queuing.Take{Session: 2})
			f.turn(t, queuing.Wait, queuing.Delivery{Position: at, Version: version}, seen)
			f.none(t, queuing.Take{Session: 2})
			f.write(t, "a", signal, 2)
		}
		require.Len(t, f.take(t, queuing.Take{Want: 100}).Items, 1)
	}},
	{"Q16/CompletedWhateverCame", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		item := f.one(t, queuing.Take{})
		f.write(t, "a", signal, 1)
		f.none(t, queuing.Take{})

		f.done(t, queuing.Complete, item.Delivery())

		f.is(t, at, "finished 0/0 ")
		f.write(t, "a", signal, 1)
		f.none(t, queuing.Take{})
	}},
	{"Q16/WokenWhileOutIsOfferedAgain", 0, func(t *testing.T, f *fixture) {
		f.streams()
		for _, kind := range []queuing.Kind{queuing.Wait, queuing.Suspend} {
			for _, met := range []bool{true, false} { // by the cursor, before the turn ends
				key := fmt.Sprint(string(rune(kind)), met)
				at := f.insert(t, key)[0]
				item := f.one(t, queuing.Take{})
				f.write(t, key, signal, 1)
				if met {
					f.none(t, queuing.Take{})
				}

				f.turn(t, kind, item.Delivery(), at)

				again := f.one(t, queuing.Take{})
				require.Equal(t, queuing.Delivery{Position: at, Version: 1}, again.Delivery())
				f.done(t, queuing.Complete, again.Delivery())
			}
		}
	}},
	{"Q16/WokenWhileItWaits", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		f.turn(t, queuing.Wait, f.one(t, queuing.Take{}).Delivery(), at)
		f.is(t, at, "later 1/0 ")
		f.none(t, queuing.Take{})
		f.write(t, "a", note, 1)
		f.none(t, queuing.Take{})
		f.write(t, "b", signal, 1) // of another stream, whose first message it is
		f.done(t, queuing.Complete, f.one(t, queuing.Take{}).Delivery())

		f.write(t, "a", signal, 2)

		require.True(t, f.ready(t).Ready)
		item := f.one(t, queuing.Take{Session: 7})
		require.Equal(t, queuing.Delivery{Position: at, Version: 1}, item.Delivery())
		require.Equal(t, f.of.Category.Stream("a"), item.Message.Stream)
		require.Zero(t, item.Message.Position)
		require.Equal(t, int64(7), f.item(t, at).Session)
	}},
	{"Q16/WokenBeforeItsDate", 0, func(t *testing.T, f *fixture) {
		f.streams()
		due := f.now(t).Add(long)
		first := f.insertAt(t, "a", due)
		f.none(t, queuing.Take{})
		f.is(t, first, "later 0/0 ")
		f.write(t, "a", signal, 1)
		require.Equal(t, first, f.one(t, queuing.Take{}).Message.GlobalPosition)

		second := f.insertAt(t, "b", due)
		third := f.insertAt(t, "c", due)
		f.write(t, "b", signal, 2) // in one page with the first message
		require.Equal(t, []messagestore.GlobalPosition{second}, positions(f.take(t, queuing.Take{Want: 100})))
		f.is(t, third, "later 0/0 ")
	}},
	// A worker may read a message before the cursor reaches it.
	{"Q16/WhatWasSeenDoesNotWake", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		item := f.one(t, queuing.Take{})
		seen := f.write(t, "a", signal, 2)

		f.turn(t, queuing.Wait, item.Delivery(), seen)

		f.none(t, queuing.Take{})
		f.write(t, "a", signal, 1)
		require.Equal(t, queuing.Delivery{Position: at, Version: 1}, f.one(t, queuing.Take{}).Delivery())
	}},
	{"Q16/NotBeforeItsTime", 0, func(t *testing.T, f *fixture) {
		f.streams()
		for _, kind := range []queuing.Kind{queuing.Wait, queuing.Suspend} {
			at := f.insert(t, "")[0]
			item := f.one(t, queuing.Take{})
			before := f.now(t)
			f.finish(t, queuing.Finish{Delivery: item.Delivery(), Kind: kind, Delay: long, Seen: at})
			require.False(t, f.item(t, at).Due.Before(before.Add(long)))
			wake := f.take(t, queuing.Take{Want: 100})
			require.Empty(t, wake.Items)
			require.InDelta(t, long, wake.Wake, float64(long/2))

			f.change(t, queuing.RetryNow, at)
			item = f.one(t, queuing.Take{})
			before = f.now(t)
			f.finish(t, queuing.Finish{Delivery: item.Delivery(), Kind: kind, Delay: brief, Seen: at})
			item = f.soon(t, queuing.Take{})
			require.False(t, f.now(t).Before(before.Add(brief)))
			f.done(t, queuing.Complete, item.Delivery())
		}
	}},
	{"Q16/SuspendedIsListed", 0, func(t *testing.T, f *fixture) {
		f.streams()
		all := f.insert(t, "", "", "")
		for _, item := range f.take(t, queuing.Take{Want: 3}).Items {
			f.finish(t, queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Suspend, Delay: long, Seen: item.Message.GlobalPosition, Error: "no such step"})
		}
		f.change(t, queuing.RetryNow, all[1])

		items := testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: queuing.Suspended, Limit: 10}))(t)

		require.Len(t, items, 2)
		for i, at := range []messagestore.GlobalPosition{all[0], all[2]} {
			require.Equal(t, at, items[i].Position)
			require.Equal(t, "suspended 1/0 ", describe(items[i]))
			require.Equal(t, "no such step", items[i].Error)
			require.NotZero(t, items[i].Due)
			require.NotNil(t, items[i].Message)
		}
		items = testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: queuing.Suspended, From: all[0] + 1, Limit: 1}))(t)
		require.Equal(t, all[2], items[0].Position)
		status := f.status(t)
		require.Equal(t, []int64{2, 1, 0, 3}, []int64{status.Suspended, status.Later, status.Out, status.Back})

		// The text that a successful turn waits for replaces the earlier text, even if it is empty.
		for version, text := range []string{"waits for a process of version 2", ""} {
			f.finish(t, queuing.Finish{Delivery: f.one(t, queuing.Take{}).Delivery(), Kind: queuing.Wait, Delay: 0, Seen: all[1], Error: text})
			require.Equal(t, text, testkit.Do(f.driver.QueueItem(t.Context(), f.of, all[1]))(t).Error, "turn %d", version)
		}
	}},
	{"Q16/SuspendedIsOfferedByAll", 0, func(t *testing.T, f *fixture) {
		f.streams()
		for _, by := range []string{"message", "operator", "time"} {
			at := f.insert(t, by)[0]
			delay := queuing.MaxDelay
			if by == "time" {
				delay = brief
			}
			f.finish(t, queuing.Finish{Delivery: f.one(t, queuing.Take{}).Delivery(), Kind: queuing.Suspend, Delay: delay, Seen: at, Error: "no such step"})
			version := 1
			switch by {
			case "message":
				f.none(t, queuing.Take{})
				f.write(t, by, signal, 1)
			case "operator":
				f.none(t, queuing.Take{})
				require.Equal(t, []messagestore.GlobalPosition{at}, f.change(t, queuing.RetryNow, at))
				f.is(t, at, "later 2/0 R")
				version = 2
			}
			item := f.soon(t, queuing.Take{})
			require.Equal(t, queuing.Delivery{Position: at, Version: version}, item.Delivery())
			f.done(t, queuing.Complete, item.Delivery())
		}
	}},
	{"Q16/SuspendedIsDropped", 0, func(t *testing.T, f *fixture) {
		f.streams()
		for action, log := range map[queuing.Action]string{queuing.Drop: "D", queuing.Cancel: "C"} {
			at := f.insert(t, string(action))[0]
			f.turn(t, queuing.Suspend, f.one(t, queuing.Take{}).Delivery(), at)

			require.Equal(t, []messagestore.GlobalPosition{at}, f.change(t, action, at))

			f.is(t, at, "finished 2/0 "+log)
			f.write(t, string(action), signal, 1)
			f.none(t, queuing.Take{})
		}
	}},
	// The next turn reads the stream, so a message that woke the item meanwhile is not lost.
	{"Q16/RetryKeepsItsBackOff", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		item := f.one(t, queuing.Take{})
		f.write(t, "a", signal, 1)
		f.none(t, queuing.Take{})

		f.finish(t, queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Retry, Delay: long, Error: "no answer"})

		f.none(t, queuing.Take{})
		f.is(t, at, "later 1/1 r")
		f.write(t, "a", signal, 1)
		require.Equal(t, queuing.Delivery{Position: at, Version: 1}, f.one(t, queuing.Take{}).Delivery())
	}},
	{"Q16/FailuresCountAnew", 0, func(t *testing.T, f *fixture) {
		f.streams()
		few := queuing.Policy{MaxFailures: 2}
		at := f.insert(t, "a")[0]
		for _, kind := range []queuing.Kind{queuing.Retry, queuing.Wait, queuing.Retry, queuing.Suspend, queuing.Retry} {
			item := f.soon(t, queuing.Take{Policy: few})
			f.take(t, queuing.Take{Policy: few, Finishes: []queuing.Finish{{Delivery: item.Delivery(), Kind: kind, Seen: at}}})
		}
		f.is(t, at, "later 5/1 rrr")
		f.take(t, queuing.Take{Policy: few, Finishes: []queuing.Finish{{Delivery: f.one(t, queuing.Take{Policy: few}).Delivery(), Kind: queuing.Retry}}})
		f.is(t, at, "dead 6/2 rrrr")
	}},
	{"Q16/DeadIsNotWoken", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		f.done(t, queuing.Bury, f.one(t, queuing.Take{}).Delivery())

		f.write(t, "a", signal, 1)

		f.none(t, queuing.Take{})
		f.is(t, at, "dead 1/1 x")
		f.change(t, queuing.RetryNow, at)
		require.Equal(t, queuing.Delivery{Position: at, Version: 2}, f.one(t, queuing.Take{}).Delivery())
	}},
	// A successful turn has no log entry, so a repeated end is recognized by the item's version.
	{"Q16/EndingAgainIsTheSame", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		seen := at
		for version, kind := range []queuing.Kind{queuing.Wait, queuing.Suspend} {
			end := queuing.Finish{Delivery: queuing.Delivery{Position: at, Version: version}, Kind: kind, Delay: queuing.MaxDelay, Seen: seen}
			require.Equal(t, end.Delivery, f.one(t, queuing.Take{}).Delivery())
			f.finish(t, end)
			before := f.item(t, at)
			f.finish(t, end)
			require.Equal(t, before, f.item(t, at), "nothing was done again")
			for _, other := range []queuing.Kind{queuing.Complete, queuing.Retry, queuing.Committed} {
				requireEnding(t, queuing.Lost, f.end(t, other, end.Delivery))
			}
			seen = f.write(t, "a", signal, 2)
		}
		last := f.one(t, queuing.Take{}).Delivery()
		f.finish(t, queuing.Finish{Delivery: queuing.Delivery{Position: at, Version: 1}, Kind: queuing.Suspend})
		f.is(t, at, "out 2/0 ")

		for range 2 {
			f.done(t, queuing.Complete, last)
		}
		f.is(t, at, "finished 0/0 ")
		requireEnding(t, queuing.Lost, f.end(t, queuing.Wait, queuing.Delivery{Position: at, Version: 1}))
	}},
	{"Q16/LateEndIsLost", 0, func(t *testing.T, f *fixture) {
		f.streams()
		at := f.insert(t, "a")[0]
		item := f.one(t, queuing.Take{Lease: brief})
		pass(t, 2*brief)
		f.soon(t, queuing.Take{Session: 2})
		for _, kind := range []queuing.Kind{queuing.Wait, queuing.Suspend, queuing.Complete} {
			requireEnding(t, queuing.Lost, f.end(t, kind, item.Delivery()))
			requireEnding(t, queuing.Lost, f.end(t, kind, queuing.Delivery{Position: at, Version: 7}))
			requireEnding(t, queuing.Lost, f.end(t, kind, queuing.Delivery{Position: at + 1}))
		}
		f.is(t, at, "out 1/1 e")
	}},
	{"Q16/MessagesThatOfferNothingAreNoEnd", 0, func(t *testing.T, f *fixture) {
		f.streams()
		f.insert(t, "a")
		f.turn(t, queuing.Wait, f.one(t, queuing.Take{}).Delivery(), 0)
		for range 6 {
			f.write(t, "a", note, 100)
		}
		at := f.insert(t, "b")[0]

		taken := f.take(t, queuing.Take{Want: 2})

		require.Equal(t, []messagestore.GlobalPosition{at}, positions(taken))
		require.False(t, taken.More)
	}},
	{"Q16/OfOneKindForEver", 0, func(t *testing.T, f *fixture) {
		items := newFixture(f.driver, f.options)
		for _, q := range []*fixture{items, f.streams()} {
			q.insert(t, "a")
			item := q.one(t, queuing.Take{})
			other := q.full(queuing.Take{Want: 1})
			other.Wakes = nil
			if q == items {
				other.Wakes = []string{signal}
			}
			require.ErrorIs(t, testkit.ErrorOf(q.driver.QueueTake(t.Context(), other)), messagestore.ErrInvalid)
			q.done(t, queuing.Defer, item.Delivery())
		}
		for _, kind := range []queuing.Kind{queuing.Wait, queuing.Suspend} {
			_, err := items.driver.QueueTake(t.Context(), items.full(queuing.Take{Finishes: []queuing.Finish{{Delivery: items.one(t, queuing.Take{}).Delivery(), Kind: kind}}}))
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			items.leave(t, queuing.Leave{Session: 1})
		}
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueFinish(t.Context(), f.of, 1, []queuing.Delivery{f.one(t, queuing.Take{}).Delivery()})), messagestore.ErrInvalid)
	}},
}

// signal is the type of messages that wake, and note of messages that do not.
const (
	signal = "Signal"
	note   = "Note"
)

// streams returns a fixture for a queue of streams.
func (f *fixture) streams() *fixture {
	f.wakes = []string{signal}
	return f
}

// write appends messages of a type to a stream.
func (f *fixture) write(t require.TestingT, key, messageType string, n int) (last messagestore.GlobalPosition) {
	records := make([]messagestore.Encoded, n)
	for i := range records {
		records[i] = messagestore.Encoded{ID: uuid.New(), Type: messageType, Data: []byte(`{}`)}
	}
	written := testkit.Do(f.driver.Append(context.Background(), messagestore.Append{Stream: f.of.Category.Stream(key), Expected: messagestore.AnyVersion, Records: records}))(t)
	return written.GlobalPosition
}

// turn ends a turn until something wakes the item.
func (f *fixture) turn(t testing.TB, kind queuing.Kind, d queuing.Delivery, seen messagestore.GlobalPosition) {
	t.Helper()
	f.finish(t, queuing.Finish{Delivery: d, Kind: kind, Delay: queuing.MaxDelay, Seen: seen})
}

func (f *fixture) finish(t testing.TB, finish queuing.Finish) {
	t.Helper()
	requireEnding(t, queuing.Done, f.take(t, queuing.Take{Finishes: []queuing.Finish{finish}}).Endings[0])
}
