package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	riverqueue "github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/queue"
)

// queueLatency has inserts and the handler share a store.
func queueLatency(ctx context.Context, cell *measure.Cell) error {
	s, err := openQueueStore(ctx, cell)
	if err != nil {
		return err
	}
	q := newDibsQueue(s.Store, queueWorkers)
	insert := func(ctx context.Context, m sent) error {
		_, err := q.Insert(ctx, m, nil)
		return err
	}
	return latency(ctx, cell, insert, func(ctx context.Context, hand func(json.RawMessage) error) error {
		mux := handler.New()
		handler.On(mux, func(_ context.Context, m handler.Message[sent]) error { return hand(m.Data) })
		return q.Work(ctx, mux, &queue.WorkConfig{MaxWorkers: queueWorkers})
	})
}

// latency times items from before their insert to their handler.
func latency(ctx context.Context, cell *measure.Cell, insert func(context.Context, sent) error, l listener) error {
	if err := insert(ctx, sent{}); err != nil {
		return err
	}
	items := wakeMessages(cell)
	seen, err := listen(ctx, cell, l, items, func(wait func() error) error {
		return cell.Once(ctx, func(ctx context.Context) (int64, error) {
			return items, errors.Join(send(ctx, cell, items, insert), wait())
		})
	})
	return errors.Join(err, cell.Check("items handled", seen, items))
}

// A sentJob is River's.
type sentJob struct{ sent }

// Kind is River's name for the type.
func (sentJob) Kind() string { return "Sent" }

type sentWorker struct {
	riverqueue.WorkerDefaults[sentJob]
	hand func(json.RawMessage) error
}

// Work hands the job's data on.
func (w *sentWorker) Work(_ context.Context, j *riverqueue.Job[sentJob]) error {
	return w.hand(j.EncodedArgs)
}

func riverLatency(ctx context.Context, cell *measure.Cell) error {
	w := &sentWorker{}
	workers := riverqueue.NewWorkers()
	riverqueue.AddWorker(workers, w)
	client, _, err := openRiver(ctx, cell, riverConfig(workers))
	if err != nil {
		return err
	}
	insert := func(ctx context.Context, m sent) error {
		_, err := client.Insert(ctx, sentJob{m}, nil)
		return err
	}
	return latency(ctx, cell, insert, func(ctx context.Context, hand func(json.RawMessage) error) error {
		w.hand = hand
		if err := client.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		<-ctx.Done()
		return client.Stop(context.WithoutCancel(ctx))
	})
}

// queueIdle has workers wait, in parts of time of which each is with or without WAL.
func queueIdle(ctx context.Context, cell *measure.Cell) error {
	s, err := openQueueStore(ctx, cell)
	if err != nil {
		return err
	}
	q := newDibsQueue(s.Store, queueWorkers)
	if err := q.insert(ctx, 1, 0, nil); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(ctx)
	defer stop()
	q.lease = time.Second
	group.Go(func() error { return q.work(working, func() {}) })
	group.Go(func() error {
		defer stop()
		// Until the item is completed, and the session over that had it.
		err := until(ctx, "the item is finished, and its session over", func() (over bool, state any, err error) {
			var tables string
			err = s.pool.QueryRow(ctx, `select exists (select from dibs.queue_heads where taken = 1) and not exists (select from dibs.queue_open)
				and not exists (select from dibs.queue_sessions),
				format('at %s: heads %s, sessions %s, open %s, log %s', clock_timestamp(), (select json_agg(x) from dibs.queue_heads x),
				(select json_agg(x) from dibs.queue_sessions x), (select json_agg(x) from dibs.queue_open x), (select json_agg(x) from dibs.queue_log x))`).Scan(&over, &tables)
			return over, tables, err
		})
		if err != nil {
			return err
		}
		const parts = 10
		quiet := 0
		err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
			before, err := logged(ctx, s)
			for i := 0; i < parts && err == nil; i++ {
				if err = pause(ctx, size(cell, 20*time.Millisecond, 200*time.Millisecond, time.Second)); err != nil {
					break
				}
				var after int64
				if after, err = logged(ctx, s); after == before {
					quiet++
				}
				before = after
			}
			return parts, err
		})
		if err != nil {
			return err
		}
		t := cell.Tally()
		cell.Set(measure.Cores, (t.ClientCPU+t.ServerCPU).Seconds()/t.Elapsed.Seconds())
		cell.Set(measure.Quiet, float64(quiet)/parts)
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	completed, err := q.completed(context.WithoutCancel(ctx))
	return errors.Join(err, cell.Check("completed items", completed, 1))
}

// logged is how much the server has written to its log.
func logged(ctx context.Context, s *dibsStore) (bytes int64, err error) {
	return bytes, s.pool.QueryRow(ctx, "select (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&bytes)
}

const queueChild = "queue"

// A queueTask is the task of one of several processes.
type queueTask struct {
	URL     string
	Workers int
}

func init() {
	measure.RegisterChild(queueChild, func(ctx context.Context, cell *measure.Cell, args json.RawMessage) error {
		var task queueTask
		if err := json.Unmarshal(args, &task); err != nil {
			return err
		}
		s, err := openQueueStoreAt(ctx, cell, task.URL)
		if err != nil {
			return err
		}
		q := newDibsQueue(s.Store, task.Workers)
		var handled atomic.Int64
		group, ctx := errgroup.WithContext(ctx)
		working, stop := context.WithCancel(ctx)
		defer stop()
		group.Go(func() error { return q.work(working, func() { handled.Add(1) }) })
		group.Go(func() error {
			defer stop()
			if err := until(ctx, "an item is handled", func() (bool, any, error) { return handled.Load() > 0, "none", nil }); err != nil {
				return err
			}
			return cell.Once(ctx, func(ctx context.Context) (int64, error) {
				before := handled.Load()
				err := pause(ctx, cell.Time)
				return handled.Load() - before, err
			})
		})
		err = group.Wait()
		cell.Set(handledInAll, float64(handled.Load()))
		return err
	})
}

// handledInAll is how many items a process has handled, also in the time before and after its figures count.
const handledInAll measure.Metric = "handled in all"

func queueProcesses(ctx context.Context, cell *measure.Cell) error {
	const processes = 4
	// More than the processes can do while they start, work and stop.
	waiting := size[int64](cell, 20_000, 150_000, 150_000) + int64(cell.Time.Seconds()*40_000)
	s, url, err := openBacklog(ctx, cell, waiting)
	if err != nil {
		return err
	}
	tasks := make([]any, processes)
	for i := range tasks {
		tasks[i] = queueTask{url, queueWorkers / processes}
	}
	tallies, err := cell.Processes(ctx, queueChild, tasks, nil)
	if err != nil {
		return err
	}
	var handled, most, least, sum int64
	for i, t := range tallies {
		handled += int64(t.Extra[handledInAll])
		sum += t.Units
		if most = max(most, t.Units); i == 0 || t.Units < least {
			least = t.Units
		}
	}
	cell.Set(measure.Spread, float64(most-least)*processes/float64(sum))
	status, err := newDibsQueue(s.Store, 1).Status(ctx)
	if err == nil && !status.Waiting {
		err = fmt.Errorf("%d items were too few", waiting)
	}
	return errors.Join(err, cell.Check("completed items", status.Finished, handled))
}

// openBacklog opens a store in a database of the cell's in which items wait.
func openBacklog(ctx context.Context, cell *measure.Cell, items int64) (*dibsStore, string, error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return nil, "", err
	}
	s, err := openQueueStoreAt(ctx, cell, url)
	if err != nil {
		return nil, "", err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, "", err
	}
	defer conn.Release()
	const block = 10_000
	for n := int64(0); n < items; n += block {
		rows := make([]row, min(block, items-n))
		for i := range rows {
			id := newID()
			if rows[i], err = encode(itemCategory.Stream(id.String()), messagestore.NoStream, messagestore.Envelope{ID: id, Body: newItem()}); err != nil {
				return nil, "", err
			}
			rows[i].metadata = nil // as an item has none that is inserted
		}
		if err := copyRows(ctx, conn.Conn().PgConn(), server.Dibs, rows); err != nil {
			return nil, "", err
		}
	}
	_, err = conn.Exec(ctx, "vacuum (analyze) dibs.messages")
	return s, url, err
}

func openSQLiteQueue(ctx context.Context, cell *measure.Cell) (queued, error) {
	dir, err := os.MkdirTemp(cell.Servers.Dir(), "dibs-bench-sqlite.")
	if err != nil {
		return nil, err
	}
	cell.Cleanup(func(context.Context) error { return os.RemoveAll(dir) })
	driver, err := sqlite.Open(ctx, filepath.Join(dir, "messages.db"), nil)
	if err != nil {
		return nil, err
	}
	store := must.New(messagestore.New(driver, &messagestore.Config{Logger: logger.Silent()}))
	cell.Cleanup(func(context.Context) error { return store.Close() })
	return newDibsQueue(store, queueWorkers), nil
}
