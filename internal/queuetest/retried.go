package queuetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// If an operator offers dead items again, they take their places in their streams.
var retriedTests = []test{
	{"Q3/ARetriedItemIsNextHoweverTheOneThatIsOutEnds", 0, func(t *testing.T, f *fixture) {
		for name, ends := range map[string]func(f *fixture, d queuing.Delivery) (again bool){
			"completed":    func(f *fixture, d queuing.Delivery) bool { f.done(t, queuing.Complete, d); return false },
			"failed":       func(f *fixture, d queuing.Delivery) bool { f.done(t, queuing.Retry, d); return true },
			"given back":   func(f *fixture, d queuing.Delivery) bool { f.done(t, queuing.Unhandled, d); return true },
			"buried":       func(f *fixture, d queuing.Delivery) bool { f.done(t, queuing.Bury, d); return false },
			"cancelled":    func(f *fixture, d queuing.Delivery) bool { f.change(t, queuing.Cancel, d.Position); return false },
			"left":         func(f *fixture, _ queuing.Delivery) bool { f.leave(t, queuing.Leave{Session: 1}); return true },
			"session over": nil,
		} {
			f := newFixture(f.driver, f.options)
			at := f.buried(t, 1, 1)
			require.Equal(t, at[:1], f.change(t, queuing.RetryNow, at[0]), name)
			require.Equal(t, at[1], f.item(t, at[0]).Behind, name)
			f.none(t, queuing.Take{Session: 2})
			later := f.insert(t, "k")
			f.none(t, queuing.Take{Session: 2})
			again := true
			if ends != nil {
				again = ends(f, queuing.Delivery{Position: at[1]})
			} else {
				f.leave(t, queuing.Leave{Session: 1, Next: 3, Lease: brief, Keep: []queuing.Delivery{{Position: at[1]}}})
				pass(t, 2*brief)
			}
			next := at[:1]
			if again {
				next = at
			}
			later = append(later, f.insert(t, "k")...)
			f.order(t, append(slices.Clip(next), later...)...)
		}
	}},
	{"Q3/ARetriedItemIsNextAfterATransaction", transactions, func(t *testing.T, f *fixture) {
		for _, reported := range []bool{true, false} {
			f := newFixture(f.driver, f.options)
			at := f.buried(t, 2, 1)
			f.change(t, queuing.RetryNow, at[1], at[0])
			f.finishIn(t, queuing.Done, queuing.Delivery{Position: at[2]}, true)
			later := f.insert(t, "k")
			if reported {
				f.done(t, queuing.Committed, queuing.Delivery{Position: at[2]})
			}
			f.is(t, at[2], "finished 0/0 ")
			for _, p := range append(at[:2:2], later...) {
				item := f.soon(t, queuing.Take{})
				require.Equal(t, p, item.Message.GlobalPosition)
				f.none(t, queuing.Take{Session: 2})
				f.done(t, queuing.Complete, item.Delivery())
			}
			f.done(t, queuing.Complete, queuing.Delivery{Position: at[2]})
		}
	}},
	{"Q3/ADeadItemAndOneThatWaitsAreRetriedTogether", 0, func(t *testing.T, f *fixture) {
		at := f.buried(t, 1, 1)
		f.take(t, delayed(queuing.Delivery{Position: at[1]}, queuing.Defer, long))
		require.Equal(t, at, f.change(t, queuing.RetryNow, at...))
		f.order(t, at...)
	}},
	{"Q3/RetriedItemsGoInTheirOrder", 0, func(t *testing.T, f *fixture) {
		for _, retry := range map[string]func(f *fixture, at []messagestore.GlobalPosition){
			"together": func(f *fixture, at []messagestore.GlobalPosition) {
				require.Equal(t, at, f.change(t, queuing.RetryNow, at[3], at[0], at[4], at[2], at[1]))
			},
			"one by one": func(f *fixture, at []messagestore.GlobalPosition) {
				for _, i := range []int{3, 0, 4, 2, 1} {
					require.Equal(t, at[i:i+1], f.change(t, queuing.RetryNow, at[i]))
				}
			},
			"in two calls": func(f *fixture, at []messagestore.GlobalPosition) {
				require.Equal(t, []messagestore.GlobalPosition{at[1], at[3]}, f.change(t, queuing.RetryNow, at[3], at[1]))
				require.Equal(t, []messagestore.GlobalPosition{at[0], at[2], at[4]}, f.change(t, queuing.RetryNow, at[4], at[2], at[0]))
			},
		} {
			for _, out := range []bool{true, false} {
				f := newFixture(f.driver, f.options)
				at := f.buried(t, 5, 2)
				if !out {
					f.done(t, queuing.Complete, queuing.Delivery{Position: at[5]})
					f.done(t, queuing.Complete, f.one(t, queuing.Take{}).Delivery())
				}
				retry(f, at[:5:5])
				want := at[:5:5]
				if out {
					f.none(t, queuing.Take{Session: 2})
					f.done(t, queuing.Complete, queuing.Delivery{Position: at[5]})
					want = append(want, at[6])
				}
				f.order(t, append(want, f.insert(t, "k", "k")...)...)
			}
		}
	}},
	// The next item waits even if the last before it is finished, dead, or was cancelled before it
	// was delivered.
	{"Q3/WhatComesWhileARetriedItemIsOutWaits", 0, func(t *testing.T, f *fixture) {
		for name, last := range map[string]func(f *fixture, d queuing.Delivery){
			"finished":  func(f *fixture, d queuing.Delivery) { f.done(t, queuing.Complete, d) },
			"dead":      func(f *fixture, d queuing.Delivery) { f.done(t, queuing.Bury, d) },
			"cancelled": func(f *fixture, d queuing.Delivery) { f.change(t, queuing.Cancel, d.Position) },
			"dropped": func(f *fixture, d queuing.Delivery) {
				f.done(t, queuing.Bury, d)
				f.change(t, queuing.Drop, d.Position)
			},
		} {
			f := newFixture(f.driver, f.options)
			at := f.buried(t, 1, 1)
			last(f, queuing.Delivery{Position: at[1]})
			before := describe(f.item(t, at[1]))
			require.Equal(t, at[:1], f.change(t, queuing.RetryNow, at[0]))
			first := f.one(t, queuing.Take{})
			require.Equal(t, at[0], first.Message.GlobalPosition, name)
			require.Equal(t, before[:4], describe(f.item(t, at[1]))[:4], name)
			later := f.insert(t, "k", "k")
			f.none(t, queuing.Take{Session: 2})
			f.done(t, queuing.Complete, first.Delivery())
			f.order(t, later...)
		}
	}},
	{"Q3/ARetriedItemGoesBeforeAClosedOne", 0, func(t *testing.T, f *fixture) {
		at := f.buried(t, 1, 2) // under a policy that closes none
		hold := queuing.Policy{Hold: true, MaxFailures: 5}
		f.take(t, queuing.Take{Policy: hold, Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: at[1]}, Kind: queuing.Bury}}})
		f.none(t, queuing.Take{})

		f.change(t, queuing.RetryNow, at[0])

		first := f.one(t, queuing.Take{})
		require.Equal(t, at[0], first.Message.GlobalPosition)
		require.Equal(t, queuing.Dead, f.item(t, at[1]).State)
		f.change(t, queuing.RetryNow, at[1])
		require.Equal(t, queuing.Held, f.item(t, at[1]).State)
		f.none(t, queuing.Take{Session: 2})
		f.done(t, queuing.Complete, first.Delivery())
		f.order(t, at[1:]...)
	}},
	{"Q3/ARetriedItemGoesBeforeOneThatWaitsForItsTime", 0, func(t *testing.T, f *fixture) {
		at := f.buried(t, 1, 2)
		f.take(t, queuing.Take{Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: at[1]}, Kind: queuing.Retry, Delay: long}}})
		f.none(t, queuing.Take{})

		f.change(t, queuing.RetryNow, at[0])

		first := f.one(t, queuing.Take{})
		require.Equal(t, at[0], first.Message.GlobalPosition)
		f.done(t, queuing.Complete, first.Delivery())
		f.none(t, queuing.Take{})
		require.Equal(t, queuing.Later, f.item(t, at[1]).State)
		require.Equal(t, []messagestore.GlobalPosition{at[1]}, f.change(t, queuing.RetryNow, at[1]))
		f.order(t, at[1:]...)
	}},
	// A worker that has worked on held items may find that a dead one was offered again meanwhile.
	{"Q3/HeldItemsAreCompletedBesideARetriedOne", 0, func(t *testing.T, f *fixture) {
		at := f.buried(t, 1, 4)
		f.none(t, queuing.Take{Session: 2}) // the others are held
		f.change(t, queuing.RetryNow, at[0])
		finishes := []queuing.Finish{{Delivery: queuing.Delivery{Position: at[1]}, Kind: queuing.Complete}}
		for _, p := range at[2:4] {
			finishes = append(finishes, queuing.Finish{Delivery: queuing.Delivery{Position: p}, Kind: queuing.Behind})
		}
		require.Equal(t, "ddd", letters(f.take(t, queuing.Take{Finishes: finishes}).Endings))
		require.Equal(t, "ddd", letters(f.take(t, queuing.Take{Finishes: finishes}).Endings))
		require.EqualValues(t, 3, f.status(t).Finished)
		f.order(t, at[0], at[4])
	}},
}

// buried writes items of one key. The first n are dead, and the next is out.
func (f *fixture) buried(t testing.TB, n, rest int) (at []messagestore.GlobalPosition) {
	t.Helper()
	for i := range n + rest {
		at = append(at, f.insert(t, "k")...)
		if i < n {
			f.done(t, queuing.Bury, f.one(t, queuing.Take{}).Delivery())
		}
	}
	require.Equal(t, at[n], f.one(t, queuing.Take{}).Message.GlobalPosition)
	return at
}

// order completes the offered items one by one, and requires that they come in this order, each
// alone.
func (f *fixture) order(t testing.TB, at ...messagestore.GlobalPosition) {
	t.Helper()
	for _, p := range at {
		taken := f.take(t, queuing.Take{Want: 9})
		require.Equal(t, []messagestore.GlobalPosition{p}, positions(taken))
		f.done(t, queuing.Complete, taken.Items[0].Delivery())
	}
	f.none(t, queuing.Take{})
}
