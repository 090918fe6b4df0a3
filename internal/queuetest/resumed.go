package queuetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of [queuing.Take].Resume: a take whose answer was lost is repeated under another
// session.
var resumedTests = []test{
	{"Q1/ARepeatedTakeGetsWhatEarlierOnesHave", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "", "a", "")
		limited := queuing.Policy{MaxFailures: 5, Rate: 1e-6, Burst: 2}
		f.take(t, queuing.Take{Session: 1, Want: 2, Policy: limited})
		again := queuing.Take{Session: 2, Resume: []int64{1}, Want: 1, Policy: limited, Lease: 3 * long}

		taken := f.take(t, again)

		require.Equal(t, at[:2], positions(taken), "both, and nothing else")
		require.Zero(t, taken.Items[0].Version)
		require.Greater(t, f.item(t, at[0]).Until.Sub(f.now(t)), 2*long, "under the lease of this one")
		require.Equal(t, at[:2], positions(f.take(t, queuing.Take{Session: 3, Resume: []int64{1, 2}})), "though none is wanted")
		require.EqualValues(t, 2, f.status(t).Taken, "each was taken once")
		require.EqualValues(t, 1, f.status(t).Sessions, "the earlier sessions have ended")
		first, second := queuing.Delivery{Position: at[0]}, queuing.Delivery{Position: at[1]}
		for _, earlier := range []int64{1, 2} {
			f.leave(t, queuing.Leave{Session: earlier}) // whose caller has gone
			require.Equal(t, []queuing.Delivery{first}, f.extend(t, earlier, long, first))
			requireEnding(t, queuing.Lost, f.take(t, queuing.Take{Finishes: []queuing.Finish{{Delivery: first, Kind: queuing.Retry, Session: earlier}}}).Endings[0])
		}
		f.none(t, queuing.Take{Session: 9, Policy: limited})
		f.is(t, at[0], "out 0/0 ")
		f.is(t, at[1], "out 0/0 ")

		f.done(t, queuing.Complete, second)
		require.Equal(t, at[:1], positions(f.take(t, queuing.Take{Session: 4, Resume: []int64{1, 2, 3}, Want: 9})))
		f.is(t, at[2], "waiting 0/0 ")
		f.done(t, queuing.Complete, first)
		require.Equal(t, at[2:], positions(f.take(t, queuing.Take{Session: 5, Resume: []int64{1, 2, 3, 4}, Want: 9})), "there are none, so it takes")
	}},
	// What it ends is ended first, also of an earlier attempt.
	{"Q1/ARepeatedTakeEndsBeforeItMoves", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "")
		f.take(t, queuing.Take{Session: 1, Want: 2})

		taken := f.take(t, queuing.Take{Session: 2, Resume: []int64{1}, Want: 9, Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: at[0]}, Kind: queuing.Complete, Session: 1}}})

		require.Equal(t, "d", letters(taken.Endings))
		require.Equal(t, at[1:2], positions(taken))
		f.is(t, at[0], "finished 0/0 ")
	}},
	{"Q1/NothingMovesFromASessionThatIsOver", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		f.one(t, queuing.Take{Session: 1, Lease: brief})
		pass(t, 2*brief)

		require.Empty(t, f.take(t, queuing.Take{Session: 2, Resume: []int64{1}}).Items)

		f.is(t, at[0], "later 1/1 e")
	}},
	{"Q8/ARepeatedTakeEndsTheEarlierPlace", 0, func(t *testing.T, f *fixture) {
		f.wait(t, queuing.Take{Session: 1, Wait: queuing.MaxWait})
		f.take(t, queuing.Take{Session: 2, Resume: []int64{1}})
		f.insert(t, "")

		f.one(t, queuing.Take{Session: 3})
	}},
	{"Q4/SessionsAreExtendedTogether", 0, func(t *testing.T, f *fixture) {
		f.insert(t, "", "", "", "")
		var all []queuing.Delivery
		sessions := []int64{1, 2, 3, 3}
		for _, session := range sessions {
			all = append(all, f.one(t, queuing.Take{Session: session, Lease: long}).Delivery())
		}
		wrong := append([]int64{9}, sessions[1:]...)
		e := queuing.Extension{Queue: f.of, Session: 1, Lease: queuing.MaxLease, Deliveries: all, Sessions: wrong, Notes: queuing.Notes{all[0]: "half", all[1]: "of another session"}}

		lost, err := f.driver.QueueExtend(t.Context(), e)

		require.NoError(t, err)
		require.Equal(t, all[:1], lost, "of session 9, which has nothing")
		now := f.now(t)
		for i, d := range all { // session 1 too, as it is the extension's
			require.Greater(t, f.item(t, d.Position).Until.Sub(now), 2*long, "%d", i)
		}
		require.Equal(t, "half", f.item(t, all[0].Position).Note)
		require.Empty(t, f.item(t, all[1].Position).Note)
		f.leave(t, queuing.Leave{Session: 2})
		e.Sessions = sessions
		lost, err = f.driver.QueueExtend(t.Context(), e)
		require.NoError(t, err)
		require.Equal(t, all[1:2], lost)
	}},
	{"Order/WhatIsDueComesFirst", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "", "")
		a := f.one(t, queuing.Take{}).Delivery()
		b := f.one(t, queuing.Take{}).Delivery()
		f.done(t, queuing.Defer, b)
		pass(t, brief)
		f.done(t, queuing.Retry, a)

		require.Equal(t, []messagestore.GlobalPosition{at[1], at[0], at[2], at[3]}, positions(f.take(t, queuing.Take{Want: 9})),
			"in the order in which they were offered again, and then what nobody has met")
	}},
}
