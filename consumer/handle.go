package consumer

import (
	"context"
	"fmt"
	"time"
)

// A result is what became of a message that was in hand.
type result struct {
	item   *item
	err    error // of the handler, or of the store that should have parked it
	park   bool  // the handler's error asks for it
	parked bool  // the message was to be parked
	left   bool  // the message was to be redriven, and still is
}

// handOver gives the oldest messages to the handler, as many as may be in hand.
//
// It does not run ahead of the recorded position by more than what a crash may hand
// over again, however slow one message is and however long the store cannot record.
func (r *run) handOver(work context.Context, now time.Time) {
	r.lanes.wake(now) // even if the hand is full: what is due is no reason to wake up again
	limit := r.saved.passed + int64(r.config.PositionInterval) + int64(r.config.BatchSize)
	for len(r.held) < r.config.Concurrency {
		it := r.lanes.take(limit)
		if it == nil {
			return
		}
		r.hold(work, it)
	}
}

// hold handles or parks a message in a goroutine of its own.
func (r *run) hold(work context.Context, it *item) {
	r.held[it] = struct{}{}
	r.inHand.Add(1)
	r.wg.Go(func() {
		res := result{item: it, parked: it.parking, err: ErrHandlerExited}
		defer func() {
			r.inHand.Add(-1)
			r.ended <- res // has room for all that are in hand
		}()
		switch {
		case it.request != nil:
			res.left, res.err = r.redriveRequest(work, it.request)
			return
		case it.parking:
			res.err = r.park(work, it)
			return
		}
		defer func() {
			if v := recover(); v != nil {
				res.err = recovered(v)
			}
			res.park = asksToPark(res.err)
		}()
		res.err = r.handler.Handle(r.named(work), it.message)
	})
}

// handBack takes back a message that was in hand.
func (r *run) handBack(work context.Context, res result) {
	it := res.item
	delete(r.held, it)
	now := time.Now()
	switch {
	case it.request != nil:
		r.redriven(work, res)
	case res.err == nil:
		r.workedAt = now
		r.lanes.finish(it)
		r.finished(it, res.parked)
	case res.parked:
		r.parkFailed(work, it, res.err, now)
	case work.Err() != nil && !res.park:
		// The context was cancelled, which is no fault of the message's.
		r.logFailure(it, res.err, "handler interrupted")
	default:
		r.handlerFailed(work, res, now)
	}
}

func (r *run) finished(it *item, parked bool) {
	r.count(func(s *Stats) {
		if parked {
			s.Parked++
			return
		}
		s.Handled++
		if it.attempts > 0 {
			s.Retried++
		}
	})
	r.window.finish(it)
	r.moved()
}

// handlerFailed decides what becomes of a message that the handler failed on.
func (r *run) handlerFailed(work context.Context, res result, now time.Time) {
	it := res.item
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
		r.lanes.retry(it, now.Add(policy.backoff(it.attempts)))
	case res.park || policy.Then == Park:
		it.parking = true
		r.hold(work, it)
	default:
		r.fail(newMessageError(it, res.err))
	}
}

// parkFailed tries to park a message again: it is neither handled nor parked, so
// the position stays before it.
func (r *run) parkFailed(work context.Context, it *item, err error, now time.Time) {
	err = fmt.Errorf("%s: %w", it.message, err)
	switch {
	case work.Err() != nil:
		r.logFailure(it, err, "parking interrupted")
	case r.catchUp || !heals(err):
		r.fail(err)
	default:
		it.parkFailures++
		r.lanes.retry(it, now.Add(r.storeFailed(err, it.parkFailures)))
	}
}

func (r *run) logFailure(it *item, err error, what string) {
	m := it.message
	r.config.Logger.Warn().Str("consumer", r.name).Str("type", m.Type).Str("stream", string(m.Stream)).
		Int64("position", int64(m.Position)).Int("attempt", it.attempts).Str("error", errorText(err)).Msg(what)
}

func (r *run) graceExceeded() error {
	exceeded := &GraceExceededError{Grace: r.config.Grace}
	for _, it := range r.window.items {
		if _, held := r.held[it]; held {
			exceeded.Messages = append(exceeded.Messages, it.message.String())
		}
	}
	for it := range r.held {
		if it.request != nil {
			exceeded.Messages = append(exceeded.Messages, fmt.Sprintf("%s of %s, which is being redriven", it.request.MessageID, it.request.Stream))
		}
	}
	return exceeded
}
