package queuetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of deliveries: that each item is delivered in its order, and again when its session is
// over. Below are the tests of their ends, of keys, of leases and of transactions.
var deliveryTests = []test{
	{"Q1/EachItemIsDeliveredInItsOrder", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, make([]string, 25)...)
		var given []messagestore.GlobalPosition
		for session := int64(1); ; session++ {
			taken := f.take(t, queuing.Take{Session: session, Want: 10})
			if len(taken.Items) == 0 {
				break
			}
			given = append(given, positions(taken)...)
			require.Equal(t, len(given) < len(at), len(taken.Items) == 10)
		}
		require.Equal(t, at, given)
		for i, p := range at {
			d := queuing.Delivery{Position: p}
			f.is(t, p, "out 0/0 ")
			require.EqualValues(t, 1+i/10, f.item(t, p).Session)
			f.done(t, queuing.Complete, d)
			f.is(t, p, "finished 0/0 ")
		}
		f.none(t, queuing.Take{})
	}},
	{"Q1/EachQueueGetsEachMessage", 0, func(t *testing.T, f *fixture) {
		other := newFixture(f.driver, f.options)
		other.of.Category = f.of.Category
		at := f.insert(t, "", "")
		other.take(t, queuing.Take{})
		other.change(t, queuing.Pause)

		require.Equal(t, at, positions(f.take(t, queuing.Take{Want: 9})))
		f.done(t, queuing.Complete, queuing.Delivery{Position: at[0]})

		other.change(t, queuing.Resume)
		require.Equal(t, at, positions(other.take(t, queuing.Take{Want: 9})))
		f.is(t, at[0], "finished 0/0 ")
		other.is(t, at[0], "out 0/0 ")
	}},
	{"Q1/SessionThatIsOverGivesBack", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		f.one(t, queuing.Take{Session: 1, Lease: brief})

		again := f.soon(t, queuing.Take{Session: 2})

		require.Equal(t, queuing.Delivery{Position: at[0], Version: 1}, again.Delivery())
		require.Equal(t, 1, again.Failures)
		f.is(t, at[0], "out 1/1 e")
		require.EqualValues(t, 1, f.item(t, at[0]).Log[0].Session)
		require.NotEmpty(t, f.item(t, at[0]).Error)
	}},
	{"Q1/LeftSessionGivesBack", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		f.one(t, queuing.Take{Session: 1})
		for range 2 { // to leave again is no mistake
			f.leave(t, queuing.Leave{Session: 1, Keep: []queuing.Delivery{{Position: at[0]}}}) // for nobody
			f.is(t, at[0], "later 1/0 u")
		}

		require.Equal(t, queuing.Delivery{Position: at[0], Version: 1}, f.one(t, queuing.Take{Session: 2}).Delivery())
	}},
	// If the answer to a take is lost, the caller goes on with another session, and keeps the
	// deliveries that it knows.
	{"Q1/KeptDeliveriesGoToTheNextSession", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "")
		f.take(t, queuing.Take{Session: 9, Want: 3})
		f.leave(t, queuing.Leave{Session: 9})
		f.take(t, queuing.Take{Session: 1, Want: 2})
		f.one(t, queuing.Take{Session: 1}) // the answer that is lost
		known := []queuing.Delivery{{Position: at[0], Version: 1}, {Position: at[1], Version: 1}}
		leave := queuing.Leave{Session: 1, Next: 2, Lease: long, Keep: append(known, queuing.Delivery{Position: at[2], Version: 0})}

		f.leave(t, leave)
		f.leave(t, leave)

		require.Equal(t, at[2:], positions(f.take(t, queuing.Take{Session: 3, Want: 9})))
		require.Empty(t, f.extend(t, 2, long, known...))
		f.is(t, at[0], "out 1/0 u")
		f.is(t, at[2], "out 2/0 uu")
		f.done(t, queuing.Complete, known[0])

		kept := f.insert(t, "")
		f.one(t, queuing.Take{Session: 5})
		f.leave(t, queuing.Leave{Session: 5, Next: 2, Lease: brief, Keep: []queuing.Delivery{{Position: kept[0]}}})
		pass(t, 2*brief)
		f.none(t, queuing.Take{})
		f.done(t, queuing.Complete, queuing.Delivery{Position: kept[0]})
		f.leave(t, queuing.Leave{Session: 2, Next: 4, Lease: brief, Keep: known})
		require.Equal(t, queuing.Delivery{Position: at[1], Version: 2}, f.soon(t, queuing.Take{}).Delivery())
	}},
	// A machine that is too slow for a lease to be extended gets a longer one.
	{"Q1/ExtendedSessionLasts", 0, func(t *testing.T, f *fixture) {
		lease := brief
		testkit.Await(t, "a session is extended", func() (bool, any) {
			lease *= 2
			f.insert(t, "")
			item := f.one(t, queuing.Take{Session: int64(lease), Lease: lease})
			if lost := f.extend(t, int64(lease), long, item.Delivery()); len(lost) > 0 {
				f.done(t, queuing.Complete, f.soon(t, queuing.Take{}).Delivery())
				return false, lost
			}
			require.Empty(t, f.extend(t, int64(lease), brief, item.Delivery()), "and not for shorter")
			pass(t, lease+brief)
			f.none(t, queuing.Take{})
			require.Empty(t, f.extend(t, int64(lease), long, item.Delivery()))
			return true, nil
		})
	}},
	// A take extends everything that its session has out to the take's lease.
	{"Q1/SessionThatTakesLasts", 0, func(t *testing.T, f *fixture) {
		f.insert(t, "", "")
		f.one(t, queuing.Take{Session: 1, Lease: brief})
		f.take(t, queuing.Take{Session: 1, Want: 9})
		pass(t, 2*brief)

		f.none(t, queuing.Take{Session: 2})
	}},
}

var endTests = []test{
	{"Q2/LateEndIsLost", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		late := f.one(t, queuing.Take{Session: 1, Lease: brief}).Delivery()
		next := f.soon(t, queuing.Take{Session: 2}).Delivery()

		for _, kind := range append(kinds, queuing.Committed) {
			requireEnding(t, queuing.Lost, f.end(t, kind, late))
		}
		f.finishApart(t, queuing.Lost, late)
		f.is(t, at[0], "out 1/1 e")
		f.done(t, queuing.Complete, next)
	}},
	{"Q2/EndingAgainIsTheSame", 0, func(t *testing.T, f *fixture) {
		for _, kind := range kinds {
			at := f.insert(t, "")[0]
			d := f.one(t, queuing.Take{}).Delivery()
			f.done(t, kind, d)
			state := describe(f.item(t, at))
			f.done(t, kind, d)
			for _, other := range kinds {
				if other != kind {
					requireEnding(t, queuing.Lost, f.end(t, other, d))
				}
				requireEnding(t, queuing.Lost, f.end(t, other, queuing.Delivery{Position: at, Version: 7}))
			}
			f.is(t, at, state)
			if f.item(t, at).State == queuing.Later {
				f.done(t, queuing.Complete, f.one(t, queuing.Take{}).Delivery())
				requireEnding(t, queuing.Lost, f.end(t, queuing.Complete, d))
			}
		}
	}},
	// A position and a version can be guessed, and occur in another database too. A session cannot
	// be guessed, and does not.
	{"Q2/OtherSessionsEndNothing", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a", "")
		d, other := f.one(t, queuing.Take{Session: 2}).Delivery(), f.one(t, queuing.Take{Session: 3}).Delivery()
		for _, session := range []int64{3, 4} { // one that has an item out, and one that has none
			for _, kind := range kinds {
				finishes := []queuing.Finish{{Delivery: d, Kind: kind, Session: session}, {Delivery: queuing.Delivery{Position: at[1]}, Kind: queuing.Behind}}
				require.Equal(t, "ll", letters(f.take(t, queuing.Take{Session: 2, Finishes: finishes}).Endings), "%c", kind)
				requireEnding(t, queuing.Lost, f.take(t, queuing.Take{Session: session, Finishes: []queuing.Finish{{Delivery: d, Kind: kind, Session: session}}}).Endings[0])
			}
			requireEnding(t, queuing.Lost, testkit.Do(f.driver.QueueFinish(t.Context(), f.of, session, []queuing.Delivery{d}))(t)[0])
		}
		f.is(t, at[0], "out 0/0 ")
		f.is(t, at[1], "held 0/0 ")
		require.Equal(t, []queuing.Delivery{d}, f.extend(t, 3, long, d))

		both := []queuing.Finish{{Delivery: d, Kind: queuing.Complete, Session: 2}, {Delivery: other, Kind: queuing.Retry, Session: 3}}
		require.Equal(t, "dd", letters(f.take(t, queuing.Take{Session: 9, Finishes: both}).Endings), "a take may end those of others that it knows")
		requireEnding(t, queuing.Lost, testkit.Do(f.driver.QueueFinish(t.Context(), f.of, 4, []queuing.Delivery{d}))(t)[0])
	}},
	// What ended a delivery of one session did not end one of another, even in the same way.
	{"Q2/AnEndedDeliveryIsOfItsSession", 0, func(t *testing.T, f *fixture) {
		f.insert(t, "", "", "", "")
		for i, item := range f.take(t, queuing.Take{Session: 2, Want: 4}).Items {
			finish := queuing.Finish{Delivery: item.Delivery(), Kind: kinds[1+i], Delay: long, Session: 2}
			for range 2 {
				requireEnding(t, queuing.Done, f.take(t, queuing.Take{Session: 2, Finishes: []queuing.Finish{finish}}).Endings[0])
			}
			for _, session := range []int64{2, 9} {
				finish.Session = 9
				requireEnding(t, queuing.Lost, f.take(t, queuing.Take{Session: session, Finishes: []queuing.Finish{finish}}).Endings[0])
			}
			finish.Session = 0
			requireEnding(t, queuing.Done, f.take(t, queuing.Take{Session: 9, Finishes: []queuing.Finish{finish}}).Endings[0])
		}
	}},
	{"Q2/OneOfManyEnds", 0, func(t *testing.T, f *fixture) {
		for range 5 {
			at := f.insert(t, "")[0]
			d := f.one(t, queuing.Take{}).Delivery()
			var all sync.WaitGroup
			ended := make([]bool, len(kinds))
			for i, kind := range kinds {
				all.Go(func() {
					taken, err := f.driver.QueueTake(t.Context(), f.full(queuing.Take{Session: int64(i + 2), Finishes: []queuing.Finish{{Delivery: d, Kind: kind, Delay: long}}}))
					if err != nil || len(taken.Endings) != 1 {
						t.Errorf("%c: %c, %v", kind, taken.Endings, err)
						return
					}
					ended[i] = taken.Endings[0] == queuing.Done
				})
			}
			all.Wait()
			require.Equal(t, 1, count(ended), "%v", ended)
			if f.item(t, at).State == queuing.Later {
				f.change(t, queuing.Cancel, at)
			}
		}
	}},
	{"Q2/CancelledIsLost", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		d := f.one(t, queuing.Take{}).Delivery()
		f.none(t, queuing.Take{})

		require.Equal(t, at[:1], f.change(t, queuing.Cancel, at[0]))
		require.Equal(t, at[1:], positions(f.take(t, queuing.Take{Want: 9})))

		require.Equal(t, []queuing.Delivery{d}, f.extend(t, 1, long, d))
		for _, kind := range kinds {
			requireEnding(t, queuing.Lost, f.end(t, kind, d))
		}
		f.is(t, at[0], "finished 1/0 C")
		require.Equal(t, "sent twice", f.item(t, at[0]).Log[0].Text)
		f.none(t, queuing.Take{})
	}},
	{"Q2/WhatWasNotDeliveredIsLost", 0, func(t *testing.T, f *fixture) {
		others := newFixture(f.driver, f.options).insert(t, "")[0] // no item of the queue's, though the cursor is beyond it
		at := f.insert(t, "", "")
		f.one(t, queuing.Take{})
		for _, kind := range append(kinds, queuing.Committed) {
			for _, d := range []queuing.Delivery{{Position: at[0], Version: 1}, {Position: at[1]}, {Position: at[1] + 1_000_000_000}, {Position: others}} {
				requireEnding(t, queuing.Lost, f.end(t, kind, d))
			}
		}
		f.is(t, at[0], "out 0/0 ")
		f.is(t, at[1], "waiting 0/0 ")
	}},
	{"Q2/FinishedApart", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "")
		f.take(t, queuing.Take{Want: 2})
		d := queuing.Delivery{Position: at[0]}
		requireEnding(t, queuing.Open, f.end(t, queuing.Committed, d))

		f.finishApart(t, queuing.Done, d)

		f.is(t, at[0], "finished 0/0 ")
		f.finishApart(t, queuing.Done, d)
		f.done(t, queuing.Committed, d)
		f.done(t, queuing.Complete, d)
		requireEnding(t, queuing.Lost, f.end(t, queuing.Retry, d))
		f.is(t, at[1], "out 0/0 ")
		f.leave(t, queuing.Leave{Session: 1})
		require.Equal(t, at[1:], positions(f.take(t, queuing.Take{Want: 9})))
	}},
}

var kinds = []queuing.Kind{queuing.Complete, queuing.Retry, queuing.Defer, queuing.Unhandled, queuing.Bury}

func (f *fixture) finishApart(t testing.TB, want queuing.Ending, d queuing.Delivery) {
	t.Helper()
	endings := testkit.Do(f.driver.QueueFinish(t.Context(), f.of, f.sessionOf(d, 1), []queuing.Delivery{d}))(t)
	require.Len(t, endings, 1)
	requireEnding(t, want, endings[0])
}

func count(of []bool) (n int) {
	for _, is := range of {
		if is {
			n++
		}
	}
	return n
}

var keyTests = []test{
	{"Q3/OneOfAKeyIsOutAtATime", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a", "b", "a")

		require.Equal(t, []messagestore.GlobalPosition{at[0], at[2]}, positions(f.take(t, queuing.Take{Want: 9})))

		f.is(t, at[1], "held 0/0 ")
		require.Equal(t, at[0], f.item(t, at[1]).Behind)
		f.none(t, queuing.Take{Session: 2})
		f.done(t, queuing.Complete, queuing.Delivery{Position: at[2]})
		f.none(t, queuing.Take{})
		f.done(t, queuing.Complete, queuing.Delivery{Position: at[0]})
		require.Equal(t, at[1:2], positions(f.take(t, queuing.Take{Want: 9})))
		f.is(t, at[3], "held 0/0 ")
	}},
	// An item that is due later holds the items behind it.
	{"Q3/OrderOutlivesFailures", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		for version, kind := range []queuing.Kind{queuing.Retry, queuing.Defer, queuing.Unhandled} {
			d := f.one(t, queuing.Take{}).Delivery()
			require.Equal(t, queuing.Delivery{Position: at[0], Version: version}, d)
			f.done(t, kind, d)
		}
		f.one(t, queuing.Take{Session: 2})
		f.leave(t, queuing.Leave{Session: 2})
		d := f.one(t, queuing.Take{}).Delivery()
		require.Equal(t, at[0], d.Position)
		f.take(t, queuing.Take{Finishes: []queuing.Finish{{Delivery: d, Kind: queuing.Defer, Delay: long}}})
		f.none(t, queuing.Take{})
		f.is(t, at[1], "held 0/0 ")
		f.change(t, queuing.RetryNow, at[0])
		f.done(t, queuing.Complete, f.one(t, queuing.Take{}).Delivery())
		require.Equal(t, at[1:], positions(f.take(t, queuing.Take{Want: 9})))
	}},
	{"Q3/DeadItemLetsGo", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		f.done(t, queuing.Bury, f.one(t, queuing.Take{}).Delivery())

		f.is(t, at[0], "dead 1/1 x")
		require.False(t, f.item(t, at[0]).Closed)
		require.Equal(t, at[1:], positions(f.take(t, queuing.Take{Want: 9})))
		require.Equal(t, f.insert(t, "a"), f.next(t, queuing.Delivery{Position: at[1]}), "it is behind an item that is finished")
	}},
	{"Q3/DeadItemHoldsIfAsked", 0, func(t *testing.T, f *fixture) {
		holding := queuing.Policy{MaxFailures: 1, Hold: true}
		at := f.insert(t, "a", "a", "")
		f.one(t, queuing.Take{})

		taken := f.take(t, queuing.Take{Policy: holding, Want: 9, Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: at[0]}, Kind: queuing.Retry}}})

		require.Equal(t, at[2:], positions(taken))
		f.is(t, at[0], "dead 1/1 r")
		require.True(t, f.item(t, at[0]).Closed)
		f.is(t, at[1], "held 0/0 ")
		f.change(t, queuing.RetryNow, at[0])
		d := f.one(t, queuing.Take{}).Delivery()
		require.Equal(t, queuing.Delivery{Position: at[0], Version: 2}, d)
		require.Equal(t, at[1:2], f.next(t, d))
	}},
	// A cancelled item is never delivered, and the items behind it wait for the items before it.
	{"Q3/CancelledItemKeepsTheOrder", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a", "a")
		first := f.one(t, queuing.Take{}).Delivery()
		f.none(t, queuing.Take{})
		ahead := f.insert(t, "a", "a")
		cancelled := []messagestore.GlobalPosition{at[1], ahead[0]}
		require.Equal(t, cancelled, f.change(t, queuing.Cancel, cancelled...))
		require.Empty(t, f.change(t, queuing.Cancel, cancelled...), "again")
		f.none(t, queuing.Take{})

		require.Equal(t, at[2:], f.next(t, first))
		require.Equal(t, ahead[1:], f.next(t, queuing.Delivery{Position: at[2]}))
		for _, p := range cancelled {
			require.Equal(t, queuing.Finished, f.item(t, p).State)
			require.Len(t, f.item(t, p).Log, 1)
		}
	}},
	{"Q3/ReportedCompletionLetsGo", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		d := f.one(t, queuing.Take{}).Delivery()
		f.none(t, queuing.Take{})
		f.finishApart(t, queuing.Done, d)

		taken := f.take(t, queuing.Take{Want: 9, Finishes: []queuing.Finish{{Delivery: d, Kind: queuing.Committed}}})

		requireEnding(t, queuing.Done, taken.Endings[0])
		require.Equal(t, at[1:], positions(taken))
	}},
	{"Q3/UnreportedCompletionLetsGoInTheEnd", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "busy", "busy", "busy", "done", "done")
		require.Len(t, f.take(t, queuing.Take{Want: 9}).Items, 2)

		f.finishApart(t, queuing.Done, queuing.Delivery{Position: at[3]})

		ready := f.ready(t)
		require.True(t, ready.Ready || ready.Wake >= 0, "it tells when to look")
		require.LessOrEqual(t, ready.Wake, queuing.OrphanInterval)
		require.Equal(t, at[4], f.soon(t, queuing.Take{}).Message.GlobalPosition)
		f.none(t, queuing.Take{})
	}},
	{"Q3/ManyTakersKeepTheOrder", 0, func(t *testing.T, f *fixture) {
		const takers, keys, items = 4, 3, 8
		s := stage{out: map[messagestore.StreamName]bool{}, last: map[messagestore.StreamName]messagestore.Version{}}
		for range items {
			f.insert(t, "a", "b", "c")
		}
		var all sync.WaitGroup
		for taker := range takers {
			all.Go(func() {
				for rounds := 0; ; rounds++ {
					if ended, _ := s.is(); ended >= keys*items || rounds > 1000*keys*items {
						return
					}
					taken, err := f.driver.QueueTake(t.Context(), f.full(queuing.Take{Session: int64(taker + 1), Want: 2}))
					if err != nil {
						t.Error(err)
						return
					}
					for _, item := range taken.Items {
						s.begin(item.Message)
					}
					pass(t, time.Millisecond) // others take meanwhile
					for _, item := range taken.Items {
						s.end(item.Message)
						finish := queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Complete}
						ended, err := f.driver.QueueTake(t.Context(), f.full(queuing.Take{Session: int64(taker + 1), Finishes: []queuing.Finish{finish}}))
						if err != nil || ended.Endings[0] != queuing.Done {
							t.Errorf("%c, %v", ended.Endings, err)
							return
						}
					}
				}
			})
		}
		all.Wait()
		ended, wrong := s.is()
		require.Empty(t, wrong)
		require.Equal(t, keys*items, ended)
	}},
	// A worker that has an item out may have worked on the items behind it.
	{"Q3/HeldItemsAreCompletedWithTheOneBefore", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "k", "k", "k", "k", "other")
		require.Equal(t, []messagestore.GlobalPosition{at[0], at[4]}, positions(f.take(t, queuing.Take{Want: 9})))
		ends := func(want int, finishes ...queuing.Finish) (string, []messagestore.GlobalPosition) {
			taken := f.take(t, queuing.Take{Want: want, Finishes: finishes})
			return fmt.Sprintf("%c", taken.Endings), positions(taken)
		}
		finish := func(kind queuing.Kind, n, version int) queuing.Finish {
			return queuing.Finish{Delivery: queuing.Delivery{Position: at[n], Version: version}, Kind: kind}
		}
		lost := func(why string, want string, finishes ...queuing.Finish) {
			told, _ := ends(0, finishes...)
			require.Equal(t, want, told, why)
			f.is(t, at[1], "held 0/0 ")
			f.is(t, at[2], "held 0/0 ")
		}
		lost("without the one before", "[l]", finish(queuing.Behind, 1, 0))
		lost("behind one that fails", "[d l]", finish(queuing.Retry, 0, 0), finish(queuing.Behind, 1, 0))
		require.Equal(t, queuing.Delivery{Position: at[0], Version: 1}, f.soon(t, queuing.Take{}).Delivery())
		lost("behind one that is lost", "[l l]", finish(queuing.Complete, 0, 0), finish(queuing.Behind, 1, 0))
		lost("with one left out, and behind one of another key", "[l d]", finish(queuing.Behind, 2, 0), finish(queuing.Complete, 4, 0))
		lost("under another version", "[l]", finish(queuing.Behind, 1, 1))

		all := []queuing.Finish{finish(queuing.Complete, 0, 1), finish(queuing.Behind, 1, 0), finish(queuing.Behind, 2, 0)}
		told, taken := ends(9, all...)

		require.Equal(t, "[d d d]", told)
		require.Equal(t, at[3:4], taken, "it was behind them")
		f.is(t, at[0], "finished 1/0 r")
		f.is(t, at[1], "finished 0/0 ")
		f.is(t, at[2], "finished 0/0 ")
		require.EqualValues(t, 4, f.status(t).Finished)
		require.Zero(t, f.status(t).Held)
		told, taken = ends(9, all...)
		require.Equal(t, "[d d d]", told, "to end them again is no mistake")
		require.Empty(t, taken)
		told, _ = ends(0, finish(queuing.Behind, 3, 0))
		require.Equal(t, "[l]", told, "it is out")
		f.is(t, at[3], "out 0/0 ")
	}},
	// Held items do not take places, so a take looks past them for others.
	{"Q3/AHotKeyDelaysNoOther", 0, func(t *testing.T, f *fixture) {
		hot := f.insert(t, "hot")
		for range 4 {
			records := make([]messagestore.Encoded, 500)
			for i := range records {
				records[i] = messagestore.Encoded{ID: uuid.New(), Type: "Item", Data: []byte(`{}`)}
			}
			testkit.Do(f.driver.Append(t.Context(), messagestore.Append{Stream: f.of.Category.Stream("hot"), Expected: messagestore.AnyVersion, Records: records}))(t)
		}
		other := f.insert(t, "cold", "cold")
		f.one(t, queuing.Take{})

		require.Equal(t, other[0], f.one(t, queuing.Take{}).Message.GlobalPosition)

		f.is(t, other[1], "waiting 0/0 ")
		f.none(t, queuing.Take{})
		f.is(t, other[1], "held 0/0 ")
		require.EqualValues(t, 2001, f.status(t).Held)
		require.Equal(t, other[1:], f.next(t, queuing.Delivery{Position: other[0]}))

		aLonePlaceLeavesAHotKey(t, newFixture(f.driver, f.options), true)
		aLonePlaceLeavesAHotKey(t, newFixture(f.driver, f.options), false)

		// This worker has one place, and there is always an item of the key.
		late := f.insert(t, "late")[0]
		for takes, last := 0, hot[0]; last != late; takes++ {
			require.Less(t, takes, 12)
			taken := f.take(t, queuing.Take{Want: 1, Finishes: []queuing.Finish{{Delivery: queuing.Delivery{Position: last}, Kind: queuing.Complete}}})
			if next := positions(taken); len(next) > 0 {
				last = next[0]
			}
		}
	}},
}

// next completes a delivery, and returns the items that are offered then.
func (f *fixture) next(t testing.TB, d queuing.Delivery) []messagestore.GlobalPosition {
	t.Helper()
	return positions(f.take(t, queuing.Take{Want: 9, Finishes: []queuing.Finish{{Delivery: d, Kind: queuing.Complete}}}))
}

// A stage checks that one item per key is out, and records the order.
type stage struct {
	mu    sync.Mutex
	out   map[messagestore.StreamName]bool
	last  map[messagestore.StreamName]messagestore.Version
	ended int
	wrong []string
}

func (s *stage) begin(m *messagestore.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, any := s.last[m.Stream]
	if s.out[m.Stream] || any && m.Position != before+1 || !any && m.Position != 0 {
		s.wrong = append(s.wrong, fmt.Sprintf("%s %d is delivered after %d, and one is out: %v", m.Stream, m.Position, before, s.out[m.Stream]))
	}
	s.out[m.Stream] = true
}

func (s *stage) end(m *messagestore.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out[m.Stream], s.last[m.Stream] = false, m.Position
	s.ended++
}

func (s *stage) is() (int, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended, slices.Clone(s.wrong)
}

// A worker with one place ends each item of a key in the call that takes the next, or in an earlier
// call, so the items are never held.
func aLonePlaceLeavesAHotKey(t *testing.T, f *fixture, together bool) {
	for range 120 {
		f.insert(t, "hot")
	}
	for range 20 { // while there is no other, each take has the next
		f.done(t, queuing.Complete, f.one(t, queuing.Take{}).Delivery())
	}
	cold := f.insert(t, "cold")[0]
	d := f.one(t, queuing.Take{}).Delivery()
	for takes := 0; d.Position != cold; takes++ {
		require.Less(t, takes, 12)
		finishes := []queuing.Finish{{Delivery: d, Kind: queuing.Complete}}
		if !together {
			f.take(t, queuing.Take{Finishes: finishes})
			finishes = nil
		}
		d = f.one(t, queuing.Take{Finishes: finishes}).Delivery()
	}
	f.done(t, queuing.Complete, d)
	for range 20 {
		f.done(t, queuing.Complete, f.one(t, queuing.Take{}).Delivery())
	}
}

var leaseTests = []test{
	{"Q4/ExtensionTellsWhatIsLost", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "", "")
		f.take(t, queuing.Take{Session: 1, Want: 3})
		f.one(t, queuing.Take{Session: 2})
		f.done(t, queuing.Complete, queuing.Delivery{Position: at[1]})
		f.change(t, queuing.Cancel, at[2])
		lost := []queuing.Delivery{
			{Position: at[0], Version: 1}, // not delivered so often
			{Position: at[1]},             // finished
			{Position: at[2]},             // cancelled
			{Position: at[3]},             // another session's
		}

		require.Equal(t, lost, f.extend(t, 1, long, lost...))
		require.Equal(t, lost[1:], f.extend(t, 1, long, append(lost[1:], queuing.Delivery{Position: at[0]})...))
		require.Equal(t, lost, f.extend(t, 9, long, lost...), "no session")
	}},
	{"Q4/SessionThatIsOverIsNotExtended", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		d := f.one(t, queuing.Take{Session: 1, Lease: brief}).Delivery()
		pass(t, 2*brief)

		require.Equal(t, []queuing.Delivery{d}, f.extend(t, 1, long, d))

		require.Equal(t, at[0], f.one(t, queuing.Take{Session: 2}).Message.GlobalPosition)
		require.Equal(t, []queuing.Delivery{d}, f.extend(t, 1, long, d))
		f.is(t, at[0], "out 1/1 e")
	}},
	{"Operate/NotesAreOfOneDelivery", 0, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "")
		f.take(t, queuing.Take{Session: 1, Want: 2})
		f.one(t, queuing.Take{Session: 2})
		first, second, others := queuing.Delivery{Position: at[0]}, queuing.Delivery{Position: at[1]}, queuing.Delivery{Position: at[2]}
		note := func(session int64, notes queuing.Notes) {
			t.Helper()
			testkit.Do(f.driver.QueueExtend(t.Context(), queuing.Extension{Queue: f.of, Session: session, Lease: long, Notes: notes}))(t)
		}
		shown := func() (all []string) {
			items := testkit.Do(f.driver.QueueItems(t.Context(), queuing.List{Queue: f.of, State: queuing.Out, Limit: 9}))(t)
			for _, item := range items {
				require.Equal(t, item.Note, f.item(t, item.Position).Note)
				all = append(all, item.Note)
			}
			return all
		}

		note(1, queuing.Notes{first: "3 of \"9\" {ü}", second: "0 of 2", others: "not its", {Position: at[1], Version: 1}: "not yet"})
		require.Equal(t, []string{"3 of \"9\" {ü}", "0 of 2", ""}, shown())
		note(1, nil)
		require.Equal(t, []string{"3 of \"9\" {ü}", "0 of 2", ""}, shown(), "none is said")
		note(1, queuing.Notes{second: "1 of 2"})
		require.Equal(t, []string{"", "1 of 2", ""}, shown(), "in place of all")
		note(9, queuing.Notes{second: "of no session"})
		require.Equal(t, []string{"", "1 of 2", ""}, shown())

		f.done(t, queuing.Unhandled, second)
		require.Empty(t, f.item(t, at[1]).Note, "given back")
		require.Equal(t, 1, f.one(t, queuing.Take{Session: 1}).Version)
		require.Equal(t, []string{"", "", ""}, shown(), "another delivery")

		for what, notes := range map[string]queuing.Notes{"long": {first: strings.Repeat("x", queuing.MaxNoteBytes+1)}, "many": manyNotes()} {
			_, err := f.driver.QueueExtend(t.Context(), queuing.Extension{Queue: f.of, Session: 1, Lease: long, Notes: notes})
			require.ErrorIs(t, err, messagestore.ErrInvalid, what)
		}
		note(1, queuing.Notes{first: strings.Repeat("x", queuing.MaxNoteBytes)})
		require.Len(t, shown()[0], queuing.MaxNoteBytes)
	}},
}

func manyNotes() queuing.Notes {
	notes := queuing.Notes{}
	for n := range queuing.MaxItems + 1 {
		notes[queuing.Delivery{Position: messagestore.GlobalPosition(n)}] = "x"
	}
	return notes
}

var transactTests = []test{
	{"Q5/CommittedIsFinished", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		d := f.one(t, queuing.Take{}).Delivery()
		f.none(t, queuing.Take{})

		f.finishIn(t, queuing.Done, d, true)

		f.is(t, at[0], "finished 0/0 ")
		f.done(t, queuing.Committed, d)
		require.Equal(t, at[1:], f.next(t, d), "to complete again is no mistake")
		requireEnding(t, queuing.Lost, f.end(t, queuing.Retry, d))
	}},
	{"Q5/RolledBackIsOut", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		d := f.one(t, queuing.Take{}).Delivery()

		f.finishIn(t, queuing.Done, d, false)

		f.is(t, at[0], "out 0/0 ")
		requireEnding(t, queuing.Open, f.end(t, queuing.Committed, d))
		f.none(t, queuing.Take{})
		require.Empty(t, f.extend(t, 1, long, d))
		f.done(t, queuing.Retry, d)
		require.Equal(t, queuing.Delivery{Position: at[0], Version: 1}, f.one(t, queuing.Take{}).Delivery())
	}},
	{"Q5/LateCompletionIsLost", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		late := f.one(t, queuing.Take{Session: 1, Lease: brief}).Delivery()
		f.soon(t, queuing.Take{Session: 2})

		f.finishIn(t, queuing.Lost, late, true)

		f.is(t, at[0], "out 1/1 e")
	}},
	{"Q5/OtherSessionsFinishNothing", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "")
		d := f.one(t, queuing.Take{Session: 2}).Delivery()
		finished := f.one(t, queuing.Take{Session: 2}).Delivery()
		f.done(t, queuing.Complete, finished)
		f.one(t, queuing.Take{Session: 3})
		for _, session := range []int64{3, 4} { // one that the queue knows, and one of another database
			f.sessions[d] = session
			f.finishIn(t, queuing.Lost, d, true)
		}
		f.sessions[finished] = 4
		f.finishIn(t, queuing.Lost, finished, true)

		f.is(t, at[0], "out 0/0 ")
	}},
	{"Q5/OtherCallsAreNotSupported", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		d := f.one(t, queuing.Take{}).Delivery()
		for what, call := range map[string]func(tx queuing.Driver) error{
			"take": func(tx queuing.Driver) error {
				_, err := tx.QueueTake(t.Context(), f.full(queuing.Take{Want: 1}))
				return err
			},
			"extend": func(tx queuing.Driver) error {
				_, err := tx.QueueExtend(t.Context(), queuing.Extension{Queue: f.of, Session: 1, Lease: long})
				return err
			},
			"leave": func(tx queuing.Driver) error {
				return tx.QueueLeave(t.Context(), queuing.Leave{Queue: f.of, Session: 1})
			},
			"change": func(tx queuing.Driver) error {
				_, err := tx.QueueChange(t.Context(), queuing.Change{Queue: f.of, Action: queuing.Cancel, Positions: at})
				return err
			},
			"remove": func(tx queuing.Driver) error {
				_, err := tx.QueueRemove(t.Context(), queuing.Removal{Queue: f.of, Unfinished: true})
				return err
			},
		} {
			tx, _, rollBack := f.options.Begin(t, f.driver)
			err := call(tx)
			require.NoError(t, rollBack())
			require.ErrorIs(t, err, messagestore.ErrNotSupported, what)
		}
		f.is(t, at[0], "out 0/0 ")
		f.done(t, queuing.Complete, d)
	}},
}

// finishIn completes a delivery in a transaction, with a message, and ends the transaction.
func (f *fixture) finishIn(t testing.TB, want queuing.Ending, d queuing.Delivery, commits bool) {
	t.Helper()
	tx, commit, rollBack := f.options.Begin(t.(*testing.T), f.driver) //nolint:errcheck,forcetypeassert // as given
	endings, err := tx.QueueFinish(t.Context(), f.of, f.sessionOf(d, 1), []queuing.Delivery{d})
	if end := commit; commits {
		require.NoError(t, end())
	} else {
		require.NoError(t, rollBack())
	}
	require.NoError(t, err)
	require.Len(t, endings, 1)
	requireEnding(t, want, endings[0])
}
