package queue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// ReceiveOpts change a call of [Queue.Receive]. Nil means all defaults.
type ReceiveOpts struct {
	// Wait is how long the call waits for an item, up to 15 minutes. Waiting calls of one Queue are
	// served in the order in which they came, and several Queues take turns. However many calls of
	// one Queue wait, they cost the store as much as one. One that brings settlements while others wait stands in line
	// from when these are done. One in the function of a transaction of the store stands in no line.
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

	// ID names the call, so that you can repeat it if its answer is lost on the way to you, also by
	// another process: each time with the same ID, and an Attempt that is one higher. The repeated
	// call returns what earlier attempts have reserved and not given back, in the order of
	// insertion: up to n jobs, and it gives back the rest; it reserves others only if there are
	// none. Use a new, random ID for each call, and each attempt once. Whatever the call of an
	// earlier attempt still does, it can neither end nor give back those jobs, and the lost answer
	// is not a failure of any item. An earlier attempt whose VisibilityTimeout has passed has
	// nothing.
	//
	// Defaults to none: the call cannot be repeated.
	ID uuid.UUID

	// Attempt is how often the call with this ID was made before, up to 100.
	//
	// Defaults to 0.
	Attempt int

	// RepeatOnly is for a call that is repeated to give back what earlier attempts have reserved:
	// it reserves no others. It needs an Attempt, and does not wait.
	RepeatOnly bool
}

// Receive reserves up to n items, 1 to 1,000, and returns their jobs as soon as it has one. If no
// item comes within the time to wait, it returns no jobs and no error. If ctx ends, it gives back
// items that were reserved meanwhile, without a failure. If the store fails while calls of the
// process wait, all of them return its error.
func (q *Queue) Receive(ctx context.Context, n int, opts *ReceiveOpts) ([]*Job, error) {
	_, jobs, err := q.SettleAndReceive(ctx, nil, n, opts)
	return jobs, err
}

// SettleAndReceive is [Queue.Settle] of 0 to 1,000 settlements and then [Queue.Receive], in one
// call of the store. A worker that ends its last jobs as it gets the next ones makes half the
// calls.
//
// The settlements are done first, before any wait, and they stay done whatever becomes of the rest.
// If outcomes is nil, it is not known whether they were done; otherwise it has an outcome for each,
// even with an error. You may repeat the call with the same settlements.
func (q *Queue) SettleAndReceive(ctx context.Context, settlements []Settlement, n int, opts *ReceiveOpts) (outcomes []error, jobs []*Job, err error) {
	if err := q.use(ctx); err != nil {
		return nil, nil, err
	}
	if opts == nil {
		opts = &ReceiveOpts{}
	}
	lease := opts.VisibilityTimeout
	if lease == 0 {
		lease = 30 * time.Second
	}
	finishes, err := finishesOf(settlements, 0)
	err = errors.Join(
		checkCount("n", n, 1), q.refuseParked(), checkDuration("Wait", opts.Wait, 0, queuing.MaxWait),
		checkDuration("VisibilityTimeout", lease, queuing.MinLease, queuing.MaxLease), err,
	)
	if opts.Attempt < 0 || opts.Attempt > queuing.MaxResume {
		err = errors.Join(err, messagestore.NewInvalidError("Attempt", opts.Attempt, fmt.Sprintf("must be between 0 and %d", queuing.MaxResume)))
	}
	if opts.Attempt > 0 && opts.ID == uuid.Nil {
		err = errors.Join(err, messagestore.NewInvalidError("Attempt", opts.Attempt, "must be 0 without an ID"))
	}
	if opts.RepeatOnly && (opts.Attempt == 0 || opts.Wait != 0) {
		err = errors.Join(err, messagestore.NewInvalidError("RepeatOnly", true, "must come with an Attempt of 1 or more, and without a Wait"))
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, nil, q.fail("receive", err)
	}
	t := queuing.Take{Queue: q.of, Session: work.NewSession(), Lease: lease, Want: n}
	if q.remote != nil {
		t.Finishes = finishes
		taken, err := q.remote.Receive(ctx, t, queuing.Repeat{ID: opts.ID, Attempt: opts.Attempt, Only: opts.RepeatOnly}, opts.Wait)
		return outcomesOf(taken.Endings), q.jobs(taken.Items, 0, lease), q.fail("receive", err)
	}
	if opts.ID != uuid.Nil {
		t.Session = sessionOf(opts.ID, opts.Attempt)
		for earlier := range opts.Attempt {
			t.Resume = append(t.Resume, sessionOf(opts.ID, earlier))
		}
	}
	var endings []queuing.Ending
	if parts := apart(finishes, func(f queuing.Finish) messagestore.GlobalPosition { return f.Position }); len(parts) > 1 {
		t.Finishes = parts[len(parts)-1]
		if endings, err = q.finishAll(ctx, finishes[:len(finishes)-len(t.Finishes)]); err != nil {
			return nil, nil, q.fail("receive", err)
		}
	} else {
		t.Finishes = finishes
	}
	a := asking{Queue: q, take: t, repeatOnly: opts.RepeatOnly, endings: endings}
	items, err := a.receive(ctx, opts.Wait)
	if len(settlements) > 0 && len(a.endings) == len(settlements) {
		outcomes = outcomesOf(a.endings)
	}
	return outcomes, q.jobs(items, t.Session, lease), q.fail("receive", err)
}

// sessionOf returns the session of an attempt at a call. Nobody who does not know the id can guess
// it.
func sessionOf(id uuid.UUID, attempt int) int64 {
	sum := sha256.Sum256(append(id[:], byte(attempt)))
	return int64(binary.BigEndian.Uint64(sum[:])>>2) + 1 //nolint:gosec // of 62 bits
}

func (q *Queue) jobs(items []queuing.Taking, session int64, lease time.Duration) []*Job {
	if len(items) == 0 {
		return nil
	}
	jobs, all := make([]*Job, len(items)), &work.Notes{}
	for i, item := range items {
		session := cmp.Or(item.Session, session)
		jobs[i] = &Job{
			Message: item.Message, Failures: item.Failures, Deliveries: item.Version,
			queue: q, delivery: item.Delivery(), sessions: func() []int64 { return []int64{session} }, lease: lease, notes: all, committed: &atomic.Bool{},
		}
		var ended atomic.Bool
		jobs[i].lost = ended.Load
		jobs[i].end = func(ctx context.Context, f queuing.Finish, _ error) (queuing.Ending, error) {
			f.Session = session
			endings, err := q.finishAll(ctx, []queuing.Finish{f})
			if err != nil {
				return 0, err
			}
			if endings[0] != queuing.Open {
				ended.Store(true)
				all.Ended(f.Delivery)
			}
			return endings[0], nil
		}
	}
	return jobs
}
