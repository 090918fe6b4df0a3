package sqlite_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// queued fills a queue with an item in each state: a is out, then cancelled, then held; b later; c dead; d was cancelled
// before it was met; e is finished, unreported, with one held behind it; f was expired.
func queued(t *testing.T, driver queuing.Driver) {
	t.Helper()
	store, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	at := map[messagestore.StreamName]messagestore.GlobalPosition{}
	for _, stream := range []messagestore.StreamName{"mail-a", "mail-b", "mail-c", "mail-d", "mail-e", "mail-f"} {
		n := 1
		if stream == "mail-a" || stream == "mail-e" {
			n = 3
		}
		for range n {
			_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)})
			require.NoError(t, err)
		}
		m, err := store.Last(t.Context(), stream)
		require.NoError(t, err)
		at[stream] = m.GlobalPosition
	}
	q := queuing.Queue{Name: "mail", Category: "mail"}
	take := func(session int64, lease time.Duration, want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		taken, err := driver.QueueTake(t.Context(), queuing.Take{
			Queue: q, Policy: queuing.Policy{MaxFailures: 10}, Session: session, Lease: lease, Want: want, Finishes: finishes,
		})
		require.NoError(t, err)
		return taken.Items
	}
	cancel := func(position messagestore.GlobalPosition) {
		t.Helper()
		changed, err := driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.Cancel, Positions: []messagestore.GlobalPosition{position}, Reason: "asked"})
		require.NoError(t, err)
		require.Len(t, changed, 1)
	}
	cancel(at["mail-d"])
	items := take(1, time.Hour, 4)
	require.Len(t, items, 4, "a, b, c, e")
	short := take(2, queuing.MinLease, 4)
	require.Len(t, short, 1, "f")
	cancel(at["mail-a"] - 1)
	take(1, time.Hour, 0,
		queuing.Finish{Delivery: items[1].Delivery(), Kind: queuing.Retry, Delay: time.Hour, Error: "it failed"},
		queuing.Finish{Delivery: items[2].Delivery(), Kind: queuing.Bury, Error: "it cannot be"})
	_, err = driver.QueueFinish(t.Context(), q, 1, []queuing.Delivery{items[3].Delivery()})
	require.NoError(t, err)
	await.True(t, "the session is over", func() bool {
		take(1, time.Hour, 0)
		item, err := driver.QueueItem(t.Context(), q, at["mail-f"])
		require.NoError(t, err)
		return item.State == queuing.Later
	})
}

func TestVerifyFindsDamageOfQueues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ damage, want string }{
		"no cursor":          {"UPDATE dibs_queues SET cursor = 1", "no row beyond the cursor at 1"},
		"a cursor too far":   {"UPDATE dibs_queues SET cursor = 99", "a cursor that is not ahead of mail"},
		"no message":         {"DELETE FROM dibs_messages WHERE stream_name = 'mail-b'", "a message, found none"},
		"no session":         {"DELETE FROM dibs_queue_sessions", "a session that has it, found 1"},
		"another before it":  {"UPDATE dibs_queue_open SET after = 4 WHERE place = 'h'", "another of its stream that it is behind, found 4"},
		"too many failures":  {"UPDATE dibs_queue_open SET failures = 7 WHERE place = 'd'", "failures up to its version, 1, found 7"},
		"no log":             {"DELETE FROM dibs_queue_log WHERE what = 'x'", "a log of what ended the 1 versions before, found 0 entries before, and 0 of later ones"},
		"a later log":        {"UPDATE dibs_queue_log SET version = 1 WHERE what = 'x'", "a log without a gap up to version 1, found 1 entries"},
		"a log too far":      {"UPDATE dibs_queue_log SET position = 1000 WHERE what = 'x'", "no log beyond the cursor at "},
		"a version too high": {"UPDATE dibs_queue_open SET version = 3 WHERE place = 'o'", "a log of what ended the 3 versions before"},
		"no date":            {"UPDATE dibs_queue_open SET due = 0 WHERE place = 'l'", "a date"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKept(t)
			queued(t, k.Driver)
			found, err := k.Verify(t.Context(), nil)
			require.NoError(t, err)
			require.Empty(t, found.Violations)
			require.EqualValues(t, 1, found.Checked.Queues)
			k.damage(t, c.damage)
			found, err = k.Verify(t.Context(), nil)
			require.NoError(t, err)
			var all []string
			for _, v := range found.Violations {
				require.Contains(t, []string{"queue", "dense"}, v.Rule)
				all = append(all, v.String())
			}
			require.Contains(t, strings.Join(all, "\n"), "expected queue mail: "+c.want)
		})
	}
}

// turned fills a queue of streams with an item in each state: a is out after turns that are not logged, b waits, c is
// suspended, d is dead.
func turned(t *testing.T, driver queuing.Driver) {
	t.Helper()
	store, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	q := queuing.Queue{Name: "saga", Category: "saga"}
	take := func(want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		taken, err := driver.QueueTake(t.Context(), queuing.Take{
			Queue: q, Wakes: []string{"Send"}, Policy: queuing.Policy{MaxFailures: 10}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		})
		require.NoError(t, err)
		return taken.Items
	}
	for _, stream := range []messagestore.StreamName{"saga-a", "saga-b", "saga-c", "saga-d", "saga-a", "saga-b"} {
		_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)})
		require.NoError(t, err)
	}
	items := take(10)
	require.Len(t, items, 4)
	end := func(i, version int, kind queuing.Kind) queuing.Finish {
		position := items[i].Message.GlobalPosition
		return queuing.Finish{Delivery: queuing.Delivery{Position: position, Version: version}, Kind: kind, Delay: time.Hour, Seen: 6, Error: "no"}
	}
	take(0, end(0, 0, queuing.Wait), end(1, 0, queuing.Retry), end(2, 0, queuing.Suspend), end(3, 0, queuing.Wait))
	var all []messagestore.GlobalPosition
	for _, item := range items {
		all = append(all, item.Message.GlobalPosition)
	}
	_, err = driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.RetryNow, Positions: all, Reason: "asked"})
	require.NoError(t, err)
	require.Len(t, take(10), 4)
	take(0, end(1, 2, queuing.Wait), end(2, 2, queuing.Suspend), end(3, 2, queuing.Bury))
}

func TestVerifyFindsDamageOfQueuesOfStreams(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ damage, want string }{
		"no date":              {"UPDATE dibs_queue_open SET due = 0 WHERE place = 's'", "a date"},
		"another message":      {"UPDATE dibs_queue_open SET position = 5 WHERE position = 1", "the first message of its stream, out, later, suspended or dead, found o at 1"},
		"held":                 {"UPDATE dibs_queue_open SET place = 'h' WHERE place = 's'", "the first message of its stream, out, later, suspended or dead, found h at 0"},
		"a log of a later one": {"UPDATE dibs_queue_log SET version = 7 WHERE what = 'x'", "a log of what ended the 3 versions before, found 1 entries before, and 1 of later ones"},
		"a queue of items":     {"UPDATE dibs_queues SET shape = 1", "no row that is suspended or was woken, found s woken by 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKept(t)
			turned(t, k.Driver)
			found, err := k.Verify(t.Context(), nil)
			require.NoError(t, err)
			require.Empty(t, found.Violations)
			k.damage(t, c.damage)
			found, err = k.Verify(t.Context(), nil)
			require.NoError(t, err)
			var all []string
			for _, v := range found.Violations {
				all = append(all, v.String())
			}
			require.Contains(t, strings.Join(all, "\n"), "expected queue saga: "+c.want)
		})
	}
}
