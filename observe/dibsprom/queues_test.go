package dibsprom_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/observe/dibsprom"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
)

// Of five items of two keys and none: one is out and holds one, one is dead, one is later, and one
// was met by no worker.
func TestAScrapeShowsQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		mail := testkit.Must(queue.New(store, "mail", &queue.Config{Name: "post", Logger: logger.Silent()}))
		insert := func(key string) {
			testkit.Must(mail.Insert(t.Context(), held{}, &queue.InsertOpts{Key: key}))
		}
		insert("ann")
		insert("ann")
		insert("bob")
		insert("cid")
		jobs := testkit.Must(mail.Receive(t.Context(), 10, &queue.ReceiveOpts{VisibilityTimeout: time.Hour}))
		require.Len(t, jobs, 3)
		require.NoError(t, jobs[1].Bury(t.Context(), errors.New("no such person")))
		require.NoError(t, jobs[2].Defer(t.Context(), time.Minute))
		insert("dan")
		time.Sleep(90 * time.Second)

		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(testkit.Must(dibsprom.NewQueues(store))))
		require.NoError(t, registry.Register(testkit.Must(dibsprom.New(store)))) // beside it
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
			# HELP dibs_queue_dead Dead items.
			# TYPE dibs_queue_dead gauge
			dibs_queue_dead{category="mail",queue="post"} 1
			# HELP dibs_queue_due Those of the later items whose time has come.
			# TYPE dibs_queue_due gauge
			dibs_queue_due{category="mail",queue="post"} 1
			# HELP dibs_queue_held Items behind another of their key.
			# TYPE dibs_queue_held gauge
			dibs_queue_held{category="mail",queue="post"} 1
			# HELP dibs_queue_later Items that are offered at a time, which may have come.
			# TYPE dibs_queue_later gauge
			dibs_queue_later{category="mail",queue="post"} 1
			# HELP dibs_queue_oldest_seconds The age of the oldest item that is neither finished nor dead, 0 for none.
			# TYPE dibs_queue_oldest_seconds gauge
			dibs_queue_oldest_seconds{category="mail",queue="post"} 90
			# HELP dibs_queue_open Items that a worker has met and that are neither finished nor dead: out, later, held and suspended.
			# TYPE dibs_queue_open gauge
			dibs_queue_open{category="mail",queue="post"} 3
			# HELP dibs_queue_out Items that are at workers.
			# TYPE dibs_queue_out gauge
			dibs_queue_out{category="mail",queue="post"} 1
			# HELP dibs_queue_waiting 1 if there are items that no worker has met yet.
			# TYPE dibs_queue_waiting gauge
			dibs_queue_waiting{category="mail",queue="post"} 1
			# HELP dibs_queues_up 1 if the store could be asked for its queues.
			# TYPE dibs_queues_up gauge
			dibs_queues_up 1
		`), "dibs_queue_dead", "dibs_queue_due", "dibs_queue_held", "dibs_queue_later", "dibs_queue_oldest_seconds", "dibs_queue_open",
			"dibs_queue_out", "dibs_queue_waiting", "dibs_queues_up"))
		problems, err := testutil.GatherAndLint(registry)
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}

// The streams of a saga's category are the items of its queue.
func TestAScrapeShowsSagas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		trip := testkit.Must(saga.New(store, "trip", func(r *saga.Run, _ string) (string, error) {
			return "", r.Sleep("rest", time.Hour)
		}, nil, &saga.Config{Logger: logger.Silent()}))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- trip.Run(ctx) }()
		for _, id := range []string{"1", "2", "3"} {
			testkit.Must(trip.Begin(t.Context(), id, "OPO"))
		}
		time.Sleep(time.Minute)
		testkit.Must(testkit.Must(saga.NewOperator(store, "trip:saga", "ann")).Suspend(t.Context(), "2", "a strike"))
		time.Sleep(time.Minute)
		stop()
		require.NoError(t, <-ended)

		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(testkit.Must(dibsprom.NewQueues(store))))
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
			# HELP dibs_queue_later Items that are offered at a time, which may have come.
			# TYPE dibs_queue_later gauge
			dibs_queue_later{category="trip:saga",queue="trip:saga"} 2
			# HELP dibs_queue_open Items that a worker has met and that are neither finished nor dead: out, later, held and suspended.
			# TYPE dibs_queue_open gauge
			dibs_queue_open{category="trip:saga",queue="trip:saga"} 3
			# HELP dibs_queue_suspended Suspended items: sagas that a person, a message or their time has to bring back.
			# TYPE dibs_queue_suspended gauge
			dibs_queue_suspended{category="trip:saga",queue="trip:saga"} 1
		`), "dibs_queue_later", "dibs_queue_open", "dibs_queue_suspended"))
	})
}

// A troubled store's queues cannot be read.
type troubled struct {
	*memory.Driver
	err error
}

func (d *troubled) Queues(ctx context.Context) ([]queuing.Status, error) {
	if d.err != nil {
		return nil, d.err
	}
	return d.Driver.Queues(ctx)
}

func TestAScrapeHasNoQueuesWithoutTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := &troubled{Driver: memory.New()}
		store := testkit.Must(messagestore.New(driver, nil))
		testkit.Must(testkit.Must(queue.New(store, "mail", nil)).Receive(t.Context(), 1, nil))
		metrics := testkit.Must(dibsprom.NewQueues(store))
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(metrics))
		whole := testutil.CollectAndCount(metrics)
		require.Greater(t, whole, 1)

		driver.err = errors.New("no store")
		time.Sleep(time.Minute)
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
			# HELP dibs_queues_up 1 if the store could be asked for its queues.
			# TYPE dibs_queues_up gauge
			dibs_queues_up 0
		`)))

		driver.err = nil
		time.Sleep(time.Minute)
		require.Equal(t, whole, testutil.CollectAndCount(metrics))
	})
}

func TestAStoreWithoutQueuesIsRefused(t *testing.T) {
	t.Parallel()
	_, err := dibsprom.NewQueues(nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = dibsprom.NewQueues(testkit.Must(messagestore.New(struct{ messagestore.Driver }{memory.New()}, nil)))
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}
