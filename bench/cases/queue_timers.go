package cases

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/queue"
)

// timers returns the case of items with a date.
func timers() measure.Case {
	return measure.Case{
		Name:       "queue/timers/1,000-a-second",
		Shows:      "From the date of an item to its handler's call, 1,000 items a second",
		Contenders: []measure.Contender{{Name: dibs, Run: queueTimers}},
		Goals:      []measure.Goal{{Metric: measure.P99, Of: dibs, AtMost: 0.020}},
	}
}

// A timer is an item, with its date.
type timer struct{ At time.Time }

// MessageType implements messagestore.Body.
func (timer) MessageType() string { return "Timer" }

// queueTimers inserts items for one second after the other. The server is on the same machine, and has its clock.
func queueTimers(ctx context.Context, cell *measure.Cell) error {
	const perSecond = 1000
	seconds := size(cell, 1, 3, 10)
	s, err := openQueueStore(ctx, cell)
	if err != nil {
		return err
	}
	q := newDibsQueue(s.Store, queueWorkers)
	var fired, early atomic.Int64
	all := int64(perSecond * seconds)
	mux := handler.New()
	handler.On(mux, func(_ context.Context, m handler.Message[timer]) error {
		late := time.Since(m.Body.At)
		if late < 0 {
			early.Add(1)
		}
		cell.Observe(late)
		fired.Add(1)
		return nil
	})
	group, ctx := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(ctx)
	defer stop()
	group.Go(func() error { return q.Work(working, mux, &queue.WorkConfig{MaxWorkers: queueWorkers}) })
	group.Go(func() error {
		defer stop()
		return cell.Once(ctx, func(ctx context.Context) (int64, error) {
			from := time.Now().Add(time.Second)
			for second := range seconds {
				entries := make([]queue.Entry, perSecond)
				for i := range entries {
					at := from.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Second/perSecond)
					entries[i] = queue.Entry{Body: timer{at}, Opts: &queue.InsertOpts{ScheduledAt: at}}
				}
				if _, err := q.InsertMany(ctx, entries...); err != nil {
					return 0, err
				}
			}
			err := until(ctx, "all timers have fired", func() (bool, any, error) { return fired.Load() >= all, fired.Load(), nil })
			return all, err
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	completed, err := q.completed(context.WithoutCancel(ctx))
	return errors.Join(err, cell.Check("completed timers", completed, all), cell.Check("timers not early", all-early.Load(), all))
}
