package sqlite_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/queuing"
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
	_, err = driver.QueueFinish(t.Context(), q, []queuing.Delivery{items[3].Delivery()})
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
		"another before it":  {"UPDATE dibs_queue_open SET after = 4 WHERE place = 'h'", "the message before it in its stream, found 4"},
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
