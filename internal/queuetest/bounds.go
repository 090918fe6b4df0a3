package queuetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of failures: that they are counted and logged, and that the last one buries. Below are
// the tests of callers in line, of dates, rates and other bounds, and of what is ready.
var failureTests = []test{
	{"Q6/FailuresAreInTheLog", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")[0]
		for failures, text := range []string{"no route", "no answer"} {
			item := f.one(t, queuing.Take{Session: 3})
			require.Equal(t, failures, item.Failures)
			f.take(t, queuing.Take{Finishes: []queuing.Finish{{Delivery: item.Delivery(), Kind: queuing.Retry, Error: text}}})
			found := f.item(t, at)
			require.Equal(t, text, found.Error)
			entry := found.Log[failures]
			require.WithinDuration(t, f.now(t), entry.Time, testkit.WaitLimit)
			entry.Time = time.Time{}
			require.Equal(t, queuing.Entry{Version: failures, What: queuing.Failed, Session: 3, Text: text}, entry)
		}
		f.is(t, at, "later 2/2 rr")
		f.done(t, queuing.Defer, f.one(t, queuing.Take{}).Delivery())
		f.is(t, at, "later 3/2 rrf")
		require.Equal(t, "no answer", f.item(t, at).Error, "of the last failure")
	}},
	{"Q6/TheLastFailureBuries", 0, func(t *testing.T, f *fixture) {
		few := queuing.Policy{MaxFailures: 2}
		at := f.insert(t, "")[0]
		for range 2 {
			retry := queuing.Finish{Delivery: f.one(t, queuing.Take{Policy: few}).Delivery(), Kind: queuing.Retry}
			f.take(t, queuing.Take{Policy: few, Finishes: []queuing.Finish{retry}})
		}
		f.is(t, at, "dead 2/2 rr")

		at = f.insert(t, "")[0]
		f.one(t, queuing.Take{Session: 2, Lease: brief})
		pass(t, 2*brief)
		f.none(t, queuing.Take{Policy: queuing.Policy{MaxFailures: 1}})
		f.is(t, at, "dead 1/1 e")

		at = f.insert(t, "")[0]
		f.done(t, queuing.Bury, f.one(t, queuing.Take{}).Delivery())
		f.is(t, at, "dead 1/1 x")
		f.none(t, queuing.Take{})
	}},
	{"Q6/WhatIsNoFailureDoesNotCount", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")[0]
		for _, kind := range []queuing.Kind{queuing.Unhandled, queuing.Defer, 0} {
			item := f.one(t, queuing.Take{Policy: queuing.Policy{MaxFailures: 1}})
			if kind == 0 {
				f.leave(t, queuing.Leave{Session: 1})
				continue
			}
			f.take(t, queuing.Take{Policy: queuing.Policy{MaxFailures: 1}, Finishes: []queuing.Finish{{Delivery: item.Delivery(), Kind: kind, Error: "stopped"}}})
			of := f.item(t, at)
			require.Equal(t, "stopped", of.Log[len(of.Log)-1].Text)
			require.Empty(t, of.Error, "it is of the last failure")
		}
		f.is(t, at, "later 3/0 ufu")
	}},
	// An item that kills its process does not kill one after the other at once.
	{"Q6/SessionsThatAreOverAreBackedOffFrom", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")[0]
		f.one(t, queuing.Take{Session: 1, Lease: brief})
		pass(t, 2*brief)
		f.one(t, queuing.Take{Session: 2, Lease: brief})
		pass(t, 2*brief)

		f.none(t, queuing.Take{Session: 3})

		item := f.item(t, at)
		require.Equal(t, "later 2/2 ee", describe(item))
		require.Equal(t, 2*time.Second, item.Due.Sub(item.Log[1].Time))

		failing := f.insert(t, "")[0]
		for range 3 {
			f.done(t, queuing.Retry, f.one(t, queuing.Take{}).Delivery())
		}
		f.one(t, queuing.Take{Session: 4, Lease: brief})
		pass(t, 2*brief)
		require.Equal(t, failing, f.soon(t, queuing.Take{}).Message.GlobalPosition, "the first end of a session, whatever failed before")
	}},
	// When a process dies, nobody knows which of its session's items has killed it. So from the
	// second time on each is delivered alone.
	{"Q6/OnlyWhatEndsItsSessionIsBuried", 0, func(t *testing.T, f *fixture) {
		four := queuing.Policy{MaxFailures: 4}
		at := f.insert(t, "", "", "")
		f.ends(t, 11, four, 9, at...)
		f.ends(t, 12, four, 9, at...)
		for _, p := range at {
			f.is(t, p, "later 2/0 ee")
		}
		fresh := f.insert(t, "")
		require.Equal(t, fresh, positions(f.take(t, queuing.Take{Want: 9, Session: 2})), "they come after a time, and this at once")
		f.change(t, queuing.RetryNow, at...)

		f.ends(t, 13, four, 9, at[0]) // it ends its session each time
		f.is(t, at[0], "later 4/3 eeRe")
		for i, p := range at[1:] {
			item := f.one(t, queuing.Take{Session: int64(20 + i)})
			require.Equal(t, p, item.Message.GlobalPosition)
			require.Zero(t, item.Failures)
			f.none(t, queuing.Take{Session: int64(20 + i)})
			f.done(t, queuing.Complete, item.Delivery())
		}
		f.change(t, queuing.RetryNow, at[0])
		f.ends(t, 14, four, 9, at[0])
		f.is(t, at[0], "dead 6/4 eeReRe")
		f.none(t, queuing.Take{Session: 15})
	}},
	{"Q6/OneSessionWaitsToHaveAnItemAlone", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "")
		f.ends(t, 11, queuing.Policy{}, 9, at...)
		f.ends(t, 12, queuing.Policy{}, 9, at...)
		fresh := f.insert(t, make([]string, 6)...)
		first := f.one(t, queuing.Take{Session: 1}).Delivery()
		second := f.one(t, queuing.Take{Session: 2}).Delivery()
		require.Equal(t, fresh[0], first.Position)
		require.Equal(t, fresh[1], second.Position)
		f.change(t, queuing.RetryNow, at...)

		f.none(t, queuing.Take{Session: 1})
		require.Equal(t, fresh[2], f.one(t, queuing.Take{Session: 2}).Message.GlobalPosition, "another goes on meanwhile")
		f.none(t, queuing.Take{Session: 1})
		require.Equal(t, at[:1], positions(f.take(t, queuing.Take{Session: 3, Want: 9})), "one that has nothing out does not wait")
		f.none(t, queuing.Take{Session: 3})
		alone := f.take(t, queuing.Take{Session: 1, Want: 9, Finishes: []queuing.Finish{{Delivery: first, Kind: queuing.Complete}}})
		require.Equal(t, at[1:], positions(alone))
		f.none(t, queuing.Take{Session: 1})

		f.done(t, queuing.Complete, alone.Items[0].Delivery())
		f.take(t, queuing.Take{Session: 3, Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: at[0], Version: 3}, Kind: queuing.Complete}}})
		require.Equal(t, fresh[3:], positions(f.take(t, queuing.Take{Session: 1, Want: 9})))
		f.is(t, at[0], "finished 3/0 eeR")
	}},
}

// ends makes a session reserve items, and end.
func (f *fixture) ends(t *testing.T, session int64, policy queuing.Policy, want int, at ...messagestore.GlobalPosition) {
	t.Helper()
	var taken []messagestore.GlobalPosition
	q := queuing.Take{Session: session, Policy: policy, Lease: brief, Want: want}
	testkit.Await(t, "an item is offered", func() (bool, any) {
		taken = positions(f.take(t, q))
		return len(taken) > 0, taken
	})
	require.Equal(t, at, taken)
	pass(t, 2*brief)
	f.take(t, queuing.Take{Policy: policy})
}

var lineTests = []test{
	// Callers have [queuing.Patience] to come. If the machine is slower, the sub-test tries again.
	{"Q8/ServedInTheirOrder", 0, func(t *testing.T, f *fixture) {
		testkit.Await(t, "calls within the patience", func() (bool, any) {
			f := newFixture(f.driver, f.options)
			first := f.wait(t, queuing.Take{Session: 1, Want: 2, Wait: queuing.MaxWait})
			second := f.wait(t, queuing.Take{Session: 2, Wait: queuing.MaxWait})
			for _, test := range []struct {
				next queuing.Take
				late []queuing.Take
			}{
				{first, []queuing.Take{{Session: 3, Want: 1}, second}},
				{second, []queuing.Take{{Session: 3, Want: 1}}},
			} {
				began := f.now(t)
				at := f.insert(t, make([]string, test.next.Want)...)
				var late []queuing.Taken
				for _, q := range test.late {
					late = append(late, f.take(t, q))
				}
				if took := f.now(t).Sub(began); took >= queuing.Patience {
					return false, took
				}
				for _, taken := range late {
					require.Empty(t, positions(taken), "the first is yet to come")
					require.LessOrEqual(t, taken.Wake, queuing.Patience)
					require.GreaterOrEqual(t, taken.Wake, time.Duration(0))
				}
				require.Equal(t, at, positions(f.take(t, test.next)))
			}
			f.insert(t, "")
			f.one(t, queuing.Take{Session: 3})
			return true, nil
		})
	}},
	{"Q8/WhatIsLeftIsOffered", 0, func(t *testing.T, f *fixture) {
		f.wait(t, queuing.Take{Session: 1, Wait: queuing.MaxWait})
		f.insert(t, "", "")

		require.NotEmpty(t, positions(f.take(t, queuing.Take{Session: 2, Want: 9})))
	}},
	{"Q8/ACallerThatDoesNotComeIsPassedOver", 0, func(t *testing.T, f *fixture) {
		f.wait(t, queuing.Take{Session: 1, Wait: queuing.MaxWait})
		f.insert(t, "")
		f.soon(t, queuing.Take{Session: 2})
		f.insert(t, "")

		f.one(t, queuing.Take{Session: 2})
	}},
	{"Q8/APlaceEndsWithItsWait", 0, func(t *testing.T, f *fixture) {
		for session := range int64(70) { // more than a driver may care to count
			f.wait(t, queuing.Take{Session: session + 1, Wait: brief})
		}
		pass(t, 2*brief)
		f.insert(t, "")
		f.one(t, queuing.Take{Session: 101})

		next := f.wait(t, queuing.Take{Session: 100, Wait: queuing.MaxWait})
		f.insert(t, "")
		require.Len(t, f.take(t, next).Items, 1)
	}},
	{"Q8/APlaceEndsWithItsSession", 0, func(t *testing.T, f *fixture) {
		f.wait(t, queuing.Take{Session: 1, Wait: queuing.MaxWait})
		f.leave(t, queuing.Leave{Session: 1})
		f.insert(t, "")

		f.one(t, queuing.Take{Session: 2})
	}},
	{"Q8/ASessionDoesNotWaitForItself", 0, func(t *testing.T, f *fixture) {
		f.wait(t, queuing.Take{Session: 1, Wait: queuing.MaxWait})
		f.insert(t, "")

		f.one(t, queuing.Take{Session: 1})
	}},
}

// wait makes a session wait in line.
func (f *fixture) wait(t testing.TB, q queuing.Take) queuing.Take {
	t.Helper()
	q.Want = max(q.Want, 1)
	taken := f.take(t, q)
	require.Empty(t, taken.Items)
	require.NotZero(t, taken.Ticket)
	q.Wait, q.Ticket = 0, taken.Ticket
	return q
}

var boundTests = []test{
	{"Q9/NotBeforeItsDate", 0, func(t *testing.T, f *fixture) {
		now := f.now(t)
		far := now.Add(long).Truncate(time.Microsecond)
		at := []messagestore.GlobalPosition{f.insertAt(t, "a", far), f.insertAt(t, "a", time.Time{}), f.insertAt(t, "", now.Add(-long))}

		require.Equal(t, at[2:], positions(f.take(t, queuing.Take{Want: 9})), "but one whose date has passed")

		f.is(t, at[0], "later 0/0 ")
		require.True(t, far.Equal(f.item(t, at[0]).Due))
		f.is(t, at[1], "held 0/0 ")

		f.done(t, queuing.Complete, queuing.Delivery{Position: at[2]})
		before := f.insert(t, "b")
		behind := f.insertAt(t, "b", far)
		require.Equal(t, before, positions(f.take(t, queuing.Take{Want: 9})))
		f.is(t, behind, "held 0/0 ")
		require.Empty(t, f.next(t, queuing.Delivery{Position: before[0]}))
		f.is(t, behind, "later 0/0 ")

		date := f.now(t).Add(5 * brief)
		soon := f.insertAt(t, "", date)
		require.Equal(t, soon, f.soon(t, queuing.Take{}).Message.GlobalPosition)
		require.False(t, f.now(t).Before(date.Truncate(time.Microsecond)))
	}},
	// The last date has more microseconds than a double can hold.
	{"Q9/DatesAreExact", 0, func(t *testing.T, f *fixture) {
		dates := []time.Time{
			time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
			time.Date(2400, 2, 29, 12, 34, 56, 789_001_000, time.UTC),
			time.UnixMicro(999_999_999_999_999_999).UTC(), // of 18 digits
		}
		var at []messagestore.GlobalPosition
		are := func(state queuing.State) {
			t.Helper()
			for i, date := range dates {
				item := f.item(t, at[i])
				require.Equal(t, state, item.State)
				require.Equal(t, date, item.Due)
			}
		}
		for _, date := range dates {
			at = append(at, f.insertAt(t, "", date))
		}
		are(queuing.Waiting)
		f.none(t, queuing.Take{})
		are(queuing.Later)
	}},
	{"Q9/NotBeforeItsDelay", 0, func(t *testing.T, f *fixture) {
		for _, kind := range []queuing.Kind{queuing.Retry, queuing.Defer} {
			at := f.insert(t, "")[0]
			d := f.one(t, queuing.Take{}).Delivery()
			put := func(delay time.Duration) {
				f.take(t, queuing.Take{Finishes: []queuing.Finish{{Delivery: d, Kind: kind, Delay: delay}}})
			}
			before := f.now(t).Truncate(time.Microsecond)
			put(5 * brief)
			d = f.soon(t, queuing.Take{}).Delivery()
			require.GreaterOrEqual(t, f.now(t).Sub(before), 5*brief)
			put(long)
			f.none(t, queuing.Take{})
			require.Equal(t, queuing.Later, f.item(t, at).State)
			require.WithinRange(t, f.item(t, at).Due, before.Add(long), f.now(t).Add(long))
		}
	}},
	// The bound holds for all sessions together.
	{"Q9/NoMoreThanMaxOut", 0, func(t *testing.T, f *fixture) {
		two := queuing.Policy{MaxOut: 2}
		at := f.insert(t, "", "", "", "")
		f.one(t, queuing.Take{Session: 1, Policy: two})

		require.Equal(t, at[1:2], positions(f.take(t, queuing.Take{Session: 2, Policy: two, Want: 9})))

		f.none(t, queuing.Take{Session: 3, Policy: two})
		f.done(t, queuing.Complete, queuing.Delivery{Position: at[0]})
		require.Equal(t, at[2:3], positions(f.take(t, queuing.Take{Session: 3, Policy: two, Want: 9})))
	}},
	// Burst items come at once, and then Rate per second.
	{"Q9/NoMoreThanTheRate", 0, func(t *testing.T, f *fixture) {
		slow := queuing.Policy{Rate: 0.001, Burst: 3}
		at := f.insert(t, "", "", "", "", "")

		require.Equal(t, at[:3], positions(f.take(t, queuing.Take{Policy: slow, Want: 9})))

		taken := f.take(t, queuing.Take{Session: 2, Policy: slow, Want: 9})
		require.Empty(t, taken.Items)
		require.Greater(t, taken.Wake, long/60)
		require.LessOrEqual(t, taken.Wake, 1000*time.Second)
		require.Equal(t, at[3], f.soon(t, queuing.Take{Policy: queuing.Policy{Rate: 50, Burst: 1}}).Message.GlobalPosition)

		f.insert(t, "", "", "")
		pass(t, brief)
		require.Len(t, f.take(t, queuing.Take{Policy: queuing.Policy{Rate: 1e6, Burst: 2}, Want: 9}).Items, 2, "however long the pause")
	}},
	{"Q9/NothingWhilePaused", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "")
		d := f.one(t, queuing.Take{}).Delivery()
		f.one(t, queuing.Take{Session: 2})
		f.leave(t, queuing.Leave{Session: 2})

		f.change(t, queuing.Pause)

		f.none(t, queuing.Take{})
		require.True(t, f.status(t).Paused)
		require.False(t, f.ready(t).Ready)
		f.done(t, queuing.Complete, d)
		f.change(t, queuing.Resume)
		require.False(t, f.status(t).Paused)
		require.Equal(t, at[1:], positions(f.take(t, queuing.Take{Want: 9})))
	}},
	// A caller that waits that long, or until a write, misses nothing.
	{"Q9/WakeTellsWhen", 0, func(t *testing.T, f *fixture) {
		requireWake := func(least, most time.Duration) {
			t.Helper()
			for _, wake := range []time.Duration{f.take(t, queuing.Take{Want: 9}).Wake, f.ready(t).Wake} {
				require.GreaterOrEqual(t, wake, least)
				require.LessOrEqual(t, wake, most)
			}
		}
		taken := f.take(t, queuing.Take{Want: 9})
		require.Less(t, taken.Wake, time.Duration(0), "nothing comes by itself")
		require.False(t, taken.More)
		f.insertAt(t, "", f.now(t).Add(20*long))
		requireWake(0, 20*long)
		f.insert(t, "", "")
		require.True(t, f.take(t, queuing.Take{Want: 1, Session: 2, Lease: 10 * long}).More)
		require.NotEmpty(t, f.take(t, queuing.Take{Want: 1, Session: 2, Lease: 10 * long}).Items)
		requireWake(0, 10*long)
		require.Empty(t, f.extend(t, 2, 15*long))
		requireWake(0, 15*long)
	}},
}

var idleTests = []test{
	{"Q11/ReadyChangesNothing", 0, func(t *testing.T, f *fixture) {
		f.ready(t)
		require.Nil(t, f.status(t), "no queue is made")
		at := f.insert(t, "", "", "")
		f.one(t, queuing.Take{Lease: brief})
		before := *f.status(t)
		pass(t, 2*brief)

		f.ready(t)

		after := *f.status(t)
		after.Time, after.Sessions = before.Time, before.Sessions // of which time is the reason
		require.Equal(t, before, after)
		f.is(t, at[0], "out 0/0 ")
		f.is(t, at[1], "waiting 0/0 ")
	}},
	// Ready may report items when nothing is there, but not the other way round.
	{"Q11/ReadyTellsOfAllThatIsOffered", 0, func(t *testing.T, f *fixture) {
		there := func(what string) {
			t.Helper()
			require.True(t, f.ready(t).Ready, what)
		}
		f.insert(t, "")
		there("an item of a queue that is not there yet")
		d := f.one(t, queuing.Take{}).Delivery()
		f.insert(t, "", "")
		there("items beyond the cursor")
		f.one(t, queuing.Take{Session: 2, Lease: brief})
		f.one(t, queuing.Take{Session: 3})
		pass(t, 2*brief)
		there("an item whose session is over")
		f.one(t, queuing.Take{})
		f.done(t, queuing.Retry, d)
		there("an item that was given back")
		f.one(t, queuing.Take{})
		f.leave(t, queuing.Leave{Session: 3})
		there("an item whose session was left")
		dated := f.insertAt(t, "", f.now(t).Add(3*brief))
		f.take(t, queuing.Take{Want: 9})
		if f.item(t, dated).State == queuing.Later { // or the machine was slow, and it is out
			testkit.AwaitTrue(t, "an item is due", func() bool { return f.ready(t).Ready })
		}
	}},
}
