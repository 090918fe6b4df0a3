package queuetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of clocks: that a queue goes on after the store's clock has shown a wrong time.
var clockTests = []test{
	{"Clock/DelaysGoOn", clock, func(t *testing.T, f *fixture) {
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			at := f.insert(t, "", "", "")
			wrong()
			taken := f.take(t, queuing.Take{Want: 3})
			require.Len(t, taken.Items, 3)
			f.take(t, delayed(taken.Items[0].Delivery(), queuing.Retry, 50*time.Millisecond))
			f.take(t, delayed(taken.Items[1].Delivery(), queuing.Retry, 10*time.Minute))
			f.take(t, delayed(taken.Items[2].Delivery(), queuing.Defer, 10*time.Minute))

			right(0)
			require.True(t, f.ready(t).Ready, "a take sees to it")
			f.take(t, queuing.Take{})
			ready := f.ready(t)
			require.GreaterOrEqual(t, ready.Wake, time.Duration(0))
			require.Less(t, ready.Wake, time.Second)
			right(time.Second)
			require.Equal(t, at[:1], positions(f.take(t, queuing.Take{Want: 9})))
			right(9 * time.Minute)
			f.none(t, queuing.Take{})
			right(10*time.Minute + 2*time.Second)
			require.ElementsMatch(t, at[1:], positions(f.take(t, queuing.Take{Want: 9})))
		})
	}},
	// Times that were computed by the right clock do not move.
	{"Clock/DelaysFromBeforeStay", clock, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "")
		f.take(t, delayed(f.one(t, queuing.Take{}).Delivery(), queuing.Defer, 10*time.Minute))
		d := f.one(t, queuing.Take{}).Delivery()
		f.ahead(time.Minute)
		f.done(t, queuing.Complete, d)

		f.ahead(0)
		f.none(t, queuing.Take{})

		f.ahead(9*time.Minute + 30*time.Second)
		f.none(t, queuing.Take{})
		f.ahead(10*time.Minute + time.Second)
		require.Equal(t, at[:1], positions(f.take(t, queuing.Take{Want: 9})))
	}},
	{"Clock/DatesStay", clock, func(t *testing.T, f *fixture) {
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			right(0)
			date := f.now(t).Add(10 * time.Minute)
			first := f.insert(t, "a", "")
			at := []messagestore.GlobalPosition{f.insertAt(t, "", date), f.insertAt(t, "a", date), f.insertAt(t, "", date)}
			taken := f.take(t, queuing.Take{Want: 5})
			require.Equal(t, first, positions(taken))
			wrong()
			f.done(t, queuing.Complete, taken.Items[0].Delivery()) // and what is behind it is let go
			f.take(t, delayed(taken.Items[1].Delivery(), queuing.Retry, 0))

			right(0)
			require.Equal(t, first[1:], positions(f.take(t, queuing.Take{Want: 9})))

			right(9 * time.Minute)
			f.none(t, queuing.Take{})
			right(10*time.Minute + time.Second)
			require.ElementsMatch(t, at, positions(f.take(t, queuing.Take{Want: 9})))
		})
	}},
	{"Clock/WhatWasLetGoIsOffered", clock, func(t *testing.T, f *fixture) {
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			at := f.insert(t, "a", "a", "b", "b")
			taken := f.take(t, queuing.Take{Want: 4})
			require.Len(t, taken.Items, 2)
			wrong()
			f.done(t, queuing.Complete, taken.Items[0].Delivery())
			f.change(t, queuing.Cancel, at[2])

			right(0)

			require.ElementsMatch(t, []messagestore.GlobalPosition{at[1], at[3]}, positions(f.take(t, queuing.Take{Want: 9})))
		})
	}},
	// This holds whether its session ended by the right clock, or was extended by the wrong clock.
	{"Clock/ADeadWorkersItemsComeBack", clock, func(t *testing.T, f *fixture) {
		const lease = 10 * time.Second
		for _, does := range []struct {
			name string
			when func(f *fixture, wrong func())
		}{
			{"takes before, and extends", func(f *fixture, wrong func()) {
				f.one(t, queuing.Take{Session: 7, Lease: lease})
				wrong()
				f.extend(t, 7, lease)
			}},
			{"takes", func(f *fixture, wrong func()) {
				wrong()
				f.one(t, queuing.Take{Session: 7, Lease: lease})
			}},
			{"takes and extends", func(f *fixture, wrong func()) {
				wrong()
				f.one(t, queuing.Take{Session: 7, Lease: lease})
				f.extend(t, 7, lease)
			}},
			{"is left", func(f *fixture, wrong func()) {
				d := f.one(t, queuing.Take{Session: 6}).Delivery()
				wrong()
				f.leave(t, queuing.Leave{Session: 6, Next: 7, Lease: lease, Keep: []queuing.Delivery{d}})
			}},
		} {
			eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
				t.Log(does.name)
				at := f.insert(t, "")
				does.when(f, wrong)

				right(0)
				if ready := f.ready(t); !ready.Ready {
					require.GreaterOrEqual(t, ready.Wake, time.Duration(0))
					require.LessOrEqual(t, ready.Wake, lease)
				}
				taken := f.take(t, queuing.Take{Session: 8, Want: 1})
				if len(taken.Items) == 0 { // else the session was over by the wrong clock
					require.GreaterOrEqual(t, taken.Wake, time.Duration(0))
					require.LessOrEqual(t, taken.Wake, lease)
					right(lease + 2*time.Second)
					taken = f.take(t, queuing.Take{Session: 8, Want: 1})
				}
				require.Equal(t, at, positions(taken))
			})
		}
	}},
	{"Clock/AWorkerThatLivesKeepsItsItems", clock, func(t *testing.T, f *fixture) {
		const lease = 10 * time.Second
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			f.insert(t, "")
			wrong()
			d := f.one(t, queuing.Take{Session: 7, Lease: lease}).Delivery()
			f.extend(t, 7, lease)

			right(0)
			f.none(t, queuing.Take{Session: 8})
			right(3 * time.Second)
			require.Empty(t, f.extend(t, 7, lease, d))
			require.Equal(t, int64(1), f.status(t).Sessions)
			right(12 * time.Second)
			f.none(t, queuing.Take{Session: 8})
			require.Empty(t, f.extend(t, 7, lease, d))

			requireEnding(t, queuing.Done, f.end(t, queuing.Complete, d))
		})
	}},
	{"Clock/TheRateGoesOn", clock, func(t *testing.T, f *fixture) {
		slow := queuing.Policy{Rate: 1, Burst: 2}
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			f.insert(t, "", "", "", "")
			wrong()
			require.Len(t, f.take(t, queuing.Take{Policy: slow, Want: 9}).Items, 2)

			right(0)
			f.take(t, queuing.Take{Policy: slow, Want: 9})
			right(3 * time.Second)

			require.Len(t, f.take(t, queuing.Take{Policy: slow, Want: 9}).Items, 2)
		})
	}},
	{"Clock/NothingIsKeptForACallerThatHasGone", clock, func(t *testing.T, f *fixture) {
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			wrong()
			f.wait(t, queuing.Take{Session: 1, Wait: queuing.MaxWait})
			at := f.insert(t, "")

			right(0)
			taken := f.take(t, queuing.Take{Session: 2, Want: 1})
			if len(taken.Items) == 0 {
				right(time.Second)
				taken = f.take(t, queuing.Take{Session: 2, Want: 1})
			}

			require.Equal(t, at, positions(taken))
		})
	}},
	// A worker of streams decides by the messages, and needs a turn for that.
	{"Clock/TurnsAreOffered", clock, func(t *testing.T, f *fixture) {
		for _, kind := range []queuing.Kind{queuing.Wait, queuing.Suspend} {
			eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
				f = f.streams()
				at := f.write(t, "a", "Begun", 1)
				date := f.write(t, "b", "Begun", 1)
				before := f.take(t, queuing.Take{Want: 2})
				require.Len(t, before.Items, 2)
				right(0)
				f.turn(t, kind, before.Items[1].Delivery(), date)
				wrong()
				f.turn(t, kind, before.Items[0].Delivery(), at)

				right(0)
				taken := f.take(t, queuing.Take{Want: 9})

				require.Contains(t, positions(taken), at)
			})
		}
	}},
	{"Clock/OperatorsRetryNow", clock, func(t *testing.T, f *fixture) {
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			at := f.insert(t, "", "")
			wrong()
			taken := f.take(t, queuing.Take{Want: 2})
			require.Len(t, taken.Items, 2)
			f.take(t, delayed(taken.Items[0].Delivery(), queuing.Retry, long))
			f.done(t, queuing.Bury, taken.Items[1].Delivery())

			right(0)
			require.Equal(t, at, f.change(t, queuing.RetryNow, at...))

			require.ElementsMatch(t, at, positions(f.take(t, queuing.Take{Want: 9})))
		})
	}},
	{"Clock/StatusTells", clock, func(t *testing.T, f *fixture) {
		eachJump(t, f, func(t *testing.T, f *fixture, wrong func(), right func(time.Duration)) {
			f.insert(t, "")
			wrong()
			d := f.one(t, queuing.Take{}).Delivery()
			require.False(t, f.status(t).Changed.After(f.status(t).Time))

			right(0)

			is := f.status(t)
			require.WithinDuration(t, f.now(t), is.Time, time.Minute)
			require.Greater(t, is.Changed.Sub(is.Time), 30*time.Second)
			require.Zero(t, is.Sessions, "of no process is known that it lives")
			f.done(t, queuing.Complete, d)
			is = f.status(t)
			require.LessOrEqual(t, is.Changed.Sub(is.Time), queuing.ClockTolerance)
		})
	}},
	{"Clock/ASmallStepChangesNothing", clock, func(t *testing.T, f *fixture) {
		f.ahead(0)
		at := f.insert(t, "", "")
		f.ahead(900 * time.Millisecond)
		d := f.one(t, queuing.Take{Lease: 10 * time.Second}).Delivery()
		f.take(t, delayed(f.one(t, queuing.Take{}).Delivery(), queuing.Defer, 10*time.Minute))

		f.ahead(0)
		f.none(t, queuing.Take{})
		f.take(t, delayed(d, queuing.Retry, 0))

		require.Equal(t, at[:1], positions(f.take(t, queuing.Take{Want: 9})))
		f.ahead(10 * time.Minute)
		f.none(t, queuing.Take{})
		f.ahead(10*time.Minute + 2*time.Second)
		require.Equal(t, at[1:], positions(f.take(t, queuing.Take{Want: 9})))
	}},
}

// A jump is a clock that shows the wrong time for a while, and then the right time.
type jump struct {
	name         string
	wrong, right time.Duration // ahead
}

var jumps = []jump{
	{"+1 min", time.Minute, 0},
	{"+1 h", time.Hour, 0},
	{"+24 h", 24 * time.Hour, 0},
	{"the year 2099", time.Until(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)), 0},
	{"-1 h", 0, -time.Hour},
}

// eachJump calls test for each jump, each time with another queue. The clock is right until the
// test calls wrong or right; right takes the time that has passed since the clock was right again.
func eachJump(t *testing.T, f *fixture, test func(t *testing.T, f *fixture, wrong func(), right func(later time.Duration))) {
	t.Helper()
	for _, j := range jumps {
		own := newFixture(f.driver, f.options)
		f.ahead(0)
		t.Log(j.name)
		test(t, own, func() { f.ahead(j.wrong) }, func(later time.Duration) { f.ahead(j.right + later) })
	}
}

func delayed(d queuing.Delivery, kind queuing.Kind, delay time.Duration) queuing.Take {
	return queuing.Take{Finishes: []queuing.Finish{{Delivery: d, Kind: kind, Delay: delay}}}
}
