package cases

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// The category and the sizes of the cases that insert items into a queue, take and complete them.
const (
	itemCategory messagestore.Category = "transfer"

	// queueWorkers is how many items are worked on at a time, and how many callers insert.
	queueWorkers = 64

	// queueKeys is how many keys keyed items have.
	queueKeys = 1000
)

// The names of contenders.
const (
	dibsKeyed = "Dibs, 1,000 keys"
	river     = "River"
	pgmqShape = "pgmq's shape"
	sqliteTen = "Dibs, ten an insert"
	sqliteOne = "Dibs, one an insert"
)

// Queue returns the cases of inserting items, taking and completing them.
func Queue() []measure.Case {
	cycles := func(batch int, overPGMQ, overRiver float64) measure.Case {
		return measure.Case{
			Name:  fmt.Sprintf("queue/x%d/64-workers", batch),
			Shows: fmt.Sprintf("Insert, take and complete items, %s an insert, 64 workers in one process", plural(batch, "item")),
			Contenders: []measure.Contender{
				{Name: dibs, Run: cycleOf(openQueue, batch, 0)},
				{Name: dibsKeyed, Run: cycleOf(openQueue, batch, queueKeys)},
				{Name: pgmqShape, Run: cyclePGMQ(batch)},
				{Name: river, Run: cycleOf(openRiverQueue, batch, 0)},
			},
			Goals: []measure.Goal{
				{Metric: measure.Rate, Of: dibs, To: pgmqShape, AtLeast: overPGMQ},
				{Metric: measure.Rate, Of: dibs, To: river, AtLeast: overRiver},
				{Metric: measure.Rate, Of: dibsKeyed, To: dibs, AtLeast: 0.8},
				{Metric: measure.WAL, Of: dibs, AtMost: 1050},
			},
		}
	}
	return []measure.Case{
		cycles(10, 3, 2.5), cycles(1, 5, 4),
		{
			Name:  "queue/latency/200-a-second",
			Shows: "From before an insert to its handler's call, 200 items a second",
			Contenders: []measure.Contender{
				{Name: dibs, Run: queueLatency}, {Name: river, Run: riverLatency},
			},
			Goals: []measure.Goal{{Metric: measure.P99, Of: dibs, AtMost: 0.004}},
		},
		{
			Name:  "queue/sqlite/64-workers",
			Shows: "SQLite: insert, take and complete items, ten an insert and one, 64 workers",
			Contenders: []measure.Contender{
				{Name: sqliteTen, Run: cycleOf(openSQLiteQueue, 10, 0)}, {Name: sqliteOne, Run: cycleOf(openSQLiteQueue, 1, 0)},
			},
			Goals: []measure.Goal{{Metric: measure.Rate, Of: sqliteTen, AtLeast: 2000}, {Metric: measure.Rate, Of: sqliteOne, AtLeast: 2000}},
		},
		takesUnderSnapshot(), takesOfBacklog(),
	}
}

// A queued is a queue that is worked on while callers insert.
type queued interface {
	// insert adds items, with keys from the source if keys is not 0.
	insert(ctx context.Context, items, keys int, source *rand.Rand) error

	// work calls handled for each item, until the context ends and all are recorded as completed.
	work(ctx context.Context, handled func()) error

	// completed is how many are recorded as completed.
	completed(ctx context.Context) (int64, error)
}

// cycleOf has callers insert items, each as many at a time as are one batch, and wait until as many
// are handled.
func cycleOf(open func(context.Context, *measure.Cell) (queued, error), batch, keys int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		q, err := open(ctx, cell)
		if err != nil {
			return err
		}
		done, err := cycle(ctx, cell, q, queueWorkers, batch, keys)
		if err != nil {
			return err
		}
		completed, err := q.completed(ctx)
		return errors.Join(err, cell.Check("completed items", completed, done))
	}
}

// cycle returns how many items were handled.
func cycle(ctx context.Context, cell *measure.Cell, q queued, callers, batch, keys int) (done int64, err error) {
	group, ctx := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(ctx)
	defer stop()
	// The items that were handled and that no caller has waited for.
	const most = 1 << 40
	handled := semaphore.NewWeighted(most)
	if err := handled.Acquire(ctx, most); err != nil {
		return 0, err
	}
	group.Go(func() error { return q.work(working, func() { handled.Release(1) }) })
	group.Go(func() error {
		defer stop()
		sources := randoms(cell, callers)
		done, err = cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
			if err := q.insert(ctx, batch, keys, sources[caller]); err != nil {
				return 0, err
			}
			return batch, handled.Acquire(ctx, int64(batch))
		})
		return err
	})
	return done, group.Wait()
}

func newItem() transferred {
	body, _ := command(newKey()).Body.(transferred)
	return body
}

// A dibsQueue is package queue over a store.
type dibsQueue struct {
	*queue.Queue
	workers int
	lease   time.Duration // 0 for the default
}

func newDibsQueue(store *messagestore.Store, workers int) dibsQueue {
	return dibsQueue{testkit.Must(queue.New(store, itemCategory, &queue.Config{Logger: logger.Silent()})), workers, 0}
}

func openQueue(ctx context.Context, cell *measure.Cell) (queued, error) {
	s, err := openQueueStore(ctx, cell)
	if err != nil {
		return nil, err
	}
	return newDibsQueue(s.Store, queueWorkers), nil
}

// openQueueStore opens a store in a database of the cell's, until the cell is over.
func openQueueStore(ctx context.Context, cell *measure.Cell) (*dibsStore, error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return nil, err
	}
	return openQueueStoreAt(ctx, cell, url)
}

func openQueueStoreAt(ctx context.Context, cell *measure.Cell, url string) (*dibsStore, error) {
	s, err := openDibsStore(ctx, url)
	if err != nil {
		return nil, err
	}
	cell.Cleanup(func(context.Context) error {
		defer s.close()
		return s.Close() // the connection that listens ends before its database does
	})
	return s, nil
}

func (q dibsQueue) insert(ctx context.Context, items, keys int, source *rand.Rand) error {
	entries := make([]queue.Entry, items)
	for i := range entries {
		entries[i].Body = newItem()
		if keys > 0 {
			entries[i].Opts = &queue.InsertOpts{Key: fmt.Sprint(source.IntN(keys))}
		}
	}
	if items == 1 {
		_, err := q.Insert(ctx, entries[0].Body, entries[0].Opts)
		return err
	}
	_, err := q.InsertMany(ctx, entries...)
	return err
}

func (q dibsQueue) work(ctx context.Context, handled func()) error {
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[transferred]) error {
		handled()
		return nil
	})
	return q.Work(ctx, mux, &queue.WorkConfig{MaxWorkers: q.workers, Lease: q.lease})
}

func (q dibsQueue) completed(ctx context.Context) (int64, error) {
	status, err := q.Status(ctx)
	return status.Finished, err
}
