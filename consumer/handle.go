package consumer

import (
	"context"
	"fmt"
	"time"
)

// A worker hands messages to the handler, one after the other, each as soon as the one
// before is done with: what is slow holds up no message that another worker can take.
// It lives until the run stops, in one goroutine after the other if the handler ends
// them.
type worker struct {
	*run
	item *item  // in hand
	res  result // what became of it
}

// A result is what became of a message that was in hand.
type result struct {
	item   *item
	err    error // of the handler, or of the store that should have parked it
	park   bool  // the handler's error asks for it
	parked bool  // the message was to be parked
	left   bool  // the message was to be redriven, and still is
}

// handOver has the workers take what can be handled, as long as told is not done. The
// caller holds mu.
func (r *run) handOver(told, work context.Context, now time.Time) {
	r.lanes.wake(now) // even if the hand is full: what is due is no reason to wake up again
	if !r.lanes.canTake(r.limit()) {
		return
	}
	idle := r.idle
	for range min(len(r.lanes.ready.items), r.config.Concurrency-r.held) {
		switch {
		case idle > 0:
			idle--
			r.handed.Signal()
		case len(r.workers) < r.config.Concurrency:
			w := &worker{run: r}
			r.workers = append(r.workers, w)
			r.wg.Go(func() { w.serve(told, work) })
		default:
			return
		}
	}
}

// limit returns the number of the first message that is not to be taken yet: the
// consumer does not run ahead of the recorded position by more than what a crash may
// hand over again, however slow one message is and however long the store cannot
// record.
func (r *run) limit() int64 {
	return r.saved.passed + int64(r.config.PositionInterval) + int64(r.config.BatchSize)
}

func (w *worker) serve(told, work context.Context) {
	defer w.end(told, work)
	for w.next(told) {
		w.do(work)
	}
}

// end is reached with a message in hand if the handler has ended the goroutine.
func (w *worker) end(told, work context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.item != nil {
		w.putDown()
		w.wg.Go(func() { w.serve(told, work) })
	}
}

// next puts down what the worker has in hand, and takes the next message, for which it
// waits. It returns false when the run stops: what was not begun is not begun.
func (w *worker) next(told context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.item != nil {
		w.putDown()
	}
	for {
		switch {
		case w.stopping || told.Err() != nil:
			return false
		case w.held < w.config.Concurrency && w.lanes.canTake(w.limit()):
			w.item = w.lanes.take()
			w.item.held = true
			w.held++
			w.inHand++
			if w.enough && !w.hasEnough() {
				w.enough = false
				w.wake()
			}
			return true
		}
		w.idle++
		w.handed.Wait()
		w.idle--
	}
}

func (w *worker) putDown() {
	w.item = nil
	w.inHand--
	w.takeBack(w.res)
}

// do handles, parks or redrives what is in hand.
func (w *worker) do(work context.Context) {
	it := w.item
	w.res = result{item: it, parked: it.parking, err: ErrHandlerExited}
	switch {
	case it.request != nil:
		w.res.left, w.res.err = w.redriveRequest(work, it.request)
	case it.parking:
		w.res.err = w.park(work, it)
	default:
		w.handle(work, it)
		w.res.park = asksToPark(w.res.err)
	}
}

func (w *worker) handle(work context.Context, it *item) {
	defer func() {
		if v := recover(); v != nil {
			w.res.err = recovered(v)
		}
	}()
	w.res.err = w.handler.Handle(work, it.message)
}

// takeBack takes back a message that was in hand. What went wrong is left to loop,
// which the caller, who holds mu, does not wait for.
func (r *run) takeBack(res result) {
	switch {
	case r.over: // a handler that the run did not wait for
	case res.err == nil && res.item.request == nil:
		r.finished(res.item, res.parked)
	default:
		r.returned = append(r.returned, res)
		r.wake()
	}
}

// finished is done with a message, and wakes loop if that has something to do by it.
// The caller holds mu.
func (r *run) finished(it *item, parked bool) {
	switch {
	case parked:
		r.stats.Parked++
	default:
		r.stats.Handled++
		if it.attempts > 0 {
			r.stats.Retried++
		}
	}
	it.held = false
	r.held--
	before := r.window.length
	r.lanes.finish(it)
	r.window.finish(it)
	after := r.window.length
	if after == 0 {
		r.workedAt = time.Now()
	}
	moved := r.moved()
	due := int(r.window.passed-r.saved.passed) - r.config.PositionInterval
	switch {
	case moved, after == 0, r.stopping && r.held == 0,
		before > r.room && after <= r.room, // there is room to read on
		due >= 0 && due < before-after:     // the position is to be recorded
		r.wake()
	}
}

// wake has loop look at what there is to do.
func (r *run) wake() {
	select {
	case r.wakes <- struct{}{}:
	default: // it will
	}
}

// decide decides on what was taken back.
func (r *run) decide(work context.Context) {
	r.mu.Lock()
	returned := r.returned
	r.returned = nil
	r.mu.Unlock()
	for _, res := range returned {
		switch {
		case res.item.request != nil:
			r.redriven(work, res)
		case res.parked:
			r.parkFailed(work, res.item, res.err)
		case work.Err() != nil && !res.park:
			// The context was cancelled, which is no fault of the message's.
			r.logFailure(res.item, res.err, "handler interrupted")
			r.letGo(res.item)
		default:
			r.handlerFailed(work, res)
		}
	}
}

// letGo leaves a message unfinished, in its lane that stays closed.
func (r *run) letGo(it *item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it.held = false
	r.held--
}

// retry hands a message over again when it is due.
func (r *run) retry(it *item, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it.held = false
	r.held--
	r.lanes.retry(it, due)
}

// handlerFailed decides what becomes of a message that the handler failed on.
func (r *run) handlerFailed(work context.Context, res result) {
	it, now := res.item, time.Now()
	if it.attempts == 0 {
		it.firstFailed = now
	}
	it.lastErr = res.err
	it.attempts++
	r.count(func(s *Stats) {
		s.Failed++
		if it.attempts > 1 {
			s.Retried++
		}
	})
	r.logFailure(it, res.err, "handler failed")
	policy := &r.config.Errors
	switch {
	case !res.park && it.attempts <= policy.Retries:
		r.retry(it, now.Add(policy.backoff(it.attempts)))
	case res.park || policy.Then == Park:
		r.parkNow(work, it)
	default:
		r.fail(newMessageError(it, res.err))
		r.letGo(it)
	}
}

// parkNow parks a message that is still held, and so also when the run is to stop.
func (r *run) parkNow(work context.Context, it *item) {
	it.parking = true
	r.wg.Go(func() {
		err := r.park(work, it)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.takeBack(result{item: it, parked: true, err: err})
		r.wake() // no worker takes what is behind it by itself
	})
}

// parkFailed tries to park a message again: it is neither handled nor parked, so
// the position stays before it.
func (r *run) parkFailed(work context.Context, it *item, err error) {
	err = fmt.Errorf("%s: %w", it.message, err)
	switch {
	case work.Err() != nil:
		r.logFailure(it, err, "parking interrupted")
		r.letGo(it)
	case r.catchUp || !heals(err):
		r.fail(err)
		r.letGo(it)
	default:
		it.parkFailures++
		r.retry(it, time.Now().Add(r.storeFailed(err, it.parkFailures)))
	}
}

func (r *run) logFailure(it *item, err error, what string) {
	m := it.message
	r.config.Logger.Warn().Str("consumer", r.name).Str("type", m.Type).Str("stream", string(m.Stream)).
		Int64("position", int64(m.Position)).Int("attempt", it.attempts).Str("error", errorText(err)).Msg(what)
}

// leave leaves the messages in hand to themselves, and returns an error that names
// them, if there are any.
func (r *run) leave() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.held == 0 {
		return nil
	}
	exceeded := &GraceExceededError{Grace: r.config.Grace}
	for _, page := range r.window.pages {
		for i := range page {
			if page[i].held {
				exceeded.Messages = append(exceeded.Messages, page[i].message.String())
			}
		}
	}
	for _, w := range r.workers {
		if w.item != nil && w.item.request != nil {
			exceeded.Messages = append(exceeded.Messages, fmt.Sprintf("%s of %s, which is being redriven", w.item.request.MessageID, w.item.request.Stream))
		}
	}
	return exceeded
}
