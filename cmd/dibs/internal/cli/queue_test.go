package cli_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// positioned returns the position that insert printed.
func positioned(t *testing.T, dibs *shell, args ...string) messagestore.GlobalPosition {
	t.Helper()
	line := objects(t, dibs.ok(t, append([]string{"queue", "insert", "mail", "Send", `{"to":"ann"}`, "--json"}, args...)...))[0]
	position, err := strconv.ParseInt(fmt.Sprint(line["position"]), 10, 64)
	require.NoError(t, err)
	return messagestore.GlobalPosition(position)
}

func TestQueuesAreListedAndTheirItemsShownAndChanged(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", &queue.Config{MaxFailures: 1}))
		var jobs []*queue.Job
		dibs.script(t, "queue", store, map[string]func(){
			"two are received": func() { jobs = received(t, q, 2) },
			"the first tells its progress": func() {
				require.NoError(t, jobs[0].Progress("3 of 9 sent"))
				require.NoError(t, jobs[0].Extend(t.Context(), time.Hour))
			},
			"the first fails": func() { require.NoError(t, jobs[0].Retry(t.Context(), 0, errors.New("no such mailbox"))) },
			"doctor tells of it": func() {
				require.Regexp(t, `(?m)^queues\n  warn    queue mail has 1 dead item, and its oldest .*\n +see them with dibs queue jobs mail --state dead`, dibs.run(t, "doctor", "--quiet").stdout)
			},
			"none is received": func() {
				none, err := q.Receive(t.Context(), 10, nil)
				require.NoError(t, err)
				require.Empty(t, none)
			},
			"doctor tells of the pause": func() {
				examined := dibs.run(t, "doctor").stdout
				require.Contains(t, examined, "queue mail has 0 dead items, and its oldest item that is not finished is of ")
				require.Contains(t, examined, "dibs queue resume mail ends the pause")
			},
			"the first two are completed": func() {
				for _, next := range []messagestore.GlobalPosition{1, 2} {
					job := received(t, q, 1)[0]
					require.Equal(t, next, job.Message.GlobalPosition)
					require.NoError(t, job.Complete(t.Context()))
				}
			},
		})
	})
}

// What queue show has of the deliveries is the same.
func TestAnItemIsExplained(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", &queue.Config{MaxFailures: 2}))
		dibs.script(t, "queue-explain", store, map[string]func(){"the first fails twice, and is followed": func() {
			job := received(t, q, 1)[0]
			require.NoError(t, job.Retry(t.Context(), 0, errors.New("the mail server is away")))
			require.NoError(t, received(t, q, 1)[0].Retry(t.Context(), 0, errors.New("no such mailbox")))
			_, err := store.Write(t.Context(), "ledger-1", messagestore.AnyVersion, messagestore.Follow(job.Message, messagestore.Raw{Type: "Bounced", Data: []byte(`{}`)}))
			require.NoError(t, err)
		}})
	})
}

func TestAQueueIsPausedAndCancelledBeforeItsFirstWorker(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		mail := testkit.Must(queue.New(store, "letters", &queue.Config{Name: "mail"}))
		dibs.script(t, "queue-before-its-worker", store, map[string]func(){
			"none is received": func() {
				none, err := mail.Receive(t.Context(), 1, nil)
				require.NoError(t, err)
				require.Empty(t, none)
			},
			"one is received": func() { received(t, mail, 1) },
			"mail reads letters": func() {
				other := dibs.run(t, "queue", "pause", "mail", "--category", "mail")
				require.Equal(t, 2, other.code)
				require.Contains(t, other.stderr, "queue mail reads letters")
			},
			"fax has the others": func() {
				jobs := received(t, testkit.Must(queue.New(store, "letters", &queue.Config{Name: "fax"})), 2)
				require.EqualValues(t, 3, jobs[1].Message.GlobalPosition)
			},
		})
	})
}

func TestQueuesAreListedAndThoseWithDeadItemsAreFirstInTop(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.script(t, "queue-ls", store, map[string]func(){
			"each has a dead item, one that is later, and one that is due": func() {
				for _, category := range []messagestore.Category{"mail", "fax"} {
					q := testkit.Must(queue.New(store, category, &queue.Config{MaxFailures: 2}))
					for range 4 {
						dibs.ok(t, "queue", "insert", string(category), "Send")
					}
					jobs := received(t, q, 3)
					require.NoError(t, jobs[0].Bury(t.Context(), errors.New("no such mailbox")))
					require.NoError(t, jobs[1].Defer(t.Context(), time.Hour))
					require.NoError(t, jobs[2].Defer(t.Context(), 0))
				}
			},
			"the dead one of mail is dropped": func() { dibs.ok(t, "queue", "drop", "mail", "1") },
		})
	})
}

// Of a queue of streams what is suspended is a matter for a person, and what waits is none.
func TestSuspendedItemsAreListed(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		of, err := store.Driver()
		require.NoError(t, err)
		driver := of.(queuing.Driver) //nolint:errcheck,forcetypeassert // as every store here
		take := queuing.Take{
			Queue: queuing.Queue{Name: "mail", Category: "mail"}, Wakes: []string{"Signalled"}, Policy: queuing.Policy{MaxFailures: 9}, Session: 1, Lease: time.Hour, Want: 9,
		}
		_, _, failed := positioned(t, dibs), positioned(t, dibs), positioned(t, dibs)
		taken, err := driver.QueueTake(t.Context(), take)
		require.NoError(t, err)
		require.Len(t, taken.Items, 3)
		for i, kind := range []queuing.Kind{queuing.Suspend, queuing.Wait, queuing.Retry} {
			finish := queuing.Finish{Delivery: taken.Items[i].Delivery(), Kind: kind, Delay: time.Hour, Seen: failed}
			if kind != queuing.Wait { // with an error it would say what it waits for
				finish.Error = "no such step"
			}
			take.Finishes = append(take.Finishes, finish)
		}
		_, err = driver.QueueTake(t.Context(), take)
		require.NoError(t, err)

		dibs.script(t, "queue-suspended", nil, nil)
	})
}

// A relay that is given up, and a queue of a name that was mistyped, keep a category from being trimmed until they are removed.
func TestARemovedQueueKeepsNoMessages(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		positioned(t, dibs, "--key", "ann")
		positioned(t, dibs, "--key", "ann")
		dibs.ok(t, "queue", "pause", "mial", "--category", "mail")
		q := testkit.Must(queue.New(store, "mail", &queue.Config{Name: "tobank"}))
		jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		trim := []string{"trim", "mail-ann", "--keep", "1", "--min-age", "0", "--yes"}
		require.Contains(t, dibs.ok(t, trim...), "not finished")

		require.Equal(t, 2, dibs.run(t, "queue", "remove", "tobank").code, "there is no terminal")
		no := (&shell{env: dibs.env, stdin: person{strings.NewReader("y\n")}}).run(t, "queue", "remove", "tobank")
		require.Equal(t, result{1, "", "remove queue tobank of mail? What is known of its items does not come back. Type yes: dibs: nothing was removed\n"}, no)
		refused := dibs.run(t, "queue", "remove", "tobank", "--yes")
		require.Equal(t, 1, refused.code)
		require.Contains(t, refused.stderr, "queue tobank: remove: items are not finished: 1 waiting, 1 out")
		require.Contains(t, refused.stderr, "--unfinished")
		require.Equal(t, "mial is removed: its name is free\n", dibs.ok(t, "queue", "remove", "mial", "--yes"))
		require.Contains(t, dibs.ok(t, trim...), "not finished")
		require.JSONEq(t, `{"queue":"tobank","removed":true,"nameKept":true}`, dibs.ok(t, "queue", "remove", "tobank", "--unfinished", "--yes", "--json"))

		require.Equal(t, result{0, "", "no queue was ever worked on\n"}, dibs.run(t, "queue", "ls"))
		require.Contains(t, dibs.ok(t, trim...), "removed 1 ")
		dibs.ok(t, "verify")
		_, err = q.Receive(t.Context(), 1, nil)
		require.ErrorIs(t, err, queue.ErrRemoved)
		require.Contains(t, dibs.run(t, "queue", "pause", "tobank", "--category", "mail").stderr, "the queue was removed")
		require.Equal(t, 1, dibs.run(t, "queue", "remove", "tobank", "--yes").code)
		require.Equal(t, "tobank is removed: its name is free\n", dibs.ok(t, "queue", "remove", "tobank", "--free-name", "--category", "mail", "--yes"))
		jobs, err = q.Receive(t.Context(), 9, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 1)
	})
}

// More items that wait than are counted.
func TestItemsThatWaitAreCountedToABound(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	fill := func(stream messagestore.StreamName, n int) {
		for range n {
			_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)})
			require.NoError(t, err)
		}
	}
	fill("mail-1", 1)
	received(t, testkit.Must(queue.New(store, "mail", nil)), 1)
	for _, test := range []struct {
		more    int
		column  string
		items   int
		atLeast any
	}{{0, "0", 0, nil}, {10_000, "10000", 10_000, nil}, {1, "> 10,000", 10_000, true}} {
		fill("mail-2", test.more)
		require.Regexp(t, `(?m)^mail +mail +`+test.column+` +1 +0 +0 +0 +0 +\d+s +0 +0 +0$`, over(t, store, "queue", "ls"))
		line := objects(t, over(t, store, "top", "--times", "1", "--json"))[0]
		require.InDelta(t, test.items, line["waitingItems"], 0)
		require.Equal(t, test.atLeast, line["waitingItemsIsAtLeast"])
	}
}
