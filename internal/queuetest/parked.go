package queuetest

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// parkedTests are for queues of parked messages.
var parkedTests = []test{
	{"Parked/IsOneItemHoweverManyParkIt", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a", "b")
		f.leave(t, queuing.Leave{Session: 1})
		f.none(t, queuing.Take{Slots: allSlots})
		var parked atomic.Int64
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if is, err := f.driver.QueuePark(context.Background(), f.parking(at[1])); is && err == nil {
					parked.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, parked.Load())
		require.False(t, f.park(t, queuing.Parking{Queue: f.of, Position: at[1], Error: "another"}))
		f.is(t, at[1], "dead 1/3 x")
		require.Equal(t, "no answer", f.item(t, at[1]).Error)
		require.Equal(t, "no answer", f.item(t, at[1]).Log[0].Text)
		status := f.status(t)
		require.True(t, status.Parked)
		require.EqualValues(t, 1, status.Dead)
		require.Zero(t, status.Out+status.Later+status.Held+status.Suspended+status.Finished)
		f.none(t, queuing.Take{Slots: allSlots})
		require.False(t, f.ready(t).Ready)
	}},
	{"Parked/NothingElseIsAnItem", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "b")
		f.none(t, queuing.Take{Slots: allSlots})
		taken := f.take(t, queuing.Take{Slots: allSlots, Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: at[0]}, Kind: queuing.Complete}}})
		require.Equal(t, "l", letters(taken.Endings))
		require.Nil(t, f.status(t), "a take makes no queue")

		require.True(t, f.park(t, f.parking(at[0])))
		at = append(at, f.insert(t, "b")...)
		f.none(t, queuing.Take{Slots: allSlots})
		require.False(t, f.status(t).Waiting)
		for _, p := range at[1:] {
			require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueItem(t.Context(), f.of, p)), messagestore.ErrNotFound)
		}
		require.Empty(t, testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: queuing.Waiting, Limit: 9}))(t))
	}},
	{"Parked/RetriedGoInTheOrderOfTheirStream", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "b", "a", "a", "a")
		for _, i := range []int{3, 0, 2, 1} {
			require.True(t, f.park(t, f.parking(at[i])))
		}
		f.change(t, queuing.RetryNow, at[2])
		f.change(t, queuing.RetryNow, at[3], at[1], at[0])
		taken := f.take(t, queuing.Take{Want: 9, Slots: allSlots})
		require.ElementsMatch(t, at[:2], positions(taken))
		for _, p := range []messagestore.GlobalPosition{at[0], at[2], at[3]} {
			f.none(t, queuing.Take{Slots: allSlots, Session: 2})
			kind := queuing.Complete
			if p == at[2] {
				kind = queuing.Bury
			}
			taken = f.take(t, queuing.Take{Slots: allSlots, Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: p, Version: 2}, Kind: kind, Error: "again"}}})
			requireEnding(t, queuing.Done, taken.Endings[0])
			if p != at[3] {
				next := f.one(t, queuing.Take{Slots: allSlots})
				require.Greater(t, next.Message.GlobalPosition, p)
			}
		}
		f.is(t, at[2], "dead 3/1 xRx")
		require.Equal(t, "again", f.item(t, at[2]).Error)
	}},
	{"Parked/IsTakenByTheSlotsAlone", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a")
		f.park(t, f.parking(at[0]))
		own, others := f.slotsOf(t, at[0])
		f.change(t, queuing.RetryNow, at...)

		taken := f.take(t, queuing.Take{Want: 9, Slots: others})
		require.Empty(t, taken.Items)
		require.False(t, taken.More)
		require.Positive(t, taken.Wake, "nobody asks for it in a circle")
		require.Equal(t, at, positions(f.take(t, queuing.Take{Want: 9, Slots: own, Session: 2})))
	}},
	{"Parked/WhatEndedItsSessionTwiceIsOfItsSlot", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a")
		f.park(t, f.parking(at[0]))
		own, others := f.slotsOf(t, at[0])
		f.change(t, queuing.RetryNow, at...)
		for range 2 {
			require.Equal(t, at[0], f.soon(t, queuing.Take{Slots: own, Lease: brief, Session: 2}).Message.GlobalPosition)
			pass(t, 2*brief)
			f.none(t, queuing.Take{Slots: others})
		}
		f.is(t, at[0], "later 4/2 xRee")
		f.change(t, queuing.RetryNow, at...)
		f.none(t, queuing.Take{Slots: others})
		require.Equal(t, at[0], f.one(t, queuing.Take{Slots: own, Session: 3}).Message.GlobalPosition)
	}},
	{"Parked/IsParkedAnewOnceItIsFinished", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a")[0]
		f.park(t, f.parking(at))
		f.change(t, queuing.RetryNow, at)
		first := f.one(t, queuing.Take{Slots: allSlots}).Delivery()
		require.False(t, f.park(t, f.parking(at)), "it is out")
		ends := func(d queuing.Delivery) queuing.Ending {
			return f.take(t, queuing.Take{Slots: allSlots, Finishes: []queuing.Finish{{Delivery: d, Kind: queuing.Complete}}}).Endings[0]
		}
		requireEnding(t, queuing.Done, ends(first))
		requireEnding(t, queuing.Done, ends(first))
		require.EqualValues(t, 1, f.status(t).Finished)

		require.True(t, f.park(t, f.parking(at)))
		f.is(t, at, "dead 3/3 xRx")
		requireEnding(t, queuing.Lost, ends(first))
		f.change(t, queuing.Drop, at)
		require.True(t, f.park(t, f.parking(at)))
		f.is(t, at, "dead 5/3 xRxDx")
	}},
	{"Parked/IsParkedBesideARetriedOneOfItsStream", 0, func(t *testing.T, f *fixture) {
		for _, asked := range []bool{false, true} {
			f := newFixture(f.driver, f.options)
			at := f.insert(t, "a", "a", "a")
			f.park(t, f.parking(at[0]))
			f.change(t, queuing.RetryNow, at[0])
			last := f.parking(at[2])
			last.Asked = asked
			require.True(t, f.park(t, last))
			if asked {
				require.Len(t, testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: queuing.Suspended, Limit: 9}))(t), 1)
				last.Asked = false
				require.True(t, f.park(t, last))
			}
			f.is(t, at[2], "dead 1/3 x")
			first := f.one(t, queuing.Take{Slots: allSlots}).Delivery()
			f.take(t, queuing.Take{Slots: allSlots, Finishes: []queuing.Finish{{Delivery: first, Kind: queuing.Complete}}})
			f.change(t, queuing.RetryNow, at[2])
			require.Equal(t, at[2], f.one(t, queuing.Take{Slots: allSlots}).Message.GlobalPosition)
		}
	}},
	{"Parked/IsSuspendedWhileItIsToBeParked", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "b")
		ask := queuing.Parking{Queue: f.of, Position: at[0], Error: "it is wrong", Asked: true}
		require.True(t, f.park(t, ask))
		require.False(t, f.park(t, ask))
		f.is(t, at[0], "suspended 0/0 ")
		require.Equal(t, queuing.Ready{Parked: true, Asked: true, Wake: -1}, f.ready(t))
		require.Equal(t, "it is wrong", f.item(t, at[0]).Error)
		f.none(t, queuing.Take{Slots: allSlots})
		require.True(t, f.park(t, f.parking(at[0])))
		f.is(t, at[0], "dead 1/3 x")
		require.False(t, f.ready(t).Asked)
		require.False(t, f.park(t, ask))

		finished := queuing.Parking{Queue: f.of, Position: at[0], Error: "it was finished", Finished: true}
		require.False(t, f.park(t, finished))
		f.is(t, at[0], "dead 1/3 x")

		ask.Position, finished.Position = at[1], at[1]
		require.False(t, f.park(t, finished))
		require.True(t, f.park(t, ask))
		require.True(t, f.park(t, finished))
		f.is(t, at[1], "finished 1/0 D")
		require.True(t, f.park(t, ask))
		require.Equal(t, at[1:], f.change(t, queuing.Drop, at[1]))
		f.is(t, at[1], "finished 2/0 DD")
	}},
	{"Parked/ARemovedMessageIsNotParked", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a")[0]
		for _, p := range []messagestore.GlobalPosition{at + 1, at + 1_000_000} {
			require.False(t, f.park(t, f.parking(p)))
		}
		require.True(t, f.park(t, f.parking(at)))
		require.EqualValues(t, 1, f.status(t).Dead)
	}},
	{"Parked/ItsNameIsFreeOnceItIsRemoved", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a")[0]
		f.park(t, f.parking(at))
		removed := testkit.Do(f.driver.QueueRemove(t.Context(), queuing.Removal{Queue: f.of}))(t)
		require.False(t, removed.Done)
		removed = testkit.Do(f.driver.QueueRemove(t.Context(), queuing.Removal{Queue: f.of, Unfinished: true}))(t)
		require.Equal(t, queuing.RemovedQueue{Done: true, Dead: 1}, removed)
		f.none(t, queuing.Take{Slots: allSlots})
		require.True(t, f.park(t, f.parking(at)))
		f.is(t, at, "dead 1/3 x")
	}},
	{"Parked/OfOneKindForEver", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a")[0]
		f.park(t, f.parking(at))
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueTake(t.Context(), f.full(queuing.Take{Want: 1}))), messagestore.ErrInvalid)

		f = newFixture(f.driver, f.options)
		at = f.insert(t, "a")[0]
		f.one(t, queuing.Take{})
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueTake(t.Context(), f.full(queuing.Take{Want: 1, Slots: allSlots}))), messagestore.ErrInvalid)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueuePark(t.Context(), f.parking(at))), messagestore.ErrInvalid)

		for _, wrong := range []queuing.Parking{{Queue: f.of}, {Queue: f.of, Position: at, Failures: -1}, {Queue: f.of, Position: at, Failures: 40_000}} {
			require.ErrorIs(t, testkit.ErrorOf(f.driver.QueuePark(t.Context(), wrong)), messagestore.ErrInvalid)
		}
		ofStreams := f.full(queuing.Take{Slots: allSlots})
		ofStreams.Wakes = []string{"Told"}
		require.ErrorIs(t, testkit.ErrorOf(f.driver.QueueTake(t.Context(), ofStreams)), messagestore.ErrInvalid)
	}},
}

// allSlots is the slots of the whole category.
const allSlots = math.MaxUint32

// parking returns a parking of a message with three failures.
func (f *fixture) parking(at messagestore.GlobalPosition) queuing.Parking {
	return queuing.Parking{Queue: f.of, Position: at, Failures: 3, Error: "no answer"}
}

func (f *fixture) park(t testing.TB, p queuing.Parking) bool {
	t.Helper()
	return testkit.Do(f.driver.QueuePark(t.Context(), p))(t)
}

// slotsOf returns the slot of a message, and the others.
func (f *fixture) slotsOf(t testing.TB, at messagestore.GlobalPosition) (own, others uint32) {
	t.Helper()
	own = 1 << f.item(t, at).Message.Stream.GroupMember(queuing.Slots)
	return own, ^own
}
