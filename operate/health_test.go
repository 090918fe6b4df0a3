package operate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
)

type paid struct{}

func (paid) MessageType() string { return "Paid" }

// broken is a store in which a consumer has parked three messages, a queue has dead items of two errors and is paused, and a
// schedule is late. A second queue is well.
func broken(t *testing.T) *messagestore.Store {
	t.Helper()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for n := range 3 {
		testkit.Do(store.Write(t.Context(), messagestore.Category("account").Stream(fmt.Sprint(n)), messagestore.AnyVersion, paid{}))(t)
	}
	calls := 0
	refuse := func(context.Context, *messagestore.Message) error {
		calls++
		return fmt.Errorf("the ledger lacks the account %d", calls)
	}
	ledger := testkit.Must(consumer.New(store, "account", "ledger", handler.HandlerFunc(refuse), &consumer.Config{
		Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
	}))
	require.NoError(t, ledger.CatchUp(t.Context()))

	q := testkit.Must(queue.New(store, "mail", &queue.Config{MaxFailures: 1, Logger: logger.Silent()}))
	for n := range 4 {
		testkit.Do(q.Insert(t.Context(), messagestore.Raw{Type: "Send", Data: []byte(`{}`)}, &queue.InsertOpts{Key: fmt.Sprint("k", n)}))(t)
	}
	jobs := testkit.Do(q.Receive(t.Context(), 4, nil))(t)
	for n, job := range jobs[:3] {
		require.NoError(t, job.Bury(t.Context(), fmt.Errorf("dial 10.0.0.%d: refused", n)))
	}
	require.NoError(t, jobs[3].Bury(t.Context(), errors.New("no such mailbox")))
	require.NoError(t, q.Pause(t.Context()))
	well := testkit.Must(queue.New(store, "well", &queue.Config{Logger: logger.Silent()}))
	testkit.Do(well.Receive(t.Context(), 1, nil))(t)

	require.NoError(t, testkit.Must(cron.New(store, "report", nil)).Set(t.Context(), cron.Schedule{Name: "daily", Spec: "@hourly", Body: paid{}}))
	time.Sleep(2*time.Hour + time.Minute)
	return store
}

// causes are those of what is called so, each as its kind, its count, and the count and error of its groups.
func causes(t *testing.T, store *messagestore.Store) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, h := range testkit.Do(operate.Healths(t.Context(), store))(t) {
		name := fmt.Sprint(h.Kind, " ", h.Name)
		all[name] = []string{}
		for _, c := range h.Causes {
			text := fmt.Sprint(c.What, " ", c.Count)
			for _, g := range c.Groups {
				text += fmt.Sprintf("; %d %s", g.Count, g.Error)
			}
			all[name] = append(all[name], text)
		}
	}
	return all
}

func TestWhatNeedsAPersonIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := broken(t)
		require.Equal(t, map[string][]string{
			"consumer ledger": {"parked 3; 3 the ledger lacks the account 3"},
			"queue mail":      {"dead 4; 3 dial 10.0.0.2: refused; 1 no such mailbox", "paused 0"},
			"queue well":      {},
			"schedule daily":  {"late 0"},
		}, causes(t, store))
	})
}

// Each act that a cause names does away with it.
func TestActsMendTheirCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := broken(t)
		commands := []string{}
		for _, h := range testkit.Do(operate.Healths(t.Context(), store))(t) {
			for _, c := range h.Causes {
				if len(c.Acts) == 0 {
					continue
				}
				act := c.Acts[0]
				if len(c.Groups) > 0 {
					act = act.For(c.Groups[0])
				}
				seen := testkit.Do(act.Preview(t.Context(), store))(t)
				n := testkit.Do(act.Run(t.Context(), store, "ann", &operate.ChangeOpts{Reason: "mended"}))(t)
				require.Equal(t, seen.Count, n)
				require.NotEqual(t, seen.Seen, testkit.Do(act.Preview(t.Context(), store))(t).Seen, "it has changed")
				commands = append(commands, act.Command("mended"))
			}
		}
		require.ElementsMatch(t, []string{
			"dibs parked redrive account ledger --like 'the ledger lacks the account 3' --state dead --reason mended",
			"dibs queue retry mail --like 'dial 10.0.0.2: refused' --state dead --reason mended",
			"dibs queue resume mail",
		}, commands)
		require.Equal(t, []string{"dead 1; 1 no such mailbox", "stopped 0"}, causes(t, store)["queue mail"])
		mail := testkit.Must(queue.New(store, "mail", nil))
		item := testkit.Do(mail.Item(t.Context(), testkit.Do(mail.Items(t.Context(), queue.Later, 0, 1))(t)[0].Position))(t)
		require.Equal(t, "ann: mended", item.Log[len(item.Log)-1].Text)
	})
}

func TestActsThatThereAreNotAreRefused(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for _, act := range []operate.Act{
		{},
		{On: "moon", Do: "retry", Category: "mail"},
		{On: operate.OnQueue, Do: "redrive", Category: "mail"},
		{On: operate.OnQueue, Do: "retry", Category: "a b\x00"},
		{On: operate.OnConsumer, Do: "park", Category: "account", Name: "ledger"},
	} {
		_, err := act.Run(t.Context(), store, "ann", nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%+v", act)
	}
	_, err := operate.Act{On: operate.OnConsumer, Do: "pause", Category: "account", Name: "none"}.Run(t.Context(), store, "ann", nil)
	require.ErrorContains(t, err, "none")
}
