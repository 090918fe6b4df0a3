package queuetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of [queuing.Take].Others: callers who share a take.
var sharedTests = []test{
	{"Q8/ASharedTakeServesEachInTurn", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "", "", "", "")
		f.end(t, queuing.Defer, f.one(t, queuing.Take{Session: 9}).Delivery()) // the first is due now, and the others are new

		taken := f.take(t, queuing.Take{Session: 1, Want: 2, Others: []queuing.Other{{Session: 2, Want: 1}, {Session: 3, Want: 4}, {Session: 4, Want: 1}}})

		require.ElementsMatch(t, at, positions(taken))
		now := f.now(t)
		for i, session := range []int64{1, 1, 2, 3, 3, 3} {
			item := f.item(t, taken.Items[i].Message.GlobalPosition)
			require.Equal(t, session, item.Session, i)
			require.Greater(t, item.Until.Sub(now), long/2)
		}
		require.EqualValues(t, 4, f.status(t).Sessions, "with 9; one that got nothing is none")
		require.EqualValues(t, 7, f.status(t).Taken)
		third := taken.Items[2].Delivery()
		for session, ending := range map[int64]queuing.Ending{1: queuing.Lost, 4: queuing.Lost} {
			requireEnding(t, ending, f.take(t, queuing.Take{Finishes: []queuing.Finish{{Delivery: third, Kind: queuing.Retry, Session: session}}}).Endings[0])
		}
		require.Empty(t, f.extend(t, 2, queuing.MaxLease, third))
		require.Less(t, f.item(t, taken.Items[3].Message.GlobalPosition).Until.Sub(now), 2*long, "each has its own lease")
		requireEnding(t, queuing.Done, f.end(t, queuing.Complete, third))
		f.leave(t, queuing.Leave{Session: 1})
		require.EqualValues(t, 3, f.status(t).Out, "the others keep theirs")
	}},
	// Each session ends for itself: with one item out it is a failure, and with two it is not.
	{"Q6/SessionsOfASharedTakeEndApart", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "", "")
		f.take(t, queuing.Take{Session: 1, Want: 1, Lease: brief, Others: []queuing.Other{{Session: 2, Want: 1}, {Session: 3, Want: 2}}})
		pass(t, 2*brief)
		f.take(t, queuing.Take{Session: 9})

		f.is(t, at[0], "later 1/1 e")
		f.is(t, at[1], "later 1/1 e")
		f.is(t, at[2], "later 1/0 e")
		f.is(t, at[3], "later 1/0 e")
	}},
	{"Q8/ASharedTakeTakesNothingFromTheLine", 0, func(t *testing.T, f *fixture) {
		testkit.Await(t, "calls within the patience", func() (bool, any) {
			f := newFixture(f.driver, f.options)
			mine := f.wait(t, queuing.Take{Session: 1, Wait: queuing.MaxWait})
			theirs := f.wait(t, queuing.Take{Session: 9, Wait: queuing.MaxWait})
			began := f.now(t)
			at := f.insert(t, "", "")
			mine.Others = []queuing.Other{{Session: 2, Want: 1}}
			first := f.take(t, mine)
			second := f.take(t, theirs)
			if took := f.now(t).Sub(began); took >= queuing.Patience {
				return false, took
			}
			require.Equal(t, at[:1], positions(first))
			require.Equal(t, at[1:], positions(second))
			return true, nil
		})
	}},
	{"Q9/BoundsHoldForASharedTake", 0, func(t *testing.T, f *fixture) {
		f.insert(t, "", "", "", "", "", "")
		others := []queuing.Other{{Session: 2, Want: 1}, {Session: 3, Want: 9}}
		limited := queuing.Policy{MaxFailures: 5, MaxOut: 3}
		require.Len(t, f.take(t, queuing.Take{Want: 1, Policy: limited, Others: others}).Items, 3)
		limited = queuing.Policy{MaxFailures: 5, Rate: 1e-6, Burst: 2}
		require.Len(t, f.take(t, queuing.Take{Session: 4, Want: 1, Policy: limited, Others: []queuing.Other{{Session: 5, Want: 9}}}).Items, 2)
		f.none(t, queuing.Take{Session: 6, Policy: limited})
	}},
	// An item that may have ended its session is delivered alone, to the first.
	{"Q6/ASharedTakeDeliversASuspectAlone", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		for range 2 {
			f.soon(t, queuing.Take{Session: 1, Lease: brief})
			pass(t, 2*brief)
		}
		f.take(t, queuing.Take{Session: 9})
		pass(t, 3*time.Second)
		f.insert(t, "", "")

		taken := f.take(t, queuing.Take{Session: 2, Want: 1, Others: []queuing.Other{{Session: 3, Want: 2}}})

		require.Equal(t, at, positions(taken))
	}},
	{"Q8/ASharedTakeThatCannotBeIsRefused", 0, func(t *testing.T, f *fixture) {
		f.insert(t, "")
		one := []queuing.Other{{Session: 2, Want: 1}}
		for what, q := range map[string]queuing.Take{
			"no session":       {Want: 1, Others: []queuing.Other{{Want: 1}}},
			"the same session": {Want: 1, Others: []queuing.Other{{Session: 1, Want: 1}}},
			"none wanted":      {Want: 1, Others: []queuing.Other{{Session: 2}}},
			"no first":         {Others: one},
			"too many":         {Want: 1, Others: []queuing.Other{{Session: 2, Want: queuing.MaxItems}}},
			"resumed":          {Want: 1, Others: one, Resume: []int64{3}},
			"of slots":         {Want: 1, Others: one, Slots: 1},
		} {
			require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueTake(t.Context(), f.full(q))), messagestore.ErrInvalid, what)
		}
	}},
}
