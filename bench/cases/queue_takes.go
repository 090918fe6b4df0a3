package cases

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/internal/queuing"
)

// takeItems is how many items a take reserves, while it completes the items of the take before.
const takeItems = 100

// The names of the ways to take.
const (
	underSnapshot      = "Dibs, a snapshot held"
	keyedUnderSnapshot = "Dibs, 1,000 keys, a snapshot held"
	ofBacklog          = "Dibs, a backlog"
)

func takesUnderSnapshot() measure.Case {
	return measure.Case{
		Name:  "queue/take/snapshot",
		Shows: "Take an item and complete another, in calls of 100, after a while in which a snapshot was held or was not",
		Contenders: []measure.Contender{
			{Name: dibs, Run: takes(0, false, false)},
			{Name: underSnapshot, Run: takes(0, true, false)},
			{Name: dibsKeyed, Run: takes(queueKeys, false, false)},
			{Name: keyedUnderSnapshot, Run: takes(queueKeys, true, false)},
		},
		Goals: []measure.Goal{
			{Metric: measure.Least, Of: underSnapshot, To: dibs, AtMost: 1.5},
			{Metric: measure.Least, Of: keyedUnderSnapshot, To: dibsKeyed, AtMost: 1.5},
		},
		LongOnly: true,
	}
}

func takesOfBacklog() measure.Case {
	return measure.Case{
		Name:       "queue/take/backlog",
		Shows:      "Take an item and complete another, in calls of 100, with nothing else waiting and with a backlog",
		Contenders: []measure.Contender{{Name: dibs, Run: takes(0, false, false)}, {Name: ofBacklog, Run: takes(0, false, true)}},
		Goals:      []measure.Goal{{Metric: measure.Least, Of: ofBacklog, To: dibs, AtMost: 1.15}},
		LongOnly:   true,
	}
}

// An itemTaker calls a driver as the workers of a process do.
type itemTaker struct {
	queue    dibsQueue
	driver   queuing.Driver
	of       queuing.Queue
	finishes []queuing.Finish
	random   *rand.Rand
	finished int64
}

// take inserts items, and times the call that takes as many and completes the last.
func (t *itemTaker) take(ctx context.Context, keys int) (time.Duration, error) {
	if err := t.queue.insert(ctx, takeItems, keys, t.random); err != nil {
		return 0, err
	}
	return t.call(ctx, takeItems)
}

func (t *itemTaker) call(ctx context.Context, want int) (time.Duration, error) {
	began := time.Now()
	taken, err := t.driver.QueueTake(ctx, queuing.Take{
		Queue: t.of, Policy: queuing.Policy{MaxFailures: 20}, Session: 1, Lease: time.Hour, Want: want, Finishes: t.finishes,
	})
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	for _, told := range taken.Endings {
		if told != queuing.Done {
			return 0, fmt.Errorf("a delivery ended as %c", told)
		}
	}
	t.finished += int64(len(t.finishes))
	t.finishes = t.finishes[:0]
	for _, item := range taken.Items {
		t.finishes = append(t.finishes, queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Complete})
	}
	return took, nil
}

// takes has takes made for a while, and times some more.
func takes(keys int, held, backlog bool) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		var waiting int64
		if backlog {
			if waiting = cell.Backlog; waiting == 0 {
				waiting = size[int64](cell, 1000, 100_000, 1_000_000)
			}
		}
		s, url, err := openBacklog(ctx, cell, waiting)
		if err != nil {
			return err
		}
		driver, err := s.Driver()
		if err != nil {
			return err
		}
		q := newDibsQueue(s.Store, queueWorkers)
		t := &itemTaker{queue: q, driver: driver.(queuing.Driver), of: queuing.Queue{Name: q.Name(), Category: q.Category()}, random: cell.Rand(0)} //nolint:errcheck,forcetypeassert // New has seen it
		if held {
			if err := holdSnapshot(ctx, cell, url); err != nil {
				return err
			}
		}
		if err := t.goOn(ctx, cell, keys, backlog); err != nil {
			return err
		}
		times := make([]time.Duration, size(cell, 3, 100, 300))
		err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
			for i := range times {
				var err error
				if times[i], err = t.take(ctx, keys); err != nil {
					return 0, err
				}
				cell.Observe(times[i])
			}
			return int64(len(times)) * takeItems, nil
		})
		if err != nil {
			return err
		}
		cell.Set(measure.Least, slices.Min(times).Seconds()/takeItems)
		for len(t.finishes) > 0 {
			if _, err := t.call(ctx, 0); err != nil {
				return err
			}
		}
		completed, err := q.completed(ctx)
		return errors.Join(err, cell.Check("completed items", completed, t.finished))
	}
}

// goOn takes for a while: as long as a snapshot is held, or for a short time with a backlog.
func (t *itemTaker) goOn(ctx context.Context, cell *measure.Cell, keys int, backlog bool) error {
	during := cell.Held
	if during == 0 {
		during = size(cell, 50*time.Millisecond, 2*time.Second, 30*time.Second)
	}
	if backlog {
		during = min(during, 2*time.Second)
	}
	for end := time.Now().Add(during); time.Now().Before(end); {
		if _, err := t.take(ctx, keys); err != nil {
			return err
		}
	}
	return nil
}

// holdSnapshot has a transaction open until the cell is over.
func holdSnapshot(ctx context.Context, cell *measure.Cell, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	cell.Cleanup(func(ctx context.Context) error { return conn.Close(ctx) })
	_, err = conn.Exec(ctx, "begin isolation level repeatable read; select count(*) from dibs.queue_heads")
	return err
}
