package cli_test

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
)

// open is something that is open: a stream that has it, and a function that ends it.
type open struct {
	stream messagestore.StreamName
	end    func()
}

// running runs until the test ends.
func running(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}

// openSaga is one of which f is the function: it does not end by itself.
func openSaga(t *testing.T, store *messagestore.Store, name string, state saga.State, f func(r *saga.Run) error) open {
	t.Helper()
	trips := testkit.Must(saga.New(store, name, func(r *saga.Run, _ struct{}) (struct{}, error) { return struct{}{}, f(r) }, nil, &saga.Config{Logger: logger.Silent()}))
	running(t, trips.Run)
	_, err := trips.Begin(t.Context(), "1", struct{}{})
	require.NoError(t, err)
	testkit.Await(t, "a saga waits", func() (bool, any) {
		status, err := trips.Status(t.Context(), "1")
		require.NoError(t, err)
		version, err := store.Version(t.Context(), trips.Category().Stream("1"))
		require.NoError(t, err)
		return status.State == state && version > 0, status
	})
	return open{trips.Category().Stream("1"), func() {
		_, err := trips.Cancel(t.Context(), "1", "enough")
		require.NoError(t, err)
		status, err := trips.Wait(t.Context(), "1")
		require.NoError(t, err)
		require.True(t, status.IsOver())
	}}
}

// openItem is the first of a queue, of two of one key, after a call that changes it.
func openItem(t *testing.T, store *messagestore.Store, name string, opts queue.InsertOpts, change func(*queue.Queue, messagestore.GlobalPosition)) open {
	t.Helper()
	mail := testkit.Must(queue.New(store, messagestore.Category(name), &queue.Config{MaxFailures: 1}))
	body := messagestore.Raw{Type: "Send", Data: []byte(`{}`)}
	opts.Key = "ann"
	first, err := mail.Insert(t.Context(), body, &opts)
	require.NoError(t, err)
	second, err := mail.Insert(t.Context(), body, &queue.InsertOpts{Key: "ann"})
	require.NoError(t, err)
	change(mail, first.Position)
	return open{first.Stream, func() {
		_, err := mail.Cancel(t.Context(), "", first.Position, second.Position)
		require.NoError(t, err)
		_, err = mail.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
	}}
}

func receiveOne(t *testing.T, q *queue.Queue) *queue.Job {
	t.Helper()
	jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	return jobs[0]
}

// openMessage is one that a relay has not sent.
func openMessage(t *testing.T, store *messagestore.Store, name string, fails error) open {
	t.Helper()
	category := messagestore.Category(name + ":outgoing")
	relay := func(of string, fails error) *outbox.Relay {
		return testkit.Must(outbox.New(store, category, of+name, sinkFunc(func(context.Context, *outbox.Message) error { return fails }), &outbox.Config{Logger: logger.Silent()}))
	}
	for range 2 {
		_, err := store.Write(t.Context(), category.Stream("ann"), messagestore.AnyVersion, messagestore.Raw{Type: "Paid", Data: []byte("{}")})
		require.NoError(t, err)
	}
	require.NoError(t, relay("ahead", nil).CatchUp(t.Context()))
	if fails != nil {
		require.NoError(t, relay("tobank", fails).CatchUp(t.Context()))
	} else {
		require.NoError(t, relay("tobank", nil).Queue().Pause(t.Context()))
	}
	return open{category.Stream("ann"), func() {
		bank := relay("tobank", nil)
		require.NoError(t, bank.Queue().Resume(t.Context()))
		dead, err := bank.Queue().Items(t.Context(), queue.Dead, 0, 10)
		require.NoError(t, err)
		for _, item := range dead {
			_, err := bank.Queue().Retry(t.Context(), "", item.Position)
			require.NoError(t, err)
		}
		require.NoError(t, bank.CatchUp(t.Context()))
	}}
}

// openParked is of a message of a queue's category, which a consumer has parked.
func openParked(t *testing.T, store *messagestore.Store, name string) open {
	t.Helper()
	o := openItem(t, store, name, queue.InsertOpts{}, func(mail *queue.Queue, _ messagestore.GlobalPosition) {
		for range 2 {
			require.NoError(t, receiveOne(t, mail).Complete(t.Context()))
		}
	})
	catchUp(t, store, o.stream.Category(), "views", errUnwanted)
	return open{o.stream, func() {
		parked := testkit.Must(operate.Consumer(store, o.stream.Category(), "views").Parked())
		items, err := parked.Items(t.Context(), queue.Dead, 0, 10)
		require.NoError(t, err)
		for _, item := range items {
			_, err = parked.Drop(t.Context(), "void", item.Position)
			require.NoError(t, err)
		}
	}}
}

// Nothing open is removed: each command that removes, against each kind of what may be open, on either store.
func TestNothingOpenIsRemoved(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	none := func(t *testing.T, mail *queue.Queue) {
		t.Helper()
		jobs, err := mail.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Empty(t, jobs)
	}
	item := func(opts queue.InsertOpts, change func(t *testing.T, mail *queue.Queue)) func(*testing.T, *messagestore.Store, string) open {
		return func(t *testing.T, store *messagestore.Store, name string) open {
			t.Helper()
			return openItem(t, store, name, opts, func(mail *queue.Queue, _ messagestore.GlobalPosition) { change(t, mail) })
		}
	}
	ofSaga := func(state saga.State, f func(r *saga.Run) error) func(*testing.T, *messagestore.Store, string) open {
		return func(t *testing.T, store *messagestore.Store, name string) open {
			t.Helper()
			return openSaga(t, store, name, state, f)
		}
	}
	ofRelay := func(fails error) func(*testing.T, *messagestore.Store, string) open {
		return func(t *testing.T, store *messagestore.Store, name string) open {
			t.Helper()
			return openMessage(t, store, name, fails)
		}
	}
	kinds := map[string]func(*testing.T, *messagestore.Store, string) open{
		"a saga that is suspended": ofSaga(saga.StateSuspended, func(*saga.Run) error { return handler.Park(errUnwanted) }),
		"a saga's timer":           ofSaga(saga.StateRunning, func(r *saga.Run) error { return r.Sleep("wait", hour) }),
		"an item with a date":      item(queue.InsertOpts{ScheduledAt: time.Now().Add(hour)}, none),
		"an item that waits": item(queue.InsertOpts{}, func(t *testing.T, mail *queue.Queue) {
			require.NoError(t, mail.Pause(t.Context()))
			require.NoError(t, mail.Resume(t.Context()))
		}),
		"an item that is out": item(queue.InsertOpts{}, func(t *testing.T, mail *queue.Queue) { receiveOne(t, mail) }),
		"an item that is later": item(queue.InsertOpts{}, func(t *testing.T, mail *queue.Queue) {
			require.NoError(t, receiveOne(t, mail).Defer(t.Context(), hour))
		}),
		"an item that is dead": item(queue.InsertOpts{}, func(t *testing.T, mail *queue.Queue) {
			require.NoError(t, receiveOne(t, mail).Bury(t.Context(), errUnwanted))
		}),
		"a message that a relay has not met": ofRelay(nil),
		"a message that is dead at a relay":  ofRelay(errUnwanted),
		"a message that is parked":           openParked,
	}
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		n := 0
		for what, begin := range kinds {
			n++
			name := "open" + strconv.Itoa(n)
			t.Run(what, func(t *testing.T) {
				nothingOpenIsRemoved(t, dibs, begin(t, store, name), !strings.Contains(what, "parked"))
			})
		}
	})
}

func nothingOpenIsRemoved(t *testing.T, dibs *shell, o open, keptFromDelete bool) {
	t.Helper()
	category := o.stream.Category()
	dibs.ok(t, "write", string(category.Stream("last")), "Other", `{}`)
	old(t, dibs)
	length := func() int { return strings.Count(dibs.ok(t, "stream", string(o.stream)), "\n") }
	trim := []string{"trim", string(o.stream), "--keep", "1", "--min-age", "0", "--yes"}
	forget := []string{"forget", string(category), "--older-than", "24h"}
	before := length()
	require.Greater(t, before, 1)

	require.Contains(t, dibs.ok(t, trim...), "removed 0 messages of 1 stream")
	if keptFromDelete {
		kept := dibs.run(t, "delete", string(o.stream), "--yes")
		require.Equal(t, 1, kept.code)
		require.Contains(t, kept.stderr, "is an open item of a queue")
	}
	require.Contains(t, dibs.ok(t, append(forget, "--yes")...), "forgot 0 keys of "+string(category))
	require.Equal(t, before, length())

	o.end()
	dibs.ok(t, "write", string(category.Stream("later")), "Other", `{}`)
	old(t, dibs)
	testkit.Await(t, "it may be trimmed", func() (bool, any) {
		said := dibs.ok(t, append(trim, "--dry-run")...)
		return strings.Contains(said, "would remove "+strconv.Itoa(length()-1)+" message"), said
	})
	require.Contains(t, dibs.ok(t, "delete", string(o.stream), "--dry-run"), "would")
	dibs.ok(t, append(forget, "--yes")...)
	require.Zero(t, length())
}

// old makes all messages two days older. No client can do this.
func old(t *testing.T, dibs *shell) {
	t.Helper()
	path, isFile := strings.CutPrefix(dibs.env["DIBS_STORE"], "sqlite:")
	if !isFile {
		agedBy(t, dibs, "2 days")
		return
	}
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "PRAGMA busy_timeout = 60000; UPDATE dibs_messages SET time = time - 172800000000")
	require.NoError(t, err)
	require.NoError(t, db.Close())
}

// A relay may read a category of entities: what it has sent is their state.
func TestEntitiesAreNotForgotten(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.fill(t, "account-1", 2)
	dibs.fill(t, "account-2", 1)
	dibs.ok(t, "queue", "pause", "tobank", "--category", "account")
	dibs.ok(t, "write", "account:snapshot-1", "Snapshot", `{}`)

	for _, flag := range []string{"--yes", "--dry-run"} {
		refused := dibs.run(t, "forget", "account", "--older-than", "24h", flag)
		require.Equal(t, 2, refused.code)
		require.Contains(t, refused.stderr, `invalid category "account": must not have snapshots: its streams are entities`)
	}
	require.Equal(t, 2, strings.Count(dibs.ok(t, "stream", "account-1"), "\n"))
}
