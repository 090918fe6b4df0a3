package cli_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
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
		require.Equal(t, result{0, "", "no queue was ever worked on\n"}, dibs.run(t, "queue", "ls"))
		unknown := dibs.run(t, "queue", "pause", "mail")
		require.Equal(t, 1, unknown.code)
		require.Contains(t, unknown.stderr, "queue mail: no worker ever took from it")
		require.NotContains(t, unknown.stderr, "no such message")
		require.Equal(t, 1, dibs.run(t, "queue", "jobs", "mail").code)
		first := positioned(t, dibs, "--key", "ann")
		second := positioned(t, dibs, "--key", "ann")
		later := positioned(t, dibs, "--at", "2999-01-01T00:00:00Z")
		unique := positioned(t, dibs, "--unique", "report")
		require.Equal(t, unique, positioned(t, dibs, "--unique", "report"))
		q := must.New(queue.New(store, "mail", &queue.Config{MaxFailures: 1}))
		jobs, err := q.Receive(t.Context(), 10, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})
		require.NoError(t, err)
		require.Len(t, jobs, 2)

		states := func(flags ...string) (all []string) {
			for _, line := range objects(t, dibs.ok(t, append([]string{"queue", "jobs", "mail", "--json"}, flags...)...)) {
				all = append(all, fmt.Sprint(line["position"], " ", line["state"]))
			}
			return all
		}
		is := func(position messagestore.GlobalPosition, state string) string {
			return fmt.Sprint(position, " ", state)
		}
		require.ElementsMatch(t, []string{is(first, "out"), is(second, "held"), is(later, "later"), is(unique, "out")}, states())
		require.Equal(t, []string{is(second, "held")}, states("--state", "held"))
		require.NoError(t, jobs[0].Progress("3 of 9 sent"))
		require.NoError(t, jobs[0].Extend(t.Context(), time.Hour))
		require.Regexp(t, `(?m) 3 of 9 sent$`, dibs.ok(t, "queue", "jobs", "mail", "--state", "out"))
		require.Regexp(t, `(?m)^progress +3 of 9 sent$`, dibs.ok(t, "queue", "show", "mail", fmt.Sprint(first)))
		require.NoError(t, jobs[0].Retry(t.Context(), 0, errors.New("no such mailbox")))
		require.Contains(t, dibs.ok(t, "queue", "jobs", "mail", "--state", "dead"), "no such mailbox")
		examined := dibs.run(t, "doctor", "--quiet")
		require.Regexp(t, `(?m)^queues\n  warn    queue mail has 1 dead item, and its oldest .*\n +see them with dibs queue jobs mail --state dead`, examined.stdout, examined.stderr)
		shown := dibs.ok(t, "queue", "show", "mail", fmt.Sprint(first))
		require.Regexp(t, `(?m)^state +dead$`, shown)
		require.Regexp(t, `(?m) 0 +failed +session \d+: no such mailbox$`, shown)
		require.Regexp(t, `(?m)^mail +mail +no +1 +2 +1 +0 +1 .*$`, dibs.ok(t, "queue", "ls"))

		require.Equal(t, "retried 1 item\n", dibs.ok(t, "queue", "retry", "mail", "--all-dead", "--reason", "it is back"))
		require.Contains(t, dibs.ok(t, "queue", "show", "mail", fmt.Sprint(first)), "it is back")
		require.Equal(t, "cancelled 1 item\n", dibs.ok(t, "queue", "cancel", "mail", fmt.Sprint(later)))
		require.Contains(t, dibs.ok(t, "queue", "show", "mail", fmt.Sprint(later)), "finished")
		again := dibs.run(t, "queue", "drop", "mail", fmt.Sprint(later))
		require.Equal(t, 1, again.code)
		require.Contains(t, again.stderr, "no item that is later, held or dead is at position "+fmt.Sprint(later))
		again = dibs.run(t, "queue", "drop", "mail", fmt.Sprint(later), "--json")
		require.JSONEq(t, fmt.Sprintf(`{"queue":"mail","changed":[],"unchanged":[%d]}`, later), again.stdout)
		reused := dibs.run(t, "queue", "insert", "mail", "Send", `{"to":"bob"}`, "--unique", "report", "--json")
		require.Equal(t, "keyReused", objects(t, reused.stderr)[0]["kind"])
		require.Equal(t, "mail is paused\n", dibs.ok(t, "queue", "pause", "mail"))
		none, err := q.Receive(t.Context(), 10, nil)
		require.NoError(t, err)
		require.Empty(t, none)
		require.Regexp(t, `(?m) paused$`, dibs.ok(t, "queue", "ls"))
		require.Contains(t, dibs.run(t, "doctor").stdout, "queue mail has 0 dead items, and its oldest item that is not finished is of ")
		require.Contains(t, dibs.run(t, "doctor").stdout, "dibs queue resume mail ends the pause")
		require.Equal(t, "mail is resumed\n", dibs.ok(t, "queue", "resume", "mail"))
		for _, next := range []messagestore.GlobalPosition{first, second} {
			some, err := q.Receive(t.Context(), 10, nil)
			require.NoError(t, err)
			require.Len(t, some, 1)
			require.Equal(t, next, some[0].Message.GlobalPosition)
			require.NoError(t, some[0].Complete(t.Context()))
		}
	})
}

func TestAnItemIsExplained(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "write", "order-1", "Ordered", `{"by":"ann"}`)
		dibs.ok(t, "write", "mail-ann", "Send", `{"n":1}`, "--follow", "order-1@0")
		second := positioned(t, dibs, "--key", "ann")
		q := must.New(queue.New(store, "mail", &queue.Config{MaxFailures: 2}))
		receive := func() *queue.Job {
			jobs, err := q.Receive(t.Context(), 10, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})
			require.NoError(t, err)
			require.Len(t, jobs, 1)
			return jobs[0]
		}
		job := receive()
		first := fmt.Sprint(job.Message.GlobalPosition)
		require.NoError(t, job.Retry(t.Context(), 0, errors.New("the mail server is away")))
		require.NoError(t, receive().Retry(t.Context(), 0, errors.New("no such mailbox")))
		_, err := store.Write(t.Context(), "ledger-1", messagestore.AnyVersion, messagestore.Follow(job.Message, messagestore.Raw{Type: "Bounced", Data: []byte(`{}`)}))
		require.NoError(t, err)

		told := dibs.ok(t, "explain", first, "--category", "mail", "--in", "ledger")
		require.Regexp(t, `(?s)^mail-ann\n`+
			`caused by +\S+Z  order-1@0 +Ordered +\{"by":"ann"\}\n`+
			`inserted +\S+Z  mail-ann@0 +Send +\{"n":1\}\n`+
			`queue mail +\S+Z  mail-ann@0 +failed +session \d+: the mail server is away\n`+
			`queue mail +\S+Z  mail-ann@0 +failed +session \d+: no such mailbox\n`+
			`queue mail +mail-ann@0 +dead\n`+
			`followed +\S+Z  ledger-1@0 +Bounced +\{\}\n$`, told)
		require.Equal(t, told, dibs.ok(t, "explain", "mail-ann", "--in", "ledger"), "by its stream")
		require.Regexp(t, `(?m)^behind +mail-ann@0 +the item before it of its key$`, dibs.ok(t, "explain", fmt.Sprint(second), "--category", "mail"))

		// What queue show has of the deliveries is the same.
		var explained, shown []any
		for _, line := range objects(t, dibs.ok(t, "explain", first, "--category", "mail", "--json")) {
			if line["event"] == "delivery" {
				explained = append(explained, line["delivery"])
			}
		}
		shown, _ = objects(t, dibs.ok(t, "queue", "show", "mail", first, "--json"))[0]["log"].([]any)
		require.Len(t, shown, 2)
		require.Equal(t, shown, explained)
		require.Equal(t, 1, dibs.run(t, "explain", "999999", "--category", "mail").code)
	})
}

func TestAQueueIsPausedAndCancelledBeforeItsFirstWorker(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for _, args := range [][]string{{"pause", "mail"}, {"cancel", "mail", "1"}} {
			unknown := dibs.run(t, append([]string{"queue"}, args...)...)
			require.Equal(t, 1, unknown.code)
			require.Contains(t, unknown.stderr, "queue mail: no worker ever took from it")
			require.Contains(t, unknown.stderr, "give the category that it reads, for ever: --category CATEGORY")
		}
		require.NotContains(t, dibs.run(t, "queue", "resume", "mail").stderr, "--category")
		require.Equal(t, 2, dibs.run(t, "queue", "pause", "mail", "--category", "letters-1").code)
		require.Equal(t, 2, dibs.run(t, "queue", "pause", "two-parts", "--category", "letters").code)
		for _, args := range [][]string{{"pause", ""}, {"cancel", "", "1"}} {
			nameless := dibs.run(t, append(append([]string{"queue"}, args...), "--category", "letters")...)
			require.Equal(t, 2, nameless.code)
			require.Contains(t, nameless.stderr, `invalid queue name "": it is empty`)
		}
		nothing := dibs.run(t, "queue", "cancel", "mial", "99", "--category", "letters")
		require.Equal(t, 1, nothing.code)
		require.Contains(t, nothing.stderr, "letters has no item at the position, and queue mial, which no worker ever took from, is not made")
		require.Equal(t, result{0, "", "no queue was ever worked on\n"}, dibs.run(t, "queue", "ls"))
		insert := func() string {
			return fmt.Sprint(objects(t, dibs.ok(t, "queue", "insert", "letters", "Send", "--json"))[0]["position"])
		}

		require.Equal(t, "mail is paused\n", dibs.ok(t, "queue", "pause", "mail", "--category", "letters"))
		insert()
		require.Regexp(t, `(?m)^mail +letters +yes .* paused$`, dibs.ok(t, "queue", "ls"))
		mail := must.New(queue.New(store, "letters", &queue.Config{Name: "mail"}))
		none, err := mail.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Empty(t, none)
		require.Equal(t, "mail is resumed\n", dibs.ok(t, "queue", "resume", "mail"))
		received(t, mail, 1)

		first, second := insert(), insert()
		require.Equal(t, "cancelled 1 item\n", dibs.ok(t, "queue", "cancel", "fax", first, "--category", "letters", "--reason", "too late"))
		require.Contains(t, dibs.ok(t, "queue", "show", "fax", first), "too late")
		jobs := received(t, must.New(queue.New(store, "letters", &queue.Config{Name: "fax"})), 2)
		require.Equal(t, second, fmt.Sprint(jobs[1].Message.GlobalPosition))

		other := dibs.run(t, "queue", "pause", "mail", "--category", "mail")
		require.Equal(t, 2, other.code)
		require.Contains(t, other.stderr, "queue mail reads letters")
		require.Equal(t, "mail is paused\n", dibs.ok(t, "queue", "pause", "mail", "--category", "letters"), "that it has")
	})
}

func TestQueuesAreListedOfAllOrOfACategory(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		require.Equal(t, result{0, "", "no queue was ever worked on\n"}, dibs.run(t, "queue", "ls"))
		require.Equal(t, 1, dibs.run(t, "queue", "ls", "none").code)
		for _, category := range []messagestore.Category{"mail", "fax"} {
			q := must.New(queue.New(store, category, &queue.Config{MaxFailures: 2}))
			for range 4 {
				dibs.ok(t, "queue", "insert", string(category), "Send")
			}
			jobs := received(t, q, 3)
			require.NoError(t, jobs[0].Bury(t.Context(), errors.New("no such mailbox")))
			require.NoError(t, jobs[1].Defer(t.Context(), time.Hour))
			require.NoError(t, jobs[2].Defer(t.Context(), 0))
		}

		require.Regexp(t, `(?s)^queue  category  waiting  out  later  due  held  dead  oldest .*\nfax    fax       yes        0      2    1     0     1  \S+Z .*\nmail   mail      yes        0      2    1     0     1  \S+Z .*\n$`, dibs.ok(t, "queue", "ls"))
		lines := objects(t, dibs.ok(t, "queue", "--json"))
		require.Len(t, lines, 2)
		require.EqualValues(t, 1, lines[0]["due"])
		lines = objects(t, dibs.ok(t, "queue", "ls", "mail", "--json"))
		require.Len(t, lines, 1)
		require.Equal(t, "mail", lines[0]["queue"])
		dibs.ok(t, "write", "account-1", "Opened")
		require.Equal(t, result{0, "", "no queue of account was ever worked on\n"}, dibs.run(t, "queue", "ls", "account"))
		require.Equal(t, 2, dibs.run(t, "queue", "ls", "mail-1").code)
		require.Contains(t, dibs.run(t, "report", "queues").stderr, "see how queues stand with: dibs queue ls\n")
	})
}

func TestTopShowsQueuesWithDeadItemsFirst(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for _, category := range []messagestore.Category{"fax", "mail"} {
			q := must.New(queue.New(store, category, &queue.Config{MaxFailures: 1}))
			for range 2 {
				dibs.ok(t, "queue", "insert", string(category), "Send")
			}
			jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})
			require.NoError(t, err)
			require.Len(t, jobs, 1)
			if category == "mail" {
				require.NoError(t, jobs[0].Retry(t.Context(), 0, errors.New("no such mailbox")))
			}
		}
		looked := dibs.ok(t, "top", "--times", "1")
		require.Regexp(t, `(?s)\n\nqueue  category  waiting  out  later  due  held  dead  oldest .*\nmail   mail      yes        0      0    0     0     1  \S+Z .*\nfax    fax       yes        1      0    0     0     0  \S+Z .*\n$`, looked)
		lines := objects(t, dibs.ok(t, "top", "fax", "--times", "1", "--json"))
		require.Len(t, lines, 1)
		require.Equal(t, "fax", lines[0]["queue"])
		require.NotEmpty(t, lines[0]["time"])
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
		suspended, waits, failed := positioned(t, dibs), positioned(t, dibs), positioned(t, dibs)
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

		require.Regexp(t, `(?m)^mail +mail +no +0 +2 +0 +0 +0 .* 1 suspended$`, dibs.ok(t, "queue", "ls"))
		require.Contains(t, dibs.ok(t, "queue", "ls", "--json"), `"suspended":1`)
		require.Regexp(t, `(?m)^ +\d+ +suspended +1 +0 .* no such step$`, dibs.ok(t, "queue", "jobs", "mail", "--state", "suspended"))
		require.Regexp(t, `(?m)^state +suspended, not before \S+Z$`, dibs.ok(t, "queue", "show", "mail", fmt.Sprint(suspended)))
		require.Equal(t, []string{"suspended 1", "later 1"}, causes(t, dibs))
		require.Contains(t, dibs.ok(t, "queue", "blocked"), "dibs queue jobs mail --state suspended prints why")
		dibs.ok(t, "queue", "pause", "mail")
		require.Contains(t, dibs.ok(t, "queue", "ls"), "paused, 1 suspended")

		require.Equal(t, "retried 2 items\n", dibs.ok(t, "queue", "retry", "mail", fmt.Sprint(suspended), fmt.Sprint(waits)))
		require.NotContains(t, dibs.ok(t, "queue", "ls"), "suspended")
	})
}

// A relay that is given up, and a queue of a name that was mistyped, keep a category from being trimmed until they are removed.
func TestARemovedQueueKeepsNoMessages(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		positioned(t, dibs, "--key", "ann")
		positioned(t, dibs, "--key", "ann")
		dibs.ok(t, "queue", "pause", "mial", "--category", "mail")
		q := must.New(queue.New(store, "mail", &queue.Config{Name: "tobank"}))
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
