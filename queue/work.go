package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// WorkConfig changes a call of [Queue.Work]. Nil means all defaults.
type WorkConfig struct {
	// MaxWorkers is how many items the process works on at a time, 1 to 1,000.
	//
	// Defaults to 16.
	MaxWorkers int

	// Prefetch is how many items the process has reserved at most, including the items that it
	// works on: MaxWorkers to 1,000. If it exceeds MaxWorkers, a handler that returns is followed
	// by the next one at once, and one call of the store reserves many items. These are as many as
	// handlers finished in the last 100 ms, so a slow process leaves the rest to others. A process
	// gives back its reserved items when it stops.
	//
	// Defaults to MaxWorkers.
	Prefetch int

	// Timeout ends the context of a handler, 10 ms to 24 hours. A handler that has not returned a
	// Grace later is abandoned: its item is given back as a failure, its place is filled, and it is
	// counted and logged. Its goroutine may go on for ever.
	//
	// Defaults to a minute.
	Timeout time.Duration

	// Grace is how long handlers go on when Work has to end, before their contexts are cancelled,
	// and how long they may take after that; up to 24 hours.
	//
	// Defaults to 10 seconds.
	Grace time.Duration

	// Lease is how long the items of a dead process are kept from others, 100 ms to 24 hours. A
	// live process extends it each third. If it cannot extend the lease, it stops working on the
	// items. A tenth of the lease before the end it cancels the contexts of their handlers with
	// [ErrLost], even if a handler waits for the answer to a call that ends its [Job].
	//
	// Defaults to 10 seconds.
	Lease time.Duration

	// PollInterval is how often an idle process looks for items without a wake-up, 10 ms to an
	// hour.
	//
	// Defaults to 100 milliseconds.
	PollInterval time.Duration

	// MinBackoff and MaxBackoff bound the time after which a failed item is delivered again: it
	// doubles with each failure, and is shortened by a random part of up to a half. MinBackoff is
	// at least 1 ms, and MaxBackoff at most 30 days.
	//
	// They default to a second and an hour.
	MinBackoff, MaxBackoff time.Duration
}

func (c *WorkConfig) complete() error {
	c.MaxWorkers = cmp.Or(c.MaxWorkers, 16)
	c.Prefetch = cmp.Or(c.Prefetch, c.MaxWorkers)
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.PollInterval = cmp.Or(c.PollInterval, 100*time.Millisecond)
	c.MinBackoff = cmp.Or(c.MinBackoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, max(time.Hour, c.MinBackoff))
	const day = 24 * time.Hour
	wrong := []error{
		checkDuration("Timeout", c.Timeout, 10*time.Millisecond, day),
		checkDuration("Grace", c.Grace, 0, day),
		checkDuration("Lease", c.Lease, 100*time.Millisecond, day),
		checkDuration("PollInterval", c.PollInterval, 10*time.Millisecond, time.Hour),
		checkDuration("MinBackoff", c.MinBackoff, time.Millisecond, 30*day),
		checkDuration("MaxBackoff", c.MaxBackoff, c.MinBackoff, 30*day),
	}
	if c.MaxWorkers < 1 || c.MaxWorkers > queuing.MaxItems {
		wrong = append(wrong, messagestore.NewInvalidError("MaxWorkers", c.MaxWorkers, fmt.Sprintf("must be between 1 and %d", queuing.MaxItems)))
	}
	if c.Prefetch != c.MaxWorkers && (c.Prefetch < c.MaxWorkers || c.Prefetch > queuing.MaxItems) {
		wrong = append(wrong, messagestore.NewInvalidError("Prefetch", c.Prefetch, fmt.Sprintf("must be between MaxWorkers and %d", queuing.MaxItems)))
	}
	return errors.Join(wrong...)
}

// Counts are the counts of this process's workers since [New].
type Counts struct {
	Completed int64 // items, skipped ones among them
	Skipped   int64
	Failed    int64 // deliveries that failed
	Buried    int64 // items that died here
	Lost      int64 // deliveries whose end came too late
	Abandoned int64 // handlers that did not return in time
}

// Counts returns the counts of this process's workers.
func (q *Queue) Counts() Counts {
	c := &q.counts
	return Counts{c.Completed.Load(), c.Skipped.Load(), c.Failed.Load(), c.Buried.Load(), c.Lost.Load(), c.Abandoned.Load()}
}

// A Handler is called with the message of each item. A handler.Mux with a function implements it,
// and so does handler.HandlerFunc, a function for messages of every type. If the handler has a
// method Validate() error, [Queue.Work] calls it first. Handle is called from several goroutines.
type Handler interface {
	Handle(ctx context.Context, m *messagestore.Message) error
}

// Work reserves items and calls h for them, until ctx ends or the store refuses for good. Any
// number of processes may work on one queue; in one process only one call may run at a time for a
// [Queue].
//
// If a mux has no function for an item's type, the item comes again after a back-off, without end
// and without a failure, because a newer process may know the type; each time a warning is logged.
// With [github.com/dibs-go/dibs/handler.Mux.IgnoreUnknown] such items are completed.
//
// When ctx ends, Work reserves no more, and handlers have [WorkConfig.Grace] to return. Then their
// contexts are cancelled. If a handler returns an error from then on, its item is given back
// without a failure, except that a disposition of package handler has its usual effect; with nil
// the item is completed. Items of handlers that have not returned another Grace later are given
// back too, and the error, which matches [ErrAbandoned], names them. Work returns nil if ctx ended
// and all handlers returned.
//
// Work calls no handler for an item whose lease may be over, even if the process was paused in
// between: it asks the store first. A process cannot notice that its machine was suspended, because
// its clock stands still meanwhile: it finds out with the next extension.
func (q *Queue) Work(ctx context.Context, h Handler, config *WorkConfig) error {
	if err := q.use(ctx); err != nil {
		return err
	}
	var c WorkConfig
	if config != nil {
		c = *config
	}
	err := errors.Join(q.refuseParked(), c.complete())
	if v := reflect.ValueOf(h); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		err = errors.Join(err, messagestore.NewInvalidError("handler", nil, "must not be nil"))
	} else if v, ok := h.(interface{ Validate() error }); ok {
		err = errors.Join(err, v.Validate())
	}
	if err != nil {
		return q.fail("work", err)
	}
	if !q.working.CompareAndSwap(false, true) {
		return q.fail("work", ErrWorking)
	}
	defer q.working.Store(false)
	handle := func(ctx context.Context, d *work.Delivery) error {
		return h.Handle(calling.WithCaller(ctx, func(c *calling.Caller) { c.Job = q.jobOf(d) }), d.Item.Message)
	}
	return q.fail("work", work.Run(ctx, q.source, work.Config{
		MaxWorkers: c.MaxWorkers, Prefetch: c.Prefetch, Timeout: c.Timeout, Grace: c.Grace, Lease: c.Lease, PollInterval: c.PollInterval, Handle: handle,
		Finish: func(d *work.Delivery, err error, stopped bool) queuing.Finish {
			return work.FinishOf(d, err, stopped, c.MinBackoff, c.MaxBackoff)
		},
	}, &q.counts))
}

// jobOf returns the job of a delivery to a worker.
func (q *Queue) jobOf(d *work.Delivery) *Job {
	return &Job{
		Message: d.Item.Message, Failures: d.Item.Failures, Deliveries: d.Item.Version,
		queue: q, delivery: d.ID(), end: d.End, sessions: d.Sessions, notes: d.Notes(), lost: d.Lost, committed: &d.Committed,
	}
}
