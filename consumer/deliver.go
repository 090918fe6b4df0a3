package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A failedItem is an item that a worker could not finish. The run's loop decides about it.
type failedItem struct {
	item *item
	err  error // of the handler, or of the store that did not park it
	away bool  // the handler failed while the store was away
	late bool  // the item was not begun: the member's lease may be over
}

// Failures go from the workers to the run's loop.
type failures struct {
	mu     sync.Mutex
	all    []failedItem
	closed bool // the run no longer waits for messages in flight
}

func (f *failures) add(failed failedItem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.all = append(f.all, failed)
	}
}

func (f *failures) take() []failedItem {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all
	f.all = nil
	return all
}

func (f *failures) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// work delivers, parks or redrives an item, in a worker's goroutine. The handler may end
// the goroutine.
func (r *run) work(ctx context.Context, it *item) (finished bool) {
	if r.leaseOver(time.Now()) {
		r.failures.add(failedItem{item: it, late: true})
		r.wake()
		return false
	}
	if it.Value.redrive != nil {
		return r.redrive(ctx, it)
	}
	err := calling.ErrExited
	defer func() { finished = r.worked(ctx, it, err) }()
	defer calling.Catch(&err)
	switch {
	case it.Value.parking || r.askedToPark(it):
		err = r.park(ctx, it)
	default:
		r.deliver(ctx, it.Value.message, &err)
	}
	return finished
}

// askedToPark reports whether an operator has asked for an item to be parked, and notes it.
func (r *run) askedToPark(it *item) bool {
	parks := r.parks.Load()
	if parks == nil || len(*parks) == 0 {
		return false
	}
	a, is := (*parks)[it.Value.message.GlobalPosition]
	if is {
		it.Value.parking, it.Value.reason, it.Value.parked = true, a.reason, a.parked
	}
	return is
}

// deliver calls the handler. This is the only place where a handler's panic is recovered. Because a
// handler may panic and end its goroutine, the error is not a result.
func (c *Consumer) deliver(ctx context.Context, m *messagestore.Message, err *error) {
	*err = calling.ErrExited
	defer calling.Catch(err)
	*err = c.handler.Handle(ctx, m)
}

// worked handles the result of an item. A failure is left to the loop.
func (r *run) worked(ctx context.Context, it *item, err error) (finished bool) {
	if err == nil {
		r.finished(it)
		return true
	}
	r.failures.add(failedItem{item: it, err: err, away: r.storeIsAway(ctx, it, err)})
	r.wake()
	return false
}

// finished moves the position past a message, and wakes the loop if that gives it something to do.
func (r *run) finished(it *item) {
	wake, counts := r.progress.finish(it)
	if counts {
		switch {
		case it.Value.parking:
			r.counts.parked.Add(1)
		default:
			r.counts.handled.Add(1)
			if it.Value.attempts > 0 {
				r.counts.retried.Add(1)
			}
		}
	}
	if wake {
		r.wake()
	}
}

// wake has the loop look for something to do.
func (r *run) wake() {
	select {
	case r.wakes <- struct{}{}:
	default: // it is awake
	}
}

// decide decides about the items that workers could not finish.
func (r *run) decide(work context.Context) {
	for _, f := range r.failures.take() {
		it := f.item
		switch {
		case f.late: // the loop pauses the lanes now, until the lease is extended
			r.lanes.Retry(it, time.Now())
		case it.Value.parking:
			r.parkFailed(work, it, f.err)
		default:
			r.handlerFailed(work, it, f)
		}
	}
}

// handlerFailed decides about a message after its handler failed.
func (r *run) handlerFailed(work context.Context, it *item, f failedItem) {
	err := f.err
	disposed := calling.DispositionOf(err)
	if work.Err() != nil && (disposed == nil || disposed.Kind == calling.Retry) {
		r.logFailure(it, err, 0, "handler interrupted") // its context was cancelled: the message is not at fault
		r.lanes.Drop(it)
		return
	}
	d, now := &it.Value, time.Now()
	if r.stopping && disposed.Asks(calling.Retry) { // it gives the message back to whichever run comes next
		r.about(r.config.Logger.Debug(), it.Value.message).Str("error", text.Log(err)).Msg("handler gave the message back")
		r.lanes.Drop(it)
		return
	}
	if disposed.Asks(calling.Skip) {
		r.skip(it, err)
		return
	}
	if f.away {
		d.away++
		d.failingSince = time.Time{}
		r.about(r.config.Logger.Debug(), d.message).Int("failures", d.away).Str("error", text.Log(err)).Msg("handler failed while the store is away")
		r.lanes.Retry(it, now.Add(outage.Pause(d.away, minStoreBackoff, maxStoreBackoff)))
		return
	}
	d.away = 0
	d.lastErr = err
	d.attempts++
	r.progress.failed(checkpoint.NewFailure(d.message, err, now))
	r.counts.failed.Add(1)
	if d.attempts > 1 {
		r.counts.retried.Add(1)
	}
	lasting := disposed == nil && lasts(err) // it is not the message's failure
	if disposed.Asks(calling.Retry) {
		d.failingSince = time.Time{}
		r.logFailure(it, err, disposed.After, "handler failed")
		r.lanes.Retry(it, now.Add(disposed.After))
		return
	}
	if d.failingSince.IsZero() || d.failingSince.Before(r.resumed) { // a pause is no part of the policy's time
		d.failingSince = now
	}
	policy := &r.config.Errors
	wait, again := policy.Retry.pause(d.attempts, d.failingSince, now)
	asked := disposed.Asks(calling.Park)
	if lasting || disposed != nil {
		wait, again = 0, false
	}
	r.logFailure(it, err, wait, "handler failed")
	switch {
	case again:
		if policy.Then == StopConsumer && !d.warned.Equal(d.failingSince) && policy.Retry.endsSoon(wait, d.failingSince, now) {
			d.warned = d.failingSince
			r.about(r.config.Logger.Warn(), d.message).Str("in", outage.Roughly(policy.Retry.For-now.Sub(d.failingSince))).
				Str("park", r.parkCommand(d.message.GlobalPosition)).Msg("consumer will stop, unless this message is handled or parked by then")
		}
		r.lanes.Retry(it, now.Add(wait))
	case asked || policy.Then != StopConsumer && !lasting:
		r.parkNow(work, it)
	default:
		r.fail(newMessageError(it, err))
		r.lanes.Drop(it)
	}
}

// skip moves on from a message that the handler has skipped.
func (r *run) skip(it *item, err error) {
	r.about(r.config.Logger.Warn(), it.Value.message).Str("reason", text.Log(err)).Msg("message skipped")
	if _, counts := r.progress.finish(it); counts {
		r.counts.skipped.Add(1)
	}
	r.lanes.Finish(it)
	r.wake()
}

// parkNow parks a message that is in flight, even while the run stops.
func (r *run) parkNow(work context.Context, it *item) {
	it.Value.parking = true
	r.wg.Go(func() {
		err := calling.Call(func() error { return r.park(work, it) })
		if r.worked(work, it, err) {
			r.lanes.Finish(it)
			r.wake() // no worker takes the next item of the lane by itself
		}
	})
}

// park makes a message an item of the queue of parked messages, unless the store has lost the
// message or the run is fenced.
func (r *run) park(ctx context.Context, it *item) error {
	d := &it.Value
	if d.parked {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkpoint.CallTimeout)
	defer cancel()
	if err := r.checkpoints.place.Check(ctx, d.message.Mark()); err != nil {
		return fmt.Errorf("park: %w", err)
	}
	queues, err := queuing.Of(r.store)
	if err != nil {
		return fmt.Errorf("park: %w", err)
	}
	var why string
	switch {
	case d.reason == "":
		why = whyParked(d.lastErr)
	case d.lastErr == nil:
		why = checkpoint.ByOperator + d.reason
	default:
		why = checkpoint.ByOperator + d.reason + "; its last error: " + whyParked(d.lastErr)
	}
	parked, err := queues.QueuePark(ctx, queuing.Parking{
		Queue: r.id.Parked(), Position: d.message.GlobalPosition, Failures: min(d.attempts, queuing.MaxFailures), Error: why,
	})
	if err != nil {
		return fmt.Errorf("park: %w", err)
	}
	r.storeWorks(parking)
	if parked {
		event := r.about(r.config.Logger.Error(), d.message).Int("attempts", d.attempts)
		if d.reason != "" {
			event.Str("reason", text.Shorten(d.reason))
		}
		failed := d.lastErr
		if failed == nil { // an operator has asked for it
			failed = errors.New(why)
		}
		event.Str("error", text.Log(failed)).Msg("message parked")
	}
	return nil
}

// whyParked returns the text for the item of a parked message: the error, and below it the stack of
// a panic.
func whyParked(err error) string {
	why := text.Of(err)
	if stack := calling.Stack(err); stack != "" {
		why += "\n" + strings.ToValidUTF8(stack[:min(len(stack), 2*text.Max)], "")
	}
	return why
}

// parkFailed makes sure that a message is parked later. The position stays before it.
func (r *run) parkFailed(work context.Context, it *item, err error) {
	d := &it.Value
	err = fmt.Errorf("%s: %w", d.message, err)
	switch {
	case work.Err() != nil:
		r.logFailure(it, err, 0, "parking interrupted")
		r.lanes.Drop(it)
	case r.catchUp || !heals(err):
		r.fail(err)
		r.lanes.Drop(it)
	default:
		d.parkFailures++
		r.lanes.Retry(it, time.Now().Add(r.storeFailed(parking, err, d.parkFailures)))
	}
}

// parkCommand is the command line with which an operator parks a message.
func (c *Consumer) parkCommand(at messagestore.GlobalPosition) string {
	return fmt.Sprintf("dibs consumers park %s %s --position %d --reason TEXT", text.Word(string(c.id.Category)), text.Word(c.id.Name), at)
}

func (r *run) logFailure(it *item, err error, wait time.Duration, what string) {
	event := r.about(r.config.Logger.Warn(), it.Value.message).Int("attempt", it.Value.attempts)
	if wait > 0 {
		event.Stringer("wait", wait.Round(time.Millisecond))
	}
	if it.Value.attempts <= 1 {
		logStack(event, err)
	}
	event.Str("error", text.Log(err)).Msg(what)
}

// about adds the consumer and a message to an event.
func (c *Consumer) about(event *logger.Event, m *messagestore.Message) *logger.Event {
	return event.Str("consumer", c.id.Name).Str("type", m.Type).Str("stream", string(m.Stream)).Int64("position", int64(m.Position)).
		Str("id", m.ID.String()).Int64("globalPosition", int64(m.GlobalPosition))
}

func logStack(event *logger.Event, err error) {
	if stack := calling.Stack(err); stack != "" {
		event.Str(logger.Stack, stack)
	}
}

// leave stops waiting for the messages in flight, and returns an error that names them, if
// there are any.
func (r *run) leave() error {
	r.progress.close()
	r.failures.close()
	left := r.lanes.Items()
	if len(left) == 0 {
		return nil
	}
	exceeded := &GraceExceededError{Grace: r.config.Grace}
	for _, it := range left {
		switch d := &it.Value; {
		case d.redrive != nil:
			exceeded.Messages = append(exceeded.Messages, d.message.String()+", which is being redriven")
		case d.message != nil: // its handler has not returned nil just now
			exceeded.Messages = append(exceeded.Messages, d.message.String())
		}
	}
	return exceeded
}
