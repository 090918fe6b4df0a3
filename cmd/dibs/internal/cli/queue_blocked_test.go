package cli_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/queue"
)

// causes are those that queue blocked prints, each with its number of items.
func causes(t *testing.T, dibs *shell, args ...string) (all []string) {
	t.Helper()
	for _, line := range objects(t, dibs.ok(t, append([]string{"queue", "blocked", "mail", "--json"}, args...)...)) {
		all = append(all, fmt.Sprint(line["cause"], " ", line["items"]))
	}
	return all
}

// received are n items that a session has for an hour.
func received(t *testing.T, q *queue.Queue, n int) []*queue.Job {
	t.Helper()
	jobs, err := q.Receive(t.Context(), n, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})
	require.NoError(t, err)
	require.Len(t, jobs, n)
	return jobs
}

func TestWhatKeepsAQueueIsTold(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", &queue.Config{MaxOut: 1}))
		var job *queue.Job
		dibs.script(t, "queue-blocked", store, map[string]func(){
			"a worker came": func() {
				none, err := q.Receive(t.Context(), 1, nil)
				require.NoError(t, err)
				require.Empty(t, none)
			},
			"one is received": func() { job = received(t, q, 1)[0] },
			"it is completed, and one is received": func() {
				require.NoError(t, job.Complete(t.Context()))
				job = received(t, q, 1)[0]
			},
			"it is completed": func() { require.NoError(t, job.Complete(t.Context())) },
		})
	})
}

func TestWhatKeepsAKeyIsTold(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", &queue.Config{MaxFailures: 2, WhenDead: queue.Hold, Logger: logger.Silent()}))
		insert := func(key string, n int) {
			for range n {
				positioned(t, dibs, "--key", key)
			}
		}
		insert("ann", 5)
		job := received(t, q, 1)[0]
		insert("bob", 4)
		require.NoError(t, received(t, q, 1)[0].Retry(t.Context(), time.Hour, errors.New("no such mailbox")))
		insert("eve", 3)
		require.NoError(t, received(t, q, 1)[0].Bury(t.Context(), errors.New("never")))
		insert("fay", 2)
		require.NoError(t, received(t, q, 1)[0].Defer(t.Context(), time.Hour))
		positioned(t, dibs, "--at", "2999-01-02T00:00:00Z")
		positioned(t, dibs, "--at", "2999-01-01T00:00:00Z")
		none, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Empty(t, none)
		require.Contains(t, dibs.ok(t, "queue", "blocked"), "the first is 2999-01-01T00:00:00.000000Z")
		dibs.script(t, "queue-blocked-keys", store, map[string]func(){
			"the one of ann is completed": func() { require.NoError(t, job.Complete(t.Context())) },
		})
	})
}

type letter struct{}

func (letter) MessageType() string { return "Letter" }

// A type that no function is registered for is told by the log of its items.
func TestItemsWithoutAHandlerAreTold(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
		at := positioned(t, dibs)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			mux := handler.New()
			handler.On(mux, func(context.Context, handler.Message[letter]) error { return nil })
			ended <- q.Work(ctx, mux, &queue.WorkConfig{MinBackoff: time.Hour, MaxBackoff: time.Hour})
		}()
		testkit.Await(t, "the item is deferred", func() (bool, any) {
			r := dibs.run(t, "queue", "blocked", "--json")
			return strings.Contains(r.stdout, `"later"`), r
		})
		cancel()
		require.NoError(t, testkit.Receive(t, "the worker", ended))

		require.Regexp(t, fmt.Sprintf(`(?m)^mail +later +1  item %d \(mail-\S+@0\) is later, not before \S+Z; last deferred: .*unknown message type`, at), dibs.ok(t, "queue", "blocked", "mail"))
	})
}

func TestItemsOfSessionsThatAreOverWaitForAWorker(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", nil))
		positioned(t, dibs)
		jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: time.Second})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		testkit.Await(t, "the session is over", func() (bool, any) {
			found := causes(t, dibs)
			return len(found) == 1 && found[0] == "no worker 1", found
		})

		require.Contains(t, dibs.ok(t, "queue", "blocked"), "no process has a session, and 1 item is out of sessions that are over; is a worker running?")
	})
}

// No process runs, and none is said to be at work.
func TestAClockThatWasAheadIsNamed(t *testing.T) {
	t.Parallel()
	where, ahead := pgtest.Clock(t)
	onStore(t, where, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", nil))
		positioned(t, dibs)
		positioned(t, dibs)
		ahead(24 * time.Hour)
		job := received(t, q, 2)[0]
		require.NoError(t, job.Retry(t.Context(), time.Minute, errUnwanted))
		require.NotContains(t, dibs.run(t, "doctor").stdout, "clock is")

		ahead(0)

		require.Equal(t, []string{"clock 2", "no worker 1", "later 1"}, causes(t, dibs))
		const says = " behind the times in the queue: it was ahead, or was set back"
		require.Contains(t, dibs.ok(t, "queue", "blocked"), says)
		require.Contains(t, dibs.ok(t, "queue", "ls"), says)
		require.InDelta(t, 24*3600, objects(t, dibs.ok(t, "queue", "ls", "--json"))[0]["clockBehindSeconds"], 60)
		require.Contains(t, dibs.run(t, "doctor").stdout, says)

		_, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.NotContains(t, dibs.ok(t, "queue", "ls"), "clock")
	})
}

func TestAWriterThatKeepsItemsIsNamed(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	onStore(t, where, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", nil))
		dibs.ok(t, "write", "mail-first", "Send")
		require.NoError(t, received(t, q, 1)[0].Complete(t.Context()))
		begin := func(application string) (tx pgx.Tx, pid uint32) {
			config, err := pgx.ParseConfig(where)
			require.NoError(t, err)
			config.RuntimeParams["application_name"] = application
			conn, err := pgx.ConnectConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
			tx, err = conn.Begin(t.Context())
			require.NoError(t, err)
			return tx, conn.PgConn().PID()
		}
		send := func(tx pgx.Tx, stream messagestore.StreamName) {
			over := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil))
			_, err := over.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)})
			require.NoError(t, err)
		}
		mark, _ := begin("mark") // from now on the transactions of the category overlap
		send(mark, "mail-mark")
		require.NoError(t, mark.Commit(t.Context()))
		job := received(t, q, 1)[0]
		require.NoError(t, job.Complete(t.Context()))
		early, pid := begin("nightly")
		send(early, "mail-early")
		require.Empty(t, causes(t, dibs), "nothing is behind it yet")
		second, _ := begin("second")
		send(second, "mail-second")
		require.NoError(t, second.Commit(t.Context()))
		_, err := early.Exec(t.Context(), "select 'what it\n did last'")
		require.NoError(t, err)

		require.Equal(t, []string{"writer 1"}, causes(t, dibs))
		line := objects(t, dibs.ok(t, "queue", "blocked", "--json"))[0]
		writer, _ := line["writer"].(map[string]any)
		require.Equal(t, fmt.Sprint(pid, " nightly idle in transaction select 'what it did last'"), fmt.Sprint(writer["pid"], " ", writer["application"], " ", writer["state"], " ", writer["query"]))
		require.NotEmpty(t, writer["since"])
		require.Equal(t, fmt.Sprint(job.Message.GlobalPosition), fmt.Sprint(line["position"]))
		require.Regexp(t, fmt.Sprintf(`(?m)^mail +writer +1  items behind position %d come when a transaction ends: of process %d \(\w+, nightly\), in a transaction for 00:\d\d:\d\d, idle in transaction: select 'what it did last'; to end it: select pg_terminate_backend\(%d\)$`, job.Message.GlobalPosition, pid, pid), dibs.ok(t, "queue", "blocked", "--long-lock", "1ns"))
		young := dibs.ok(t, "queue", "blocked", "--long-lock", "1h")
		require.Contains(t, young, "; its transaction has only begun: look again\n")
		require.NotContains(t, young, "pg_terminate_backend")
		require.Equal(t, 2, dibs.run(t, "queue", "blocked", "--long-lock", "-1s").code)
		none, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Empty(t, none)

		// An insert that waits is told too.
		inserted := make(chan result, 1)
		go func() { inserted <- dibs.runContext(t.Context(), "queue", "insert", "mail", "Send") }()
		testkit.Await(t, "the insert waits", func() (bool, any) {
			r := dibs.run(t, "queue", "blocked")
			return strings.Contains(r.stdout, "; to insert process ") && strings.Contains(r.stdout, " waits, for 00:"), r
		})

		// A user who may read the store, and no member of pg_monitor, sees the process.
		theirs := &shell{env: map[string]string{"DIBS_STORE": asUser(t, where)}}
		u, err := url.Parse(theirs.env["DIBS_STORE"])
		require.NoError(t, err)
		refused := theirs.run(t, "queue", "blocked")
		require.Equal(t, 1, refused.code)
		require.Contains(t, refused.stderr, "permission denied")
		execute(t, where, "grant dibs_reader to "+u.User.Username())
		hidden := theirs.ok(t, "queue", "blocked")
		require.Contains(t, hidden, fmt.Sprintf("of process %d, which this user may not see; ", pid))
		require.Contains(t, hidden, "grant pg_monitor to this user")
		require.NotContains(t, hidden, "did last")
		execute(t, where, "grant pg_monitor to "+u.User.Username())
		require.Contains(t, theirs.ok(t, "queue", "blocked"), "did last")

		require.NoError(t, early.Rollback(t.Context()))
		testkit.Receive(t, "the insert", inserted)
		require.NotContains(t, fmt.Sprint(causes(t, dibs)), "writer")
	})
}

// A thousand sagas wait for messages, as most do, and do not hide one that waits for a process of another version.
func TestManyWaitingSagasHideNone(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		const sagas = queuing.MaxItems + 10
		var starts []messagestore.StreamWrite
		for i := range sagas {
			starts = append(starts, messagestore.To(messagestore.Category("booking:saga").Stream(fmt.Sprint(i)), messagestore.NoStream, messagestore.Raw{Type: "Started", Data: []byte(`{"definition":"booking","version":1,"input":1}`)}))
		}
		for part := range slices.Chunk(starts, 100) {
			_, err := store.WriteStreams(t.Context(), part...)
			require.NoError(t, err)
		}
		driver := testkit.Must(store.Driver()).(queuing.Driver) //nolint:errcheck // it keeps queues
		take := queuing.Take{
			Queue: queuing.Queue{Name: "booking:saga", Category: "booking:saga"}, Policy: queuing.Policy{MaxFailures: 1}, Wakes: []string{"Resumed"},
			Session: 1, Lease: time.Hour,
		}
		for met := 0; met < sagas; {
			take.Want, take.Finishes = queuing.MaxItems, nil
			taken, err := driver.QueueTake(t.Context(), take)
			require.NoError(t, err)
			require.NotEmpty(t, taken.Items)
			for _, item := range taken.Items {
				finish := queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Wait, Delay: queuing.MaxDelay}
				if met++; met == sagas {
					finish.Error = "waits for a process of version 2"
				}
				take.Finishes = append(take.Finishes, finish)
			}
			take.Want = 0
			_, err = driver.QueueTake(t.Context(), take)
			require.NoError(t, err)
		}

		r := dibs.run(t, "queue", "blocked", "booking:saga")

		require.Equal(t, 0, r.code, r.stderr)
		require.Regexp(t, `(?m)^booking:saga +release +1  each waits for a process of version 2$`, r.stdout)
		require.Empty(t, r.stderr)
	})
}
