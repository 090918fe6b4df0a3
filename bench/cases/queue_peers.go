package cases

import (
	"context"
	_ "embed" // for pgmqShapeSQL
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	riverqueue "github.com/riverqueue/river"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
)

//go:embed pgmq_shape.sql
var pgmqShapeSQL string

// pgmqInvisible is for how many seconds an item that was read is not read again.
const pgmqInvisible = 60

// cyclePGMQ makes each caller send items, read as many, and delete them, so that no worker waits or
// looks for items.
func cyclePGMQ(batch int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		url, err := database(ctx, cell, server.Empty)
		if err != nil {
			return err
		}
		pool, err := openPool(ctx, url)
		if err != nil {
			return err
		}
		defer pool.Close()
		if _, err := pool.Exec(ctx, pgmqShapeSQL); err != nil {
			return err
		}
		sent := make([]int64, queueWorkers) // a number each, in no caller's way
		done, err := cell.Callers(ctx, queueWorkers, func(ctx context.Context, caller int) (int, error) {
			if err := sendPGMQ(ctx, pool, batch); err != nil {
				return 0, err
			}
			sent[caller] += int64(batch)
			return takePGMQ(ctx, pool, batch)
		})
		if err != nil {
			return err
		}
		var all, left int64
		for _, n := range sent {
			all += n
		}
		err = pool.QueryRow(ctx, "select count(*) from pgmq_shape.q_items").Scan(&left)
		return errors.Join(err, cell.Check("items that were deleted", all-left, done))
	}
}

func sendPGMQ(ctx context.Context, pool *pgxpool.Pool, n int) error {
	items := make([]string, n)
	for i := range items {
		encoded, err := json.Marshal(newItem())
		if err != nil {
			return err
		}
		items[i] = string(encoded)
	}
	_, err := pool.Exec(ctx, "select pgmq_shape.send_batch('items', $1::text[]::jsonb[])", items)
	return err
}

// takePGMQ reads up to n items, and deletes them.
func takePGMQ(ctx context.Context, pool *pgxpool.Pool, n int) (int, error) {
	rows, err := pool.Query(ctx, "select msg_id, message::text from pgmq_shape.read('items', $1, $2)", pgmqInvisible, n) //nolint:rowserrcheck // ForEachRow returns it
	if err != nil {
		return 0, err
	}
	var ids []int64
	var id int64
	var encoded string
	_, err = pgx.ForEachRow(rows, []any{&id, &encoded}, func() error {
		ids = append(ids, id)
		var item transferred
		return json.Unmarshal([]byte(encoded), &item)
	})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = pool.Exec(ctx, "select pgmq_shape.delete('items', $1)", ids)
	return len(ids), err
}

// A riverQueue is River with the settings of River's benchmark.
type riverQueue struct {
	client  *riverqueue.Client[pgx.Tx]
	pool    *pgxpool.Pool
	workers *callingWorker
}

// A callingWorker calls a function for each job.
type callingWorker struct {
	riverqueue.WorkerDefaults[job]
	handled func()
}

// Work does nothing else.
func (w *callingWorker) Work(context.Context, *riverqueue.Job[job]) error {
	w.handled()
	return nil
}

func openRiverQueue(ctx context.Context, cell *measure.Cell) (queued, error) {
	q := &riverQueue{workers: &callingWorker{}}
	workers := riverqueue.NewWorkers()
	riverqueue.AddWorker(workers, q.workers)
	var err error
	q.client, q.pool, err = openRiver(ctx, cell, riverConfig(workers))
	return q, err
}

// riverConfig has the settings of River's own benchmark.
func riverConfig(workers *riverqueue.Workers) *riverqueue.Config {
	return &riverqueue.Config{
		Workers: workers, FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Queues: map[string]riverqueue.QueueConfig{riverqueue.QueueDefault: {MaxWorkers: 2000}},
	}
}

func (q *riverQueue) insert(ctx context.Context, items, _ int, _ *rand.Rand) error {
	if items == 1 {
		_, err := q.client.Insert(ctx, newJob(), nil)
		return err
	}
	jobs := make([]riverqueue.InsertManyParams, items)
	for i := range jobs {
		jobs[i].Args = newJob()
	}
	_, err := q.client.InsertManyFast(ctx, jobs)
	return err
}

func (q *riverQueue) work(ctx context.Context, handled func()) error {
	q.workers.handled = handled
	if err := q.client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	// A job is done when that is recorded.
	return q.client.Stop(context.WithoutCancel(ctx))
}

func (q *riverQueue) completed(ctx context.Context) (int64, error) {
	return countJobs(ctx, q.pool, "completed")
}
