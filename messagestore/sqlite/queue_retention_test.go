package sqlite_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// What a queue has not finished stays, whatever its age, and so does what is beyond the queue's cursor.
func TestOpenItemsStay(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	driver, store := k.Driver, k.store
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "mail", Category: category}
	a, b := category.Stream("a"), category.Stream("b")
	k.fill(t, a, 3)
	k.fill(t, b, 2)
	k.fill(t, category.Stream("last"), 1)
	k.damage(t, fmt.Sprintf("UPDATE dibs_messages SET time = time - %d", (48*time.Hour).Microseconds()))
	take := func(want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		taken, err := driver.QueueTake(t.Context(), queuing.Take{
			Queue: q, Policy: queuing.Policy{MaxFailures: 10}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		})
		require.NoError(t, err)
		for _, ending := range taken.Endings {
			require.Equal(t, queuing.Done, ending)
		}
		return taken.Items
	}
	ended := func(item queuing.Taking, kind queuing.Kind) queuing.Finish {
		return queuing.Finish{Delivery: item.Delivery(), Kind: kind}
	}
	trim := func(stream messagestore.StreamName) retention.Trimmed {
		t.Helper()
		trimmed, err := k.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})
		require.NoError(t, err)
		return trimmed
	}
	forget := func() retention.Forgotten {
		t.Helper()
		forgotten, err := k.Forget(t.Context(), category, 24*time.Hour, nil)
		require.NoError(t, err)
		return forgotten
	}
	logged := func() (entries int) {
		t.Helper()
		require.NoError(t, k.db.QueryRowContext(t.Context(), "SELECT count(*) FROM dibs_queue_log").Scan(&entries))
		return entries
	}

	_, err := k.Forget(t.Context(), category, 24*time.Hour, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid, "no queue reads it")
	require.Empty(t, take(0)) // the queue is there, and has looked at nothing
	require.NoError(t, driver.QueueLeave(t.Context(), queuing.Leave{Queue: q, Session: 2}))
	require.Equal(t, retention.Trimmed{Stream: a, Version: 2, Queue: q.Name}, trim(a))
	items := take(10)
	require.Len(t, items, 3, "the first of each stream")
	require.Equal(t, retention.Trimmed{Stream: a, Version: 2, Queue: q.Name}, trim(a))
	_, err = k.Delete(t.Context(), b, messagestore.AnyVersion, &retention.DeleteOptions{DryRun: true})
	require.ErrorIs(t, err, retention.ErrOpenItem)
	require.Zero(t, forget())

	second := take(1, ended(items[0], queuing.Complete))
	require.Equal(t, a, second[0].Message.Stream)
	require.Equal(t, retention.Trimmed{Stream: a, Removed: 1, First: 1, Version: 2, Queue: q.Name}, trim(a))
	again := take(1, ended(items[1], queuing.Retry), ended(items[2], queuing.Complete))
	require.Equal(t, 1, again[0].Version)
	last := take(1, ended(again[0], queuing.Complete))
	require.Zero(t, forget(), "the last of the stream is out")
	require.Empty(t, take(1, ended(last[0], queuing.Complete)))
	require.Equal(t, 1, logged())
	_, err = k.Forget(t.Context(), category, 24*time.Hour-1, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.Equal(t, retention.Forgotten{Keys: 1, Messages: 2}, forget())
	require.Zero(t, logged(), "the log goes with the item")
	version, err := store.Version(t.Context(), b)
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)

	changed, err := driver.QueueChange(t.Context(), queuing.Change{
		Queue: q, Action: queuing.Cancel, Positions: []messagestore.GlobalPosition{second[0].Message.GlobalPosition}, Reason: "asked",
	})
	require.NoError(t, err)
	require.Len(t, changed, 1)
	require.Equal(t, retention.Trimmed{Stream: a, Removed: 1, First: 2, Version: 2}, trim(a), "the last stays anyway")
	_, err = k.Delete(t.Context(), a, messagestore.AnyVersion, nil)
	require.ErrorIs(t, err, retention.ErrOpenItem)
	third := take(1)
	require.Equal(t, a, third[0].Message.Stream)
	require.Empty(t, take(0, ended(third[0], queuing.Bury)))
	_, err = k.Delete(t.Context(), a, messagestore.AnyVersion, nil)
	require.ErrorIs(t, err, retention.ErrOpenItem, "it may be redriven")
	_, err = driver.QueueChange(t.Context(), queuing.Change{
		Queue: q, Action: queuing.Drop, Positions: []messagestore.GlobalPosition{third[0].Message.GlobalPosition}, Reason: "asked",
	})
	require.NoError(t, err)
	_, err = k.Delete(t.Context(), a, messagestore.AnyVersion, nil)
	require.NoError(t, err)
}

// The first message of a stream of a queue of streams is open until it is completed, and the whole stream stays with it.
func TestOpenStreamsStay(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	driver := k.Driver
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "mail", Category: category}
	a := category.Stream("a")
	k.fill(t, a, 5)
	k.fill(t, category.Stream("last"), 1)
	k.damage(t, fmt.Sprintf("UPDATE dibs_messages SET time = time - %d", (48*time.Hour).Microseconds()))
	take := func(want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		taken, err := driver.QueueTake(t.Context(), queuing.Take{
			Queue: q, Wakes: []string{"Nothing"}, Policy: queuing.Policy{MaxFailures: 10}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		})
		require.NoError(t, err)
		for _, ending := range taken.Endings {
			require.Equal(t, queuing.Done, ending)
		}
		return taken.Items
	}
	stays := func(state queuing.State, position messagestore.GlobalPosition) {
		t.Helper()
		item, err := driver.QueueItem(t.Context(), q, position)
		require.NoError(t, err)
		require.Equal(t, state, item.State)
		trimmed, err := k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})
		require.NoError(t, err)
		require.Equal(t, retention.Trimmed{Stream: a, Version: 4, Queue: q.Name}, trimmed)
		_, err = k.Delete(t.Context(), a, messagestore.AnyVersion, nil)
		require.ErrorIs(t, err, retention.ErrOpenItem)
		forgotten, err := k.Forget(t.Context(), category, 24*time.Hour, nil)
		require.NoError(t, err)
		require.Zero(t, forgotten)
	}
	items := take(10)
	require.Len(t, items, 2)
	require.Equal(t, a, items[0].Message.Stream)
	first, last := items[0].Delivery(), items[1].Delivery()
	stays(queuing.Out, first.Position)

	for _, turn := range []struct {
		kind  queuing.Kind
		state queuing.State
	}{{queuing.Wait, queuing.Later}, {queuing.Suspend, queuing.Suspended}, {queuing.Bury, queuing.Dead}} {
		require.Empty(t, take(1, queuing.Finish{Delivery: first, Kind: turn.kind, Delay: queuing.MaxDelay, Seen: last.Position}))
		stays(turn.state, first.Position)
		_, err := driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.RetryNow, Positions: []messagestore.GlobalPosition{first.Position}})
		require.NoError(t, err)
		first = take(1)[0].Delivery()
	}

	require.Empty(t, take(1, queuing.Finish{Delivery: first, Kind: queuing.Complete}))
	trimmed, err := k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})
	require.NoError(t, err)
	require.Equal(t, retention.Trimmed{Stream: a, Removed: 4, First: 4, Version: 4}, trimmed)
	forgotten, err := k.Forget(t.Context(), category, 24*time.Hour, nil)
	require.NoError(t, err)
	require.Equal(t, retention.Forgotten{Keys: 1, Messages: 1}, forgotten)
}

// A completion that is asked for again after its message was removed is told as long as the item's log tells that it was
// delivered; without a log the position may be of no item.
func TestACompletionIsToldAgainAfterATrim(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	driver := k.Driver
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "mail", Category: category}
	a := category.Stream("a")
	k.fill(t, a, 3)
	take := func(want int, finishes ...queuing.Finish) queuing.Taken {
		t.Helper()
		taken, err := driver.QueueTake(t.Context(), queuing.Take{
			Queue: q, Policy: queuing.Policy{MaxFailures: 10}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		})
		require.NoError(t, err)
		return taken
	}
	ended := func(item queuing.Taking, version int, kind queuing.Kind) queuing.Finish {
		return queuing.Finish{Delivery: queuing.Delivery{Position: item.Message.GlobalPosition, Version: version}, Kind: kind}
	}
	first := take(1).Items[0]
	require.Len(t, take(1, ended(first, 0, queuing.Retry)).Items, 1)
	second := take(1, ended(first, 1, queuing.Complete)).Items[0]
	take(1, ended(second, 0, queuing.Complete))
	again := []queuing.Finish{ended(first, 1, queuing.Complete), ended(second, 0, queuing.Complete), ended(first, 0, queuing.Complete), ended(first, 2, queuing.Complete)}
	require.Equal(t, []queuing.Ending{queuing.Done, queuing.Done, queuing.Lost, queuing.Lost}, take(0, again...).Endings)

	trimmed, err := k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})

	require.NoError(t, err)
	require.EqualValues(t, 2, trimmed.Removed)
	require.Equal(t, []queuing.Ending{queuing.Done, queuing.Lost, queuing.Lost, queuing.Lost}, take(0, again...).Endings)
}

// A parked message is not trimmed, and makes no queue that reads its category: it is not forgotten. A deletion takes it.
func TestAMessageInAQueueOfParkedOnesStays(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	driver := k.Driver
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "parked:mail:c", Category: category}
	a := category.Stream("a")
	k.fill(t, a, 3)
	at, err := k.store.Last(t.Context(), a)
	require.NoError(t, err)
	parked, err := driver.QueuePark(t.Context(), queuing.Parking{Queue: q, Position: at.GlobalPosition, Failures: 1, Error: "no"})
	require.NoError(t, err)
	require.True(t, parked)
	k.fill(t, a, 2)

	trimmed, err := k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})
	require.NoError(t, err)
	require.Equal(t, retention.Trimmed{Stream: a, Removed: 2, First: 2, Version: 4, Queue: q.Name}, trimmed)
	_, err = k.Forget(t.Context(), category, 24*time.Hour, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid, "no queue reads it")
	_, err = k.Delete(t.Context(), a, messagestore.AnyVersion, nil)
	require.NoError(t, err)

	_, err = driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.RetryNow, Positions: []messagestore.GlobalPosition{at.GlobalPosition}})
	require.NoError(t, err)
	taken, err := driver.QueueTake(t.Context(), queuing.Take{
		Queue: q, Policy: queuing.Policy{MaxFailures: 1}, Session: 1, Lease: time.Hour, Want: 1, Slots: math.MaxUint32,
	})
	require.NoError(t, err)
	require.Empty(t, taken.Items)
	all, err := driver.Queues(t.Context())
	require.NoError(t, err)
	i := slices.IndexFunc(all, func(s queuing.Status) bool { return s.Queue == q })
	require.Zero(t, all[i].Dead+all[i].Later, "its item has ended")
}
