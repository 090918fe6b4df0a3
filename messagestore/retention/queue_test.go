package retention_test

import (
	"context"
	"database/sql"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A keeper removes messages of a store, and verifies the rest.
type keeper interface {
	Trim(ctx context.Context, stream messagestore.StreamName, options *retention.TrimOptions) (retention.Trimmed, error)
	Delete(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, options *retention.DeleteOptions) (retention.Deleted, error)
	Forget(ctx context.Context, category messagestore.Category, age time.Duration, options *retention.ForgetOptions) (retention.Forgotten, error)
	Verify(ctx context.Context, config *retention.VerifyConfig) (*retention.Verification, error)
}

// A kept is a new store, and another connection that does damage.
type kept struct {
	keeper
	driver queuing.Driver
	store  *messagestore.Store
	exec   func(t *testing.T, statement string)
	count  func(t *testing.T, query string) int
}

// onEach runs test on each kind of store that keeps its messages.
func onEach(t *testing.T, test func(t *testing.T, k *kept)) {
	t.Helper()
	on(t, map[string]func(t *testing.T) *kept{"SQLite": onSQLite, "PostgreSQL": onPostgreSQL}, test)
}

func on(t *testing.T, kinds map[string]func(t *testing.T) *kept, test func(t *testing.T, k *kept)) {
	t.Helper()
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func onSQLite(t *testing.T) *kept {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	driver := testkit.Do(sqlite.Open(t.Context(), path, nil))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	db := testkit.Do(sql.Open("sqlite", path))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &kept{driver, driver, testkit.Must(messagestore.New(driver, nil)), func(t *testing.T, statement string) {
		t.Helper()
		require.NoError(t, testkit.ErrorOf(db.ExecContext(t.Context(), statement)), statement)
	}, func(t *testing.T, query string) (n int) {
		t.Helper()
		require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
		return n
	}}
}

func onPostgreSQL(t *testing.T) *kept {
	t.Helper()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver := testkit.Must(postgres.New(pool, nil))
	return &kept{testkit.Must(admin.New(pool, nil)), driver, testkit.Must(messagestore.New(driver, nil)), func(t *testing.T, statement string) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = replica; "+statement) // no trigger fires
			return err
		}), statement)
	}, func(t *testing.T, query string) (n int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), query).Scan(&n))
		return n
	}}
}

// table is a table of the store by the name that its kind of store has for it.
func (k *kept) table(name string) string {
	if _, ok := k.driver.(*sqlite.Driver); ok {
		return "dibs_" + name
	}
	return "dibs." + name
}

// take takes as c says, in the session 1 with a lease of an hour.
func (k *kept) take(t *testing.T, c queuing.Take, want int, finishes ...queuing.Finish) queuing.Taken {
	t.Helper()
	c.Policy, c.Session, c.Lease, c.Want, c.Finishes = queuing.Policy{MaxFailures: 10}, 1, time.Hour, want, finishes
	return testkit.Do(k.driver.QueueTake(t.Context(), c))(t)
}

// takeAll is take that demands that the deliveries have ended as asked.
func (k *kept) takeAll(t *testing.T, c queuing.Take, want int, finishes ...queuing.Finish) []queuing.Taking {
	t.Helper()
	taken := k.take(t, c, want, finishes...)
	for _, ending := range taken.Endings {
		require.Equal(t, queuing.Done, ending)
	}
	return taken.Items
}

func (k *kept) fill(t *testing.T, stream messagestore.StreamName, n int) {
	t.Helper()
	for range n {
		testkit.Do(k.store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "T", Data: []byte(`{}`)}))(t)
	}
}

// age has all messages be older by two days.
func (k *kept) age(t *testing.T) {
	t.Helper()
	change := "time - interval '2 days'"
	if _, ok := k.driver.(*sqlite.Driver); ok {
		change = "time - 172800000000"
	}
	k.exec(t, "UPDATE "+k.table("messages")+" SET time = "+change)
}

// Messages that a queue has not finished stay, at any age, and so do messages beyond the queue's
// cursor.
func TestOpenItemsStay(t *testing.T) {
	t.Parallel()
	onEach(t, openItemsStay)
}

func openItemsStay(t *testing.T, k *kept) {
	t.Helper()
	driver, store := k.driver, k.store
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "mail", Category: category}
	a, b := category.Stream("a"), category.Stream("b")
	k.fill(t, a, 3)
	k.fill(t, b, 2)
	k.fill(t, category.Stream("last"), 1)
	k.age(t)
	take := func(want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		return k.takeAll(t, queuing.Take{Queue: q}, want, finishes...)
	}
	ended := func(item queuing.Taking, kind queuing.Kind) queuing.Finish {
		return queuing.Finish{Delivery: item.Delivery(), Kind: kind}
	}
	trim := func(stream messagestore.StreamName) retention.Trimmed {
		t.Helper()
		return testkit.Do(k.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t)
	}
	forget := func() retention.Forgotten {
		t.Helper()
		return testkit.Do(k.Forget(t.Context(), category, 24*time.Hour, nil))(t)
	}
	logged := func() int { return k.count(t, "SELECT count(*) FROM "+k.table("queue_log")) }

	require.ErrorIs(t, testkit.ErrorOf(k.Forget(t.Context(), category, 24*time.Hour, nil)), messagestore.ErrInvalid, "no queue reads it")
	require.Empty(t, take(0)) // the queue is there, and has looked at nothing
	require.NoError(t, driver.QueueLeave(t.Context(), queuing.Leave{Queue: q, Session: 2}))
	require.Equal(t, retention.Trimmed{Stream: a, Version: 2, Queue: q.Name}, trim(a))
	items := take(10)
	require.Len(t, items, 3, "the first of each stream")
	require.Equal(t, retention.Trimmed{Stream: a, Version: 2, Queue: q.Name}, trim(a))
	require.ErrorIs(t, testkit.ErrorOf(k.Delete(t.Context(), b, messagestore.AnyVersion, &retention.DeleteOptions{DryRun: true})), retention.ErrOpenItem)
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
	require.ErrorIs(t, testkit.ErrorOf(k.Forget(t.Context(), category, 24*time.Hour-1, nil)), messagestore.ErrInvalid)
	require.Equal(t, retention.Forgotten{Keys: 1, Messages: 2}, forget())
	require.Zero(t, logged(), "the log goes with the item")
	require.Equal(t, messagestore.NoStream, testkit.Do(store.Version(t.Context(), b))(t))

	changed := testkit.Do(driver.QueueChange(t.Context(), queuing.Change{
		Queue: q, Action: queuing.Cancel, Positions: []messagestore.GlobalPosition{second[0].Message.GlobalPosition}, Reason: "asked",
	}))(t)
	require.Len(t, changed, 1)
	require.Equal(t, retention.Trimmed{Stream: a, Removed: 1, First: 2, Version: 2}, trim(a), "the last stays anyway")
	require.ErrorIs(t, testkit.ErrorOf(k.Delete(t.Context(), a, messagestore.AnyVersion, nil)), retention.ErrOpenItem)
	third := take(1)
	require.Equal(t, a, third[0].Message.Stream)
	require.Empty(t, take(0, ended(third[0], queuing.Bury)))
	require.ErrorIs(t, testkit.ErrorOf(k.Delete(t.Context(), a, messagestore.AnyVersion, nil)), retention.ErrOpenItem, "it may be redriven")
	testkit.Do(driver.QueueChange(t.Context(), queuing.Change{
		Queue: q, Action: queuing.Drop, Positions: []messagestore.GlobalPosition{third[0].Message.GlobalPosition}, Reason: "asked",
	}))(t)
	testkit.Do(k.Delete(t.Context(), a, messagestore.AnyVersion, nil))(t)
}

// A message that is to be parked may be gone by then. If it is the first, its queue is one of parked
// messages nevertheless, and keeps no other message.
func TestAQueueOfParkedMessagesWithoutAnItemKeepsNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		const category messagestore.Category = "mail"
		a := category.Stream("a")
		k.fill(t, a, 3)
		k.fill(t, category.Stream("last"), 1)
		k.age(t)
		last := testkit.Do(k.store.Last(t.Context(), a))(t)
		testkit.Do(k.Delete(t.Context(), a, messagestore.AnyVersion, nil))(t)
		parked := queuing.Queue{Name: "parked", Category: category}
		require.False(t, testkit.Do(k.driver.QueuePark(t.Context(), queuing.Parking{Queue: parked, Position: last.GlobalPosition, Failures: 1, Error: "x"}))(t))
		b := category.Stream("b")
		k.fill(t, b, 3)
		redriven := queuing.Parking{Queue: queuing.Queue{Name: "redriven", Category: category}, Position: testkit.Do(k.store.Last(t.Context(), b))(t).GlobalPosition, Finished: true}
		require.False(t, testkit.Do(k.driver.QueuePark(t.Context(), redriven))(t), "it was never parked")

		require.EqualValues(t, 2, testkit.Do(k.Trim(t.Context(), b, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t).Removed)
		testkit.Do(k.Delete(t.Context(), b, messagestore.AnyVersion, nil))(t)
	})
}

// The first message of a stream of a queue of streams is open until it is completed, and the whole
// stream stays with it.
func TestOpenStreamsStay(t *testing.T) {
	t.Parallel()
	onEach(t, openStreamsStay)
}

func openStreamsStay(t *testing.T, k *kept) {
	t.Helper()
	driver := k.driver
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "mail", Category: category}
	a := category.Stream("a")
	k.fill(t, a, 5)
	k.fill(t, category.Stream("last"), 1)
	k.age(t)
	take := func(want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		return k.takeAll(t, queuing.Take{Queue: q, Wakes: []string{"Nothing"}}, want, finishes...)
	}
	stays := func(state queuing.State, position messagestore.GlobalPosition) {
		t.Helper()
		require.Equal(t, state, testkit.Do(driver.QueueItem(t.Context(), q, position))(t).State)
		trimmed := testkit.Do(k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t)
		require.Equal(t, retention.Trimmed{Stream: a, Version: 4, Queue: q.Name}, trimmed)
		require.ErrorIs(t, testkit.ErrorOf(k.Delete(t.Context(), a, messagestore.AnyVersion, nil)), retention.ErrOpenItem)
		require.Zero(t, testkit.Do(k.Forget(t.Context(), category, 24*time.Hour, nil))(t))
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
		testkit.Do(driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.RetryNow, Positions: []messagestore.GlobalPosition{first.Position}}))(t)
		first = take(1)[0].Delivery()
	}

	require.Empty(t, take(1, queuing.Finish{Delivery: first, Kind: queuing.Complete}))
	trimmed := testkit.Do(k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t)
	require.Equal(t, retention.Trimmed{Stream: a, Removed: 4, First: 4, Version: 4}, trimmed)
	require.Equal(t, retention.Forgotten{Keys: 1, Messages: 1}, testkit.Do(k.Forget(t.Context(), category, 24*time.Hour, nil))(t))
}

// A repeated completion after the removal of its message is answered as long as the item's log
// shows the delivery; without a log the position may not be an item's.
func TestACompletionIsToldAgainAfterATrim(t *testing.T) {
	t.Parallel()
	onEach(t, aCompletionIsToldAgainAfterATrim)
}

func aCompletionIsToldAgainAfterATrim(t *testing.T, k *kept) {
	t.Helper()
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "mail", Category: category}
	a := category.Stream("a")
	k.fill(t, a, 3)
	take := func(want int, finishes ...queuing.Finish) queuing.Taken {
		t.Helper()
		return k.take(t, queuing.Take{Queue: q}, want, finishes...)
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

	require.EqualValues(t, 2, testkit.Do(k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t).Removed)
	require.Equal(t, []queuing.Ending{queuing.Done, queuing.Lost, queuing.Lost, queuing.Lost}, take(0, again...).Endings)
}

// A parked message is not trimmed, and makes no queue that reads its category: it is not forgotten.
// A deletion takes it.
func TestAMessageInAQueueOfParkedOnesStays(t *testing.T) {
	t.Parallel()
	onEach(t, aMessageInAQueueOfParkedOnesStays)
}

func aMessageInAQueueOfParkedOnesStays(t *testing.T, k *kept) {
	t.Helper()
	driver := k.driver
	const category messagestore.Category = "mail"
	q := queuing.Queue{Name: "parked:mail:c", Category: category}
	a := category.Stream("a")
	k.fill(t, a, 3)
	at := testkit.Do(k.store.Last(t.Context(), a))(t)
	require.True(t, testkit.Do(driver.QueuePark(t.Context(), queuing.Parking{Queue: q, Position: at.GlobalPosition, Failures: 1, Error: "no"}))(t))
	k.fill(t, a, 2)

	trimmed := testkit.Do(k.Trim(t.Context(), a, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t)
	require.Equal(t, retention.Trimmed{Stream: a, Removed: 2, First: 2, Version: 4, Queue: q.Name}, trimmed)
	require.ErrorIs(t, testkit.ErrorOf(k.Forget(t.Context(), category, 24*time.Hour, nil)), messagestore.ErrInvalid, "no queue reads it")
	testkit.Do(k.Delete(t.Context(), a, messagestore.AnyVersion, nil))(t)

	testkit.Do(driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.RetryNow, Positions: []messagestore.GlobalPosition{at.GlobalPosition}}))(t)
	taken := testkit.Do(driver.QueueTake(t.Context(), queuing.Take{
		Queue: q, Policy: queuing.Policy{MaxFailures: 1}, Session: 1, Lease: time.Hour, Want: 1, Slots: math.MaxUint32,
	}))(t)
	require.Empty(t, taken.Items)
	all := testkit.Do(driver.Queues(t.Context()))(t)
	i := slices.IndexFunc(all, func(s queuing.Status) bool { return s.Queue == q })
	require.Zero(t, all[i].Dead+all[i].Later, "its item has ended")
}

// queued fills a queue with an item in each state: a is out, then cancelled, then held; b later; c
// dead; d was cancelled before it was met; e is finished, unreported, with one held behind it; f
// was expired.
func queued(t *testing.T, driver queuing.Driver) {
	t.Helper()
	store := testkit.Do(messagestore.New(driver, nil))(t)
	at := map[messagestore.StreamName]messagestore.GlobalPosition{}
	for _, stream := range []messagestore.StreamName{"mail-a", "mail-b", "mail-c", "mail-d", "mail-e", "mail-f"} {
		n := 1
		if stream == "mail-a" || stream == "mail-e" {
			n = 3
		}
		for range n {
			testkit.Do(store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)}))(t)
		}
		m := testkit.Do(store.Last(t.Context(), stream))(t)
		at[stream] = m.GlobalPosition
	}
	q := queuing.Queue{Name: "mail", Category: "mail"}
	take := func(session int64, lease time.Duration, want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		taken := testkit.Do(driver.QueueTake(t.Context(), queuing.Take{
			Queue: q, Policy: queuing.Policy{MaxFailures: 10}, Session: session, Lease: lease, Want: want, Finishes: finishes,
		}))(t)
		return taken.Items
	}
	cancel := func(position messagestore.GlobalPosition) {
		t.Helper()
		changed := testkit.Do(driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.Cancel, Positions: []messagestore.GlobalPosition{position}, Reason: "asked"}))(t)
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
	testkit.Do(driver.QueueFinish(t.Context(), q, 1, []queuing.Delivery{items[3].Delivery()}))(t)
	testkit.AwaitTrue(t, "the session is over", func() bool {
		take(1, time.Hour, 0)
		item := testkit.Do(driver.QueueItem(t.Context(), q, at["mail-f"]))(t)
		return item.State == queuing.Later
	})
}

// A damage is a statement, and the violation that Verify should find after it.
type damage struct {
	statement, want string
	onSQLite        *damage // if it is another there; empty if SQLite has nothing like it
}

// requireFound demands that verify finds each damage of a store that is filled.
func requireFound(t *testing.T, fill func(t *testing.T, driver queuing.Driver), queue string, rules []string, damages map[string]damage) {
	t.Helper()
	for name, d := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds := map[string]func(t *testing.T) *kept{"PostgreSQL": onPostgreSQL, "SQLite": onSQLite}
			if d.onSQLite != nil && d.onSQLite.statement == "" {
				delete(kinds, "SQLite")
			}
			on(t, kinds, func(t *testing.T, k *kept) {
				t.Helper()
				d := d
				if _, ok := k.driver.(*sqlite.Driver); ok {
					d.statement = strings.NewReplacer("dibs.", "dibs_", " state = ", " place = ").Replace(d.statement)
					if d.onSQLite != nil {
						d = *d.onSQLite
					}
				}
				fill(t, k.driver)
				found := testkit.Do(k.Verify(t.Context(), nil))(t)
				require.Empty(t, found.Violations)
				require.EqualValues(t, 1, found.Checked.Queues)

				k.exec(t, d.statement)

				found = testkit.Do(k.Verify(t.Context(), nil))(t)
				var all []string
				for _, v := range found.Violations {
					require.Contains(t, rules, v.Rule)
					all = append(all, v.String())
				}
				require.Contains(t, strings.Join(all, "\n"), "expected queue "+queue+": "+d.want)
			})
		})
	}
}

func TestVerifyFindsDamageOfQueues(t *testing.T) {
	t.Parallel()
	requireFound(t, queued, "mail", []string{"queue", "dense"}, map[string]damage{
		"no cursor": {
			"UPDATE dibs.queue_heads SET cursor = 1", "no row beyond the cursor at 1",
			&damage{"UPDATE dibs_queues SET cursor = 1", "no row beyond the cursor at 1", nil},
		},
		"a cursor too far": {
			"UPDATE dibs.queue_heads SET cursor = 99", "a cursor that is not ahead of mail",
			&damage{"UPDATE dibs_queues SET cursor = 99", "a cursor that is not ahead of mail", nil},
		},
		"no message": {"DELETE FROM dibs.messages WHERE stream_name = 'mail-b'", "a message, found none", nil},
		"no session": {"DELETE FROM dibs.queue_sessions", "a session that has it, found 1", nil},
		"another before it": {
			"UPDATE dibs.queue_open SET after = 4 WHERE state = 'h'", "the message before it in its stream, found 4",
			&damage{"UPDATE dibs_queue_open SET after = 4 WHERE place = 'h'", "another of its stream that it is behind, found 4", nil},
		},
		"too many failures":  {"UPDATE dibs.queue_open SET failures = 7 WHERE state = 'd'", "failures up to its version, 1, found 7", nil},
		"no log":             {"DELETE FROM dibs.queue_log WHERE what = 'x'", "a log of what ended the 1 versions before, found 0 entries before, and 0 of later ones", nil},
		"a later log":        {"UPDATE dibs.queue_log SET version = 1 WHERE what = 'x'", "a log without a gap up to version 1, found 1 entries", nil},
		"a log too far":      {"UPDATE dibs.queue_log SET position = 1000 WHERE what = 'x'", "no log beyond the cursor at ", nil},
		"a version too high": {"UPDATE dibs.queue_open SET version = 3 WHERE state = 'o'", "a log of what ended the 3 versions before", nil},
		"no date": {
			"UPDATE dibs.queue_open SET due = null WHERE state = 'l'", "a date from ",
			&damage{"UPDATE dibs_queue_open SET due = 0 WHERE place = 'l'", "a date", nil},
		},
		"a head is gone":      {"DELETE FROM dibs.queue_heads WHERE version = 2", "head 2, found head 3", &damage{}},
		"heads go back":       {"UPDATE dibs.queue_heads SET cursor = 99 WHERE version = 2", "a cursor at 99 or later, found head 3", &damage{}},
		"a floor too high":    {"UPDATE dibs.queue_heads SET floor = 2", "no row before the floor at 2, found one", &damage{}},
		"held rows forgotten": {"UPDATE dibs.queue_heads SET held = 1", "a head that counts the held rows, found 1 of 4", &damage{}},
		"a date was passed":   {"UPDATE dibs.queue_open SET due = due - interval '1 day' WHERE state = 'l'", "a date from ", &damage{}},
	})
}

// turned fills a queue of streams with an item in each state: a is out after turns that are not
// logged, b waits, c is suspended, d is dead.
func turned(t *testing.T, driver queuing.Driver) {
	t.Helper()
	store := testkit.Do(messagestore.New(driver, nil))(t)
	q := queuing.Queue{Name: "saga", Category: "saga"}
	take := func(want int, finishes ...queuing.Finish) []queuing.Taking {
		t.Helper()
		taken := testkit.Do(driver.QueueTake(t.Context(), queuing.Take{
			Queue: q, Wakes: []string{"Send"}, Policy: queuing.Policy{MaxFailures: 10}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		}))(t)
		return taken.Items
	}
	for _, stream := range []messagestore.StreamName{"saga-a", "saga-b", "saga-c", "saga-d", "saga-a", "saga-b"} {
		testkit.Do(store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)}))(t)
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
	testkit.Do(driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.RetryNow, Positions: all, Reason: "asked"}))(t)
	require.Len(t, take(10), 4)
	take(0, end(1, 2, queuing.Wait), end(2, 2, queuing.Suspend), end(3, 2, queuing.Bury))
}

func TestVerifyFindsDamageOfQueuesOfStreams(t *testing.T) {
	t.Parallel()
	requireFound(t, turned, "saga", []string{"queue"}, map[string]damage{
		"no date": {
			"UPDATE dibs.queue_open SET due = null WHERE state = 's'", "a date from ",
			&damage{"UPDATE dibs_queue_open SET due = 0 WHERE place = 's'", "a date", nil},
		},
		"a date was passed":    {"UPDATE dibs.queue_open SET due = due - interval '1 day' WHERE state = 's'", "a date from ", &damage{}},
		"another message":      {"UPDATE dibs.queue_open SET position = 5 WHERE position = 1", "the first message of its stream, out, later, suspended or dead, found o at 1", nil},
		"held":                 {"UPDATE dibs.queue_open SET state = 'h' WHERE state = 's'", "the first message of its stream, out, later, suspended or dead, found h at 0", nil},
		"a log of a later one": {"UPDATE dibs.queue_log SET version = 7 WHERE what = 'x'", "a log of what ended the 3 versions before, found 1 entries before, and 1 of later ones", nil},
		"a queue of items": {
			"UPDATE dibs.queues SET streams = false", "no row that is suspended or was woken, found s woken by 6",
			&damage{"UPDATE dibs_queues SET shape = 1", "no row that is suspended or was woken, found s woken by 6", nil},
		},
	})
}
