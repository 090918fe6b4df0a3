package queue

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// ReceiveOpts change a call of [Queue.Receive]. Nil means all defaults.
type ReceiveOpts struct {
	// Wait is how long the call waits for an item, up to 15 minutes. Waiting calls are served in
	// the order in which they came, across processes.
	//
	// Defaults to 0: it does not wait.
	Wait time.Duration

	// VisibilityTimeout is how long you have the jobs of the call: 10 ms to 24 hours. After that
	// each is delivered again, unless you ended it or extended its time. If only one job of the
	// call was left, this counts as its failure. A job to which it happens twice is delivered
	// alone.
	//
	// Defaults to 30 seconds.
	VisibilityTimeout time.Duration
}

// receivePoll is how often a waiting call looks for items without a wake-up.
const receivePoll = 250 * time.Millisecond

// Receive reserves up to n items, 1 to 1,000, and returns their jobs as soon as it has one. If no
// item comes within the time to wait, it returns no jobs and no error. If ctx ends, it gives back
// items that were reserved meanwhile.
func (q *Queue) Receive(ctx context.Context, n int, opts *ReceiveOpts) ([]*Job, error) {
	if err := q.use(); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = &ReceiveOpts{}
	}
	lease := opts.VisibilityTimeout
	if lease == 0 {
		lease = 30 * time.Second
	}
	err := errors.Join(q.refuseParked(), checkDuration("Wait", opts.Wait, 0, queuing.MaxWait), checkDuration("VisibilityTimeout", lease, queuing.MinLease, queuing.MaxLease))
	if n < 1 || n > queuing.MaxItems {
		err = errors.Join(messagestore.NewInvalidError("n", n, fmt.Sprintf("must be between 1 and %d", queuing.MaxItems)), err)
	}
	if err != nil {
		return nil, q.fail("receive", err)
	}
	jobs, err := q.receive(ctx, n, opts.Wait, lease)
	return jobs, q.fail("receive", err)
}

func (q *Queue) receive(ctx context.Context, n int, wait, lease time.Duration) ([]*Job, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(wait)
	session := work.NewSession()
	var bell <-chan messagestore.GlobalPosition
	if wait > 0 {
		var stop func()
		bell, stop = q.store.Watch(q.of.Category, receivePoll)
		defer stop()
	}
	t := queuing.Take{Queue: q.of, Policy: q.policy, Session: session, Lease: lease, Want: n}
	for {
		if t.Ticket == 0 {
			t.Wait = max(time.Until(deadline), 0).Truncate(time.Microsecond)
		}
		asked := time.Now()
		taken, err := q.driver.QueueTake(ctx, t)
		if err != nil {
			// Nobody else can have the reserved items, or a place in the line.
			q.source.Leave(ctx, session, time.Now().Add(work.LeaveTimeout))
			return nil, err
		}
		if len(taken.Items) > 0 && time.Since(asked) < lease {
			return q.jobs(taken.Items, session, lease), nil
		}
		if len(taken.Items) > 0 { // by now others may have them
			q.source.Leave(ctx, session, time.Now().Add(work.LeaveTimeout))
			session, taken.Ticket = work.NewSession(), 0
			t.Session, t.Ticket = session, 0
		}
		if taken.Ticket != 0 {
			t.Ticket = taken.Ticket
		}
		left := time.Until(deadline)
		if left <= 0 {
			if t.Ticket != 0 {
				q.source.Leave(ctx, session, time.Now().Add(work.LeaveTimeout))
			}
			return nil, nil
		}
		pause := min(left, receivePoll)
		if taken.Wake >= 0 {
			pause = min(pause, max(taken.Wake, time.Millisecond))
		}
		if taken.More {
			pause = 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-bell:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			q.source.Leave(ctx, session, time.Now().Add(work.LeaveTimeout))
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

func (q *Queue) jobs(items []queuing.Taking, session int64, lease time.Duration) []*Job {
	jobs, all := make([]*Job, len(items)), &work.Notes{}
	for i, item := range items {
		jobs[i] = &Job{
			Message: item.Message, Failures: item.Failures, Deliveries: item.Version,
			queue: q, delivery: item.Delivery(), sessions: func() []int64 { return []int64{session} }, lease: lease, notes: all, committed: &atomic.Bool{},
		}
		var ended atomic.Bool
		jobs[i].lost = ended.Load
		jobs[i].end = func(ctx context.Context, f queuing.Finish, _ error) (queuing.Ending, error) {
			ending, err := q.end(ctx, session, lease, f)
			if err == nil && ending != queuing.Open {
				ended.Store(true)
				all.Ended(f.Delivery)
			}
			return ending, err
		}
	}
	return jobs
}

// end ends one delivery by a call of its own. If its answer is lost, the call is repeated once.
func (q *Queue) end(ctx context.Context, session int64, lease time.Duration, f queuing.Finish) (queuing.Ending, error) {
	t := queuing.Take{Queue: q.of, Policy: q.policy, Session: session, Lease: lease, Finishes: []queuing.Finish{f}}
	taken, err := q.driver.QueueTake(ctx, t)
	if errors.Is(err, messagestore.ErrOutcomeUnknown) && ctx.Err() == nil {
		var o waiting.Outcome
		_ = o.Of(err)
		taken, err = q.driver.QueueTake(ctx, t)
		err = o.Of(err)
	}
	if err == nil && len(taken.Endings) != 1 {
		err = fmt.Errorf("%w: the store returned %d endings for 1", messagestore.ErrOutcomeUnknown, len(taken.Endings))
	}
	if err != nil {
		return 0, err
	}
	return taken.Endings[0], nil
}
