package cases

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime/debug"
	"time"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
)

const (
	sagaChild      = "saga"
	sagaWaitChild  = "saga/wait"
	sagaAfterChild = "saga/after"

	// sagaBlock is how many sagas are started before it is looked whether they wait.
	sagaBlock = 2000
)

// A sagaTask is the task of a process.
type sagaTask struct {
	URL string
	N   int // callers, or sagas
}

func init() {
	for name, do := range map[string]func(ctx context.Context, cell *measure.Cell, task sagaTask) error{
		sagaChild: sagaCalls, sagaWaitChild: sagaWait, sagaAfterChild: sagaAfter,
	} {
		measure.RegisterChild(name, func(ctx context.Context, cell *measure.Cell, args json.RawMessage) error {
			var task sagaTask
			if err := json.Unmarshal(args, &task); err != nil {
				return err
			}
			return do(ctx, cell, task)
		})
	}
}

// sagaProcesses has the callers in so many processes, each with a runner.
func sagaProcesses(n int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		const callers = 63
		url, err := database(ctx, cell, server.Dibs)
		if err != nil {
			return err
		}
		tasks := make([]any, n)
		for i := range tasks {
			tasks[i] = sagaTask{url, callers / n}
		}
		tallies, err := cell.Processes(ctx, sagaChild, tasks, nil)
		if err != nil {
			return err
		}
		var done int64
		for _, t := range tallies {
			done += t.All
		}
		s, err := openQueueStoreAt(ctx, cell, url)
		if err != nil {
			return err
		}
		completed, err := s.completed(ctx)
		return errors.Join(err, cell.Check("completed sagas", completed, done))
	}
}

func sagaCalls(ctx context.Context, cell *measure.Cell, task sagaTask) error {
	s, err := openQueueStoreAt(ctx, cell, task.URL)
	if err != nil {
		return err
	}
	b, err := newBooking(s)
	if err != nil {
		return err
	}
	_, err = b.call(ctx, cell, task.N)
	return err
}

// sagasWait has a process bring many sagas to wait and end as if it were killed, and another process go on with them.
func sagasWait(ctx context.Context, cell *measure.Cell) error {
	task := sagaTask{N: size(cell, 200, 5000, 100_000)}
	var err error
	if task.URL, err = database(ctx, cell, server.Dibs); err != nil {
		return err
	}
	before, err := cell.Process(ctx, sagaWaitChild, task)
	if err != nil {
		return err
	}
	cell.Set(measure.More, before.Extra[measure.More])
	if _, err := cell.Processes(ctx, sagaAfterChild, []any{task}, nil); err != nil {
		return err
	}
	s, err := openQueueStoreAt(ctx, cell, task.URL)
	if err != nil {
		return err
	}
	waiting, err := s.later(ctx)
	return errors.Join(err, cell.Check("sagas that wait", waiting, int64(task.N)))
}

func (s *dibsStore) later(ctx context.Context) (n int64, err error) {
	return n, s.pool.QueryRow(ctx, "select count(*) from dibs.queue_open where state = 'l'").Scan(&n)
}

// sagaWait starts sagas until as many wait. The process then ends at once, as if it were killed: its session has no end.
func sagaWait(ctx context.Context, cell *measure.Cell, task sagaTask) error {
	s, err := openDibsStore(ctx, task.URL)
	if err != nil {
		return err
	}
	b, err := newBooking(s)
	if err != nil {
		return err
	}
	go func() { _ = b.Run(ctx) }() // it does not return
	return cell.Once(ctx, func(ctx context.Context) (int64, error) {
		if err := atOnce(sagaCallers, sagaBlock, func(int) error { return b.book(ctx) }); err != nil {
			return 0, err
		}
		before, err := residentNow()
		if err != nil {
			return 0, err
		}
		for begun := 0; begun < task.N; {
			n := min(sagaBlock, task.N-begun)
			err := atOnce(sagaCallers, n, func(int) error {
				t := newTrip()
				t.To = nowhere
				_, err := b.Begin(ctx, t.ID, t)
				return err
			})
			if err != nil {
				return 0, err
			}
			begun += n
			err = until(ctx, "the sagas wait", func() (bool, any, error) {
				n, err := s.later(ctx)
				return n == int64(begun), n, err
			})
			if err != nil {
				return 0, err
			}
		}
		after, err := residentNow()
		cell.Set(measure.More, float64(max(after-before, 1)))
		return int64(task.N), err
	})
}

// residentNow is how much memory the process has, without what it does not use any more.
func residentNow() (int64, error) {
	debug.FreeOSMemory()
	now, _, err := server.Resident(os.Getpid())
	return now, err
}

// sagaAfter times the first saga of a process.
func sagaAfter(ctx context.Context, cell *measure.Cell, task sagaTask) error {
	return cell.Once(ctx, func(ctx context.Context) (int64, error) {
		began := time.Now()
		s, err := openQueueStoreAt(ctx, cell, task.URL)
		if err != nil {
			return 0, err
		}
		b, err := newBooking(s)
		if err != nil {
			return 0, err
		}
		return 1, b.run(ctx, func(ctx context.Context) error {
			err := b.book(ctx)
			cell.Observe(time.Since(began))
			return err
		})
	})
}
