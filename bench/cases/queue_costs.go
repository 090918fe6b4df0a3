package cases

import (
	"context"
	"encoding/json"
	"errors"

	riverqueue "github.com/riverqueue/river"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
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
	store, err := openSQLite(ctx, cell, nil)
	if err != nil {
		return nil, err
	}
	return newDibsQueue(store, queueWorkers), nil
}
