package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/handling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/panics"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/upkeep"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/queuing"
)

// WorkConfig changes a call of [Queue.Work]. A nil *WorkConfig is a good one.
type WorkConfig struct {
	// MaxWorkers is how many items the process works on at a time, 1 to 1,000.
	//
	// Defaults to 16.
	MaxWorkers int

	// Timeout ends the context of a handler, 10 ms to 24 hours. A handler that has not returned a Grace later is
	// abandoned: its item is given back as a failure, its place is filled, and it is counted and logged. Its goroutine
	// may go on for ever.
	//
	// Defaults to a minute.
	Timeout time.Duration

	// Grace is for how long handlers go on when Work is to end, before their contexts do, and for how long they may
	// take then; up to 24 hours.
	//
	// Defaults to 10 seconds.
	Grace time.Duration

	// Lease is how long the items of a process that is gone are not delivered to another, 100 ms to 24 hours. A process
	// that lives extends it each third. What it cannot extend, it stops: the contexts of its handlers end with
	// [ErrLost] a tenth of the lease before the end.
	//
	// Defaults to 10 seconds.
	Lease time.Duration

	// PollInterval is how often an idle process looks for what no wake-up told, 10 ms to an hour.
	//
	// Defaults to 100 milliseconds.
	PollInterval time.Duration

	// MinBackoff and MaxBackoff bound the time after which a failed item is delivered again: it doubles with each
	// failure, and a random part of up to a half is left out. MinBackoff is from 1 ms, and MaxBackoff up to 30 days.
	//
	// Default to a second and an hour.
	MinBackoff, MaxBackoff time.Duration
}

func (c *WorkConfig) complete() error {
	c.MaxWorkers = cmp.Or(c.MaxWorkers, 16)
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
		wrong = append(wrong, messagestore.NewInvalidError("MaxWorkers", c.MaxWorkers, fmt.Sprintf("it is 1 to %d", queuing.MaxItems)))
	}
	return errors.Join(wrong...)
}

// counts are what the handlers of a process have done.
type counts struct{ completed, failed, skipped, buried, lost, abandoned atomic.Int64 }

// Counts are what the workers of this process have done since [New].
type Counts struct {
	Completed int64 // items, skipped ones among them
	Skipped   int64
	Failed    int64 // deliveries that failed
	Buried    int64 // items that died here
	Lost      int64 // deliveries whose end came too late
	Abandoned int64 // handlers that did not return in time
}

// Counts returns what the workers of this process have done.
func (q *Queue) Counts() Counts {
	c := &q.counts
	return Counts{c.completed.Load(), c.skipped.Load(), c.failed.Load(), c.buried.Load(), c.lost.Load(), c.abandoned.Load()}
}

const (
	callTimeout     = 15 * time.Second // of a call of the store
	openInterval    = time.Second      // after which a completion that is not committed yet is asked for again
	minStoreBackoff = 50 * time.Millisecond
	maxStoreBackoff = time.Second
)

// Work reserves items and has mux, which has a function, handle them, until ctx ends or the store refuses for good. Any number of processes may work on
// one queue; in one process it is called once at a time for a [Queue].
//
// An item of a type that mux has no function for comes again after a back-off, for ever and without a failure, since a newer process
// may know it; each time a warning is logged. [handler.Mux.IgnoreUnknown] has such items completed.
//
// When ctx ends, it reserves no more, and handlers have [WorkConfig.Grace] to return. Then their contexts end. What has not returned
// another Grace later is given back without a failure, and the error, which matches [ErrAbandoned], names it. Work
// returns nil if ctx ended and all handlers returned.
func (q *Queue) Work(ctx context.Context, mux *handler.Mux, config *WorkConfig) error {
	if err := q.use(ctx); err != nil {
		return err
	}
	w := &work{Queue: q, mux: mux, flights: map[queuing.Delivery]*flight{}, wakes: make(chan struct{}, 1), session: newSession(), notes: &notes{}, look: true}
	if config != nil {
		w.config = *config
	}
	err := w.config.complete()
	if mux == nil {
		err = errors.Join(err, messagestore.NewInvalidError("mux", nil, "it is nil"))
	} else {
		err = errors.Join(err, mux.Validate())
	}
	if err != nil {
		return q.fail("work", err)
	}
	if !q.working.CompareAndSwap(false, true) {
		return q.fail("work", ErrWorking)
	}
	defer q.working.Store(false)
	return q.fail("work", w.run(ctx))
}

// A work is one call of Work. The goroutine of run makes all calls of the store but extensions.
type work struct {
	*Queue
	mux    *handler.Mux
	config WorkConfig // in place of the queue's
	wakes  chan struct{}
	notes  *notes

	// Of the goroutine of run.
	look     bool // there may be an item
	ticket   int64
	ticketed bool // there was a ticket since the last item
	wakeAt   time.Time
	renew    bool      // the answer of a take was lost
	left     time.Time // the session was left first, while renew is set
	failures int       // of the store, in a row

	mu       sync.Mutex
	session  int64
	next     int64     // the session that follows, while renew is set
	until    time.Time // the session lasts at least until then; by the process's clock
	flights  map[queuing.Delivery]*flight
	pending  []*ending
	stopping bool
}

// A flight is a delivery to a handler that has not returned. Its fields are the work's, under mu.
type flight struct {
	job    *Job
	cancel context.CancelCauseFunc
	timer  *time.Timer
	began  time.Time
	early  *ending // by a call of the job's: what the handler returns does not count
	done   bool    // it ends, or is lost: the same
}

// open reports whether what the handler returns decides what becomes of the item.
func (f *flight) open() bool { return !f.done && f.early == nil }

// An ending is a finish that is to be reported.
type ending struct {
	queuing.Finish
	flight *flight
	err    error     // of the handler
	after  time.Time // not reported before

	// Of a call of the job's: closed when the store has told what it answers.
	told   chan struct{}
	answer queuing.Ending

	// Where CompleteTx was called: what becomes of the item if it is open still at a time.
	otherwise *queuing.Finish
	until     time.Time
	said      bool // it was logged
}

func (w *work) wake() {
	select {
	case w.wakes <- struct{}{}:
	default:
	}
}

func (w *work) run(ctx context.Context) error {
	bell, stop := w.store.Watch(w.of.Category, w.config.PollInterval)
	defer stop()
	beating, endBeat := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { w.beat(beating) })
	defer beat.Wait()
	defer endBeat()

	poll := time.NewTicker(w.config.PollInterval)
	defer poll.Stop()
	var lasting error
	for ctx.Err() == nil && lasting == nil {
		runtime.Gosched() // handlers that return at once do so first: the next take ends all of them, and not some
		due, free, soonest := w.due()
		want := 0
		if w.look {
			want = free
		}
		if len(due) > 0 || want > 0 {
			if err := w.take(context.WithoutCancel(ctx), due, want); err != nil {
				lasting = w.storeFailed(ctx, err)
			}
			continue
		}
		timer := time.NewTimer(w.untilNext(soonest))
		select {
		case <-ctx.Done():
		case <-w.wakes: // a handler has returned
		case <-bell:
			w.look = true
		case <-timer.C:
			if !w.wakeAt.IsZero() && !time.Now().Before(w.wakeAt) {
				w.look, w.wakeAt = true, time.Time{}
			}
		case <-poll.C:
			if free > 0 {
				w.poll(ctx)
			}
		}
		timer.Stop()
	}
	return errors.Join(lasting, w.drain(ctx))
}

// untilNext is for how long nothing happens by itself.
func (w *work) untilNext(soonest time.Time) time.Duration {
	next := time.Hour
	for _, at := range []time.Time{soonest, w.wakeAt} {
		if !at.IsZero() {
			next = min(next, max(time.Until(at), time.Millisecond))
		}
	}
	return next
}

// due returns the endings to report now, how many places are free, and when the next ending is due.
func (w *work) due() (due []*ending, free int, soonest time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	kept := w.pending[:0]
	for _, e := range w.pending {
		switch {
		case len(due) < queuing.MaxItems && !now.Before(e.after):
			due = append(due, e)
		default:
			kept = append(kept, e)
			if soonest.IsZero() || e.after.Before(soonest) {
				soonest = e.after
			}
		}
	}
	w.pending = kept
	return due, max(0, w.config.MaxWorkers-len(w.flights)), soonest
}

// poll asks whether there may be an item, without a lock.
func (w *work) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ready, err := w.driver.QueueReady(ctx, w.of)
	if err != nil {
		w.look = true // the take tells of the failure
		return
	}
	w.look = ready.Ready
	w.setWake(ready.Wake)
}

func (w *work) setWake(after time.Duration) {
	w.wakeAt = time.Time{}
	if after >= 0 {
		w.wakeAt = time.Now().Add(after)
	}
}

// take reports endings and reserves items. If it fails, the endings are reported again.
func (w *work) take(ctx context.Context, due []*ending, want int) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if w.renew {
		if err := w.renewSession(ctx, due); err != nil {
			w.putBack(due)
			return err
		}
	}
	w.mu.Lock()
	session := w.session
	w.mu.Unlock()
	t := queuing.Take{Queue: w.of, Policy: w.policy, Session: session, Lease: w.config.Lease, Want: want, Finishes: make([]queuing.Finish, len(due))}
	for i, e := range due {
		t.Finishes[i] = e.Finish
	}
	if want > 0 {
		t.Ticket = w.ticket
		if !w.ticketed {
			t.Wait = queuing.MaxWait
		}
	}
	began := time.Now()
	taken, err := w.driver.QueueTake(ctx, t)
	if err == nil && len(taken.Endings) != len(due) {
		err = fmt.Errorf("%w: the store told %d endings of %d", messagestore.ErrOutcomeUnknown, len(taken.Endings), len(due))
	}
	if err != nil {
		w.renew = w.renew || errors.Is(err, messagestore.ErrOutcomeUnknown)
		w.putBack(due)
		return err
	}
	w.failures = 0
	w.store.Outage().Works(w.outageKey())
	for i, e := range due {
		w.ended(e, taken.Endings[i])
	}
	if want > 0 {
		w.look = taken.More || len(taken.Items) == want
		w.setWake(taken.Wake)
		if taken.Ticket != 0 {
			w.ticket, w.ticketed = taken.Ticket, true
		}
		if len(taken.Items) > 0 {
			w.ticket, w.ticketed = 0, false
			w.begin(ctx, began, taken.Items)
		}
	}
	return nil
}

// putBack has endings reported by the next take, before younger ones.
func (w *work) putBack(due []*ending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(slices.Clip(due), w.pending...)
}

// renewSession leaves a session that may have reserved items that nobody was told of, and takes along what is known.
func (w *work) renewSession(ctx context.Context, due []*ending) error {
	w.mu.Lock()
	if w.next == 0 {
		w.next = newSession()
	}
	l := queuing.Leave{Queue: w.of, Session: w.session, Next: w.next, Lease: w.config.Lease}
	for delivery, f := range w.flights {
		if !f.done {
			l.Keep = append(l.Keep, delivery)
		}
	}
	for _, e := range w.pending {
		l.Keep = append(l.Keep, e.Delivery)
	}
	w.mu.Unlock()
	for _, e := range due {
		l.Keep = append(l.Keep, e.Delivery)
	}
	if w.left.IsZero() { // an earlier call may have moved them, and a later one finds nothing to move
		w.left = time.Now()
	}
	if err := w.driver.QueueLeave(ctx, l); err != nil {
		return err
	}
	w.mu.Lock()
	w.notes.again()
	if w.session == l.Session { // else it has ended meanwhile, and its items are lost
		w.session, w.until = l.Next, w.left.Add(w.config.Lease)
	}
	w.next = 0
	w.mu.Unlock()
	w.left = time.Time{}
	w.renew, w.ticket, w.ticketed = false, 0, false
	return nil
}

func (w *work) outageKey() outage.Key { return outage.Key{By: "queue " + w.of.Name, To: "take"} }

// storeFailed waits after an error of the store, and returns it if it lasts.
func (w *work) storeFailed(ctx context.Context, err error) error {
	for _, lasting := range []error{
		disposition.ErrLasting, messagestore.ErrClosed, messagestore.ErrNotPermitted, messagestore.ErrNotSupported, messagestore.ErrInvalid,
	} {
		if errors.Is(err, lasting) {
			return err
		}
	}
	w.failures++
	pause := backoff.After(w.failures, minStoreBackoff, maxStoreBackoff)
	w.store.Outage().Failed(w.outageKey(), w.log(), "queue", w.of.Name, "category", string(w.of.Category), "failures", w.failures,
		"wait", pause, "error", text.Log(err))
	_ = backoff.Wait(ctx, pause)
	w.look = true
	return nil
}

func (w *work) log() logger.Logger { return w.Queue.config.Logger }

// begin delivers items.
func (w *work) begin(ctx context.Context, asked time.Time, items []queuing.Taking) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// The session was extended if less than two thirds of the lease were left.
	w.until = later(w.until, asked.Add(w.config.Lease*66/100))
	for _, item := range items {
		f := &flight{began: time.Now()}
		f.job = &Job{Message: item.Message, Failures: item.Failures, Deliveries: item.Version, queue: w.Queue, delivery: item.Delivery(), notes: w.notes}
		f.job.lost = func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !f.open()
		}
		f.job.end = func(ctx context.Context, finish queuing.Finish, err error) (queuing.Ending, error) {
			return w.endEarly(ctx, f, finish, err)
		}
		w.flights[f.job.delivery] = f
		base := handling.With(context.WithoutCancel(ctx), &handling.Delivery{Consumer: w.of.Name})
		handled, cancel := context.WithCancelCause(context.WithValue(base, jobKey{}, f.job))
		f.cancel = cancel
		f.timer = time.AfterFunc(w.config.Timeout+w.config.Grace, func() { w.abandon(f) })
		go w.fly(handled, f)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fly calls the handler, which may panic or end the goroutine.
func (w *work) fly(ctx context.Context, f *flight) {
	ctx, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	var err error
	defer func() { w.landed(f, err) }()
	w.handle(ctx, f.job.Message, &err)
}

func (w *work) handle(ctx context.Context, m *messagestore.Message, err *error) {
	*err = panics.ErrExited
	defer panics.Catch(err)
	*err = w.mux.Handle(ctx, m)
}

// landed takes in what a handler returned.
func (w *work) landed(f *flight, err error) {
	f.timer.Stop()
	f.cancel(nil)
	w.mu.Lock()
	if w.flights[f.job.delivery] == f {
		delete(w.flights, f.job.delivery)
		w.notes.ended(f.job.delivery)
	}
	open := f.open()
	if open {
		f.done = true
		w.pending = append(w.pending, w.endingOf(f, err))
	}
	w.mu.Unlock()
	if !open {
		w.afterEnd(f, err)
	}
	w.wake()
}

// afterEnd logs an error that changes nothing any more.
func (w *work) afterEnd(f *flight, err error) {
	if err != nil {
		w.about(w.log().Warn(), f).Str("error", text.Log(err)).Msg("handler failed after the end of its delivery")
	}
}

// endingOf decides what becomes of an item. It is called under mu.
func (w *work) endingOf(f *flight, err error) *ending {
	e := &ending{Finish: w.finishOf(f.job, err), flight: f, err: err}
	if !f.job.committed.Load() {
		w.decided(e)
		return e
	}
	// The store knows whether the transaction was committed.
	e.otherwise, e.until = new(queuing.Finish), time.Now()
	if *e.otherwise = e.Finish; err == nil {
		e.err, e.until = errUncommitted, e.until.Add(w.config.Timeout)
		*e.otherwise = w.finishOf(f.job, e.err)
	}
	e.Kind = queuing.Committed
	return e
}

// finishOf says what the error of a handler makes of its item. It is called under mu.
func (w *work) finishOf(j *Job, err error) queuing.Finish {
	finish := queuing.Finish{Delivery: j.delivery, Kind: queuing.Complete}
	disposed := disposition.Of(err)
	if err == nil || disposed.Asks(disposition.Skip) {
		return finish
	}
	finish.Error = errorText(err)
	switch {
	case disposed.Asks(disposition.Retry):
		finish.Kind, finish.Delay = queuing.Defer, min(max(disposed.After, 0), queuing.MaxDelay)
	case disposed.Asks(disposition.Park), disposed.Asks(disposition.Refuse):
		finish.Kind = queuing.Bury
	case errors.Is(err, handler.ErrUnknownType) && panics.Of(err) == nil: // a newer process may know it
		finish.Kind, finish.Delay = queuing.Defer, backoff.After(j.Deliveries+1, w.config.MinBackoff, w.config.MaxBackoff)
	case w.stopping && errors.Is(err, context.Canceled):
		finish.Kind = queuing.Unhandled
	default:
		finish.Kind, finish.Delay = queuing.Retry, backoff.After(j.Failures+1, w.config.MinBackoff, w.config.MaxBackoff)
	}
	return finish
}

// decided logs and counts what becomes of an item, but for its completion.
func (w *work) decided(e *ending) {
	var event *logger.Event
	var what string
	f := e.flight
	switch e.Kind {
	case queuing.Committed:
		return
	case queuing.Complete:
		if e.err == nil {
			return
		}
		w.counts.skipped.Add(1)
		event, what = w.log().Warn(), "item skipped"
	case queuing.Defer:
		event, what = w.log().Debug(), "item deferred"
		if errors.Is(e.err, handler.ErrUnknownType) {
			event, what = w.log().Warn(), "item has no handler"
		}
	case queuing.Retry, queuing.Bury:
		w.counts.failed.Add(1)
		event, what = w.log().Warn(), "handler failed"
		if e.Kind == queuing.Bury || f.job.Failures+1 >= w.policy.MaxFailures {
			w.counts.buried.Add(1)
			event, what = w.log().Error(), "item is dead"
		}
		event = event.Int("failures", f.job.Failures+1)
		if stack := panics.Stack(e.err); stack != "" && f.job.Failures == 0 {
			event = event.Str(logger.Stack, stack)
		}
	default:
		event, what = w.log().Info(), "handler interrupted"
	}
	event = w.about(event, f).Dur("wait", e.Delay)
	if e.err != nil {
		event = event.Str("error", text.Log(e.err))
	}
	event.Msg(what)
}

func (w *work) about(event *logger.Event, f *flight) *logger.Event {
	m := f.job.Message
	return event.Str("queue", w.of.Name).Str("type", m.Type).Str("stream", string(m.Stream)).Str("id", m.ID.String()).
		Int64("globalPosition", int64(m.GlobalPosition)).Int("version", f.job.Deliveries)
}

// ended takes in what the store told of an ending.
func (w *work) ended(e *ending, told queuing.Ending) {
	if e.otherwise != nil && w.askAgain(e, told) {
		w.putBack([]*ending{e})
		return
	}
	f := e.flight
	if e.told != nil {
		w.mu.Lock()
		e.answer, f.done = told, told != queuing.Open
		if !f.done {
			f.early = nil
		}
		w.mu.Unlock()
		if close(e.told); !f.done {
			return
		}
	}
	switch {
	case told != queuing.Done:
		w.counts.lost.Add(1)
		w.about(w.log().Warn(), f).Str("kind", string(e.Kind)).Msg("the end of the delivery came too late")
	case e.Kind == queuing.Committed && e.err != errUncommitted: //nolint:errorlint // as it was set
		w.afterEnd(f, e.err)
		fallthrough
	case e.Kind == queuing.Complete, e.Kind == queuing.Committed:
		w.counts.completed.Add(1)
	}
}

// askAgain reports whether an item that a transaction was to complete is to be asked for again, as what. A row that a
// transaction has is passed over, so what is refused then may be the item's yet.
func (w *work) askAgain(e *ending, told queuing.Ending) bool {
	committed := queuing.Finish{Delivery: e.Delivery, Kind: queuing.Committed}
	switch {
	case e.Kind == queuing.Committed && told == queuing.Open && time.Now().Before(e.until):
		e.after = time.Now().Add(openInterval)
	case e.Kind == queuing.Committed && told == queuing.Open:
		if e.Finish = *e.otherwise; !e.said {
			e.said = true
			w.decided(e)
		}
	case e.Kind != queuing.Committed && told == queuing.Lost:
		e.Finish, e.after = committed, time.Now().Add(openInterval)
	default:
		return false
	}
	return true
}

// endEarly ends a delivery while its handler goes on. A later call for the same is told what the first one is.
func (w *work) endEarly(ctx context.Context, f *flight, finish queuing.Finish, err error) (queuing.Ending, error) {
	w.mu.Lock()
	early := f.early
	switch {
	case early != nil && early.Kind == finish.Kind:
	case !f.open():
		w.mu.Unlock()
		return queuing.Lost, nil
	default:
		early = &ending{Finish: finish, flight: f, err: err, told: make(chan struct{})}
		f.early = early
		w.pending = append(w.pending, early)
		w.decided(early)
	}
	w.mu.Unlock()
	w.wake()
	select {
	case <-early.told:
		return early.answer, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", messagestore.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// abandon gives back an item whose handler does not return.
func (w *work) abandon(f *flight) {
	w.mu.Lock()
	if w.flights[f.job.delivery] != f {
		w.mu.Unlock()
		return
	}
	delete(w.flights, f.job.delivery)
	w.notes.ended(f.job.delivery)
	took := time.Since(f.began).Round(time.Millisecond)
	if f.open() {
		f.done = true
		w.pending = append(w.pending, w.endingOf(f, fmt.Errorf("abandoned: its handler did not return within %v", took)))
	}
	w.mu.Unlock()
	w.counts.abandoned.Add(1)
	w.about(w.log().Error(), f).Dur("after", took).Msg("handler abandoned: it goes on without its item")
	w.wake()
}

// beat extends the session, and ends the handlers of what it cannot extend.
func (w *work) beat(ctx context.Context) {
	for {
		if backoff.Wait(ctx, w.beatPause()) != nil {
			return
		}
		w.mu.Lock()
		e := queuing.Extension{Queue: w.of, Session: w.session, Lease: w.config.Lease}
		for delivery, f := range w.flights {
			if !f.done {
				e.Deliveries = append(e.Deliveries, delivery)
			}
		}
		for _, p := range w.pending {
			e.Deliveries = append(e.Deliveries, p.Delivery)
		}
		until := w.until
		var version int
		if len(e.Deliveries) > 0 {
			e.Notes, version = w.notes.news()
		}
		w.mu.Unlock()
		if len(e.Deliveries) == 0 {
			continue // the session may end
		}
		began := time.Now()
		call, cancel := context.WithDeadline(upkeep.With(ctx), later(until.Add(-w.margin()), began.Add(w.config.Lease/10)))
		lost, err := w.driver.QueueExtend(call, e)
		cancel()
		w.extended(e, began, lost, err)
		if err == nil {
			w.notes.stored(version)
		}
	}
}

// margin is how long before its end a session that was not extended counts as over.
func (w *work) margin() time.Duration { return w.config.Lease / 10 }

func (w *work) beatPause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	pause := w.config.Lease / 3
	if left := time.Until(w.until) - w.margin() - w.config.Lease/10; len(w.flights) > 0 && left < pause {
		pause = max(left, w.config.Lease/20)
	}
	return pause
}

// extended takes in the answer to an extension.
func (w *work) extended(e queuing.Extension, began time.Time, lost []queuing.Delivery, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session != e.Session {
		return // left meanwhile, and what it had is another's
	}
	alive := err == nil && w.next == 0 // while it is left, nobody knows whose they are
	switch {
	case alive:
		w.until = later(w.until, began.Add(w.config.Lease))
	case time.Now().Before(w.until.Add(-w.margin())):
		return
	default: // nobody else may work on them while they go on
		lost = e.Deliveries
		w.session, w.next = newSession(), 0
		event := w.log().Warn().Str("queue", w.of.Name).Int("items", len(lost))
		if err != nil {
			event = event.Str("error", text.Log(err))
		}
		event.Msg("session could not be extended: its items are lost")
	}
	for _, delivery := range lost {
		f := w.flights[delivery]
		if f == nil || !f.open() {
			continue
		}
		if f.job.committed.Load() { // it is finished, or will be: the store is asked when the handler has returned
			if !alive {
				f.cancel(ErrLost)
			}
			continue
		}
		f.done = true
		w.counts.lost.Add(1)
		f.cancel(ErrLost)
		w.about(w.log().Warn(), f).Msg("delivery lost")
	}
}

// drain waits for the handlers, reports what they return, and gives back the rest.
func (w *work) drain(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	w.drainUntil(ctx, time.Now().Add(w.config.Grace))
	w.mu.Lock()
	for _, f := range w.flights {
		f.cancel(nil)
	}
	w.mu.Unlock()
	w.drainUntil(ctx, time.Now().Add(w.config.Grace))

	w.mu.Lock()
	var left []string
	for delivery, f := range w.flights {
		delete(w.flights, delivery)
		f.timer.Stop()
		left = append(left, f.job.Message.String())
		if f.open() {
			f.done = true
			w.pending = append(w.pending, &ending{Finish: queuing.Finish{Delivery: delivery, Kind: queuing.Unhandled}, flight: f})
		}
	}
	w.mu.Unlock()
	until := time.Now().Add(leaveTimeout)
	w.drainUntil(ctx, until)
	w.mu.Lock()
	session, unreported := w.session, len(w.pending)
	w.mu.Unlock()
	w.leave(ctx, session, until)
	w.store.Outage().Ends(w.outageKey().By)
	var err error
	if unreported > 0 {
		err = fmt.Errorf("%w: the ends of %d deliveries were not reported", messagestore.ErrOutcomeUnknown, unreported)
	}
	if len(left) > 0 {
		slices.Sort(left)
		err = errors.Join(fmt.Errorf("%w within %v: %s", ErrAbandoned, 2*w.config.Grace, strings.Join(left, ", ")), err)
	}
	return err
}

// drainUntil reports endings until there is nothing to wait for, or the time comes.
func (w *work) drainUntil(ctx context.Context, end time.Time) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for first := true; first || ctx.Err() == nil; first = false {
		due, _, soonest := w.due()
		if len(due) > 0 {
			if err := w.take(ctx, due, 0); err != nil && w.storeFailed(ctx, err) != nil {
				return
			}
			continue
		}
		w.mu.Lock()
		idle := len(w.flights) == 0 && len(w.pending) == 0
		w.mu.Unlock()
		if idle {
			return
		}
		timer := time.NewTimer(w.untilNext(soonest))
		select {
		case <-ctx.Done():
		case <-w.wakes:
		case <-timer.C:
			w.wakeAt = time.Time{}
		}
		timer.Stop()
	}
}
