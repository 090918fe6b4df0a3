package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// reports are the endings that the next takes report to the store.
type reports struct {
	pending []*ending // under the worker's mu
}

// An ending is a finish to report.
type ending struct {
	queuing.Finish
	also     []queuing.Delivery // completed with it
	delivery *Delivery
	err      error     // of the handler
	after    time.Time // not reported before
	rides    bool      // or earlier, with a take for another purpose, like all endings that ride

	// Only for a call of the job's: told is closed when answer has the store's answer.
	told   chan struct{}
	answer queuing.Ending
	over   bool         // the store has answered; like the next field, under the worker's mu
	final  queuing.Kind // the kind that it has answered

	// After CompleteTx: how the delivery ends if it is still open at the given time.
	otherwise *queuing.Finish
	until     time.Time
	said      bool // it was logged
}

// putBack has the next take report the endings, before newer ones.
func (w *worker) putBack(due []*ending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(slices.Clip(due), w.pending...)
}

// afterEnd logs an error that comes too late to change anything.
func (w *worker) afterEnd(f *Delivery, err error) {
	if err != nil && !isNotBegun(err) {
		w.about(w.log().Warn(), f).Str("error", text.Log(err)).Msg("handler failed after the end of its delivery")
	}
}

// endingOf decides how a delivery ends. It is called under mu.
func (w *worker) endingOf(f *Delivery, err error) *ending {
	if f.given > 0 { // the handler had done with the item itself
		err = nil
	}
	e := &ending{Finish: w.finishOf(f, err), delivery: f, err: err}
	if !f.Committed.Load() {
		if e.Kind == queuing.Complete {
			e.also = f.also
			w.behind.given += len(e.also)
		}
		w.decided(e)
		return e
	}
	// The store knows whether the transaction was committed.
	e.otherwise, e.until = new(queuing.Finish), time.Now()
	if *e.otherwise = e.Finish; err == nil {
		e.err, e.until = ErrUncommitted, e.until.Add(w.config.Timeout)
		*e.otherwise = w.finishOf(f, e.err)
	}
	e.Kind = queuing.Committed
	return e
}

// finishOf turns the error of a handler into the finish of its delivery. It is called under mu.
func (w *worker) finishOf(f *Delivery, err error) queuing.Finish {
	finish := queuing.Finish{Kind: queuing.Unhandled}
	if isNotBegun(err) {
		finish.Error = text.Log(err)
	} else {
		finish = w.config.Finish(f, err, f.ended || w.stopping && calling.Is(err, context.Canceled))
	}
	finish.Delivery = f.ID()
	return finish
}

// FinishOf turns the error of a handler into the finish of its delivery, as package queue promises.
// The pause after a failure is between least and most. Nil and a disposition always count as the
// handler's decision; any other error after the stop counts as caused by the stop, even if it wraps
// something else.
func FinishOf(d *Delivery, err error, stopped bool, least, most time.Duration) queuing.Finish {
	finish := queuing.Finish{Kind: queuing.Complete}
	disposed := calling.DispositionOf(err)
	if err == nil || disposed.Asks(calling.Skip) {
		return finish
	}
	finish.Error = text.Log(err)
	switch {
	case disposed.Asks(calling.Retry):
		finish.Kind, finish.Delay = queuing.Defer, min(max(disposed.After, 0), queuing.MaxDelay)
	case disposed.Asks(calling.Park), disposed.Asks(calling.Refuse):
		finish.Kind = queuing.Bury
	case calling.Is(err, handler.ErrUnknownType) && calling.PanicOf(err) == nil: // a newer process may know it
		finish.Kind, finish.Delay = queuing.Defer, outage.Pause(d.Item.Version+1, least, most)
	case stopped:
		finish.Kind = queuing.Unhandled
	default:
		finish.Kind, finish.Delay = queuing.Retry, outage.Pause(d.Item.Failures+1, least, most)
	}
	return finish
}

// decided logs and counts how a delivery ends, except for its completion.
func (w *worker) decided(e *ending) {
	var event *logger.Event
	var what string
	f := e.delivery
	switch e.Kind {
	case queuing.Committed, queuing.Wait, queuing.Suspend:
		return
	case queuing.Complete:
		if e.err == nil {
			return
		}
		w.counts.Skipped.Add(1)
		event, what = w.log().Warn(), "item skipped"
	case queuing.Defer:
		event, what = w.log().Debug(), "item deferred"
		if calling.Is(e.err, handler.ErrUnknownType) {
			event, what = w.log().Warn(), "item has no handler"
		}
	case queuing.Retry, queuing.Bury:
		w.counts.Failed.Add(1)
		event, what = w.log().Warn(), "handler failed"
		if e.Kind == queuing.Bury || f.Item.Failures+1 >= w.policy.MaxFailures {
			w.counts.Buried.Add(1)
			event, what = w.log().Error(), "item is dead"
		}
		event = event.Int("failures", f.Item.Failures+1)
		if stack := calling.Stack(e.err); stack != "" && f.Item.Failures == 0 {
			event = event.Str(logger.Stack, stack)
		}
	default:
		event, what = w.log().Info(), "handler interrupted"
	}
	event = w.about(event, f).Stringer("wait", e.Delay.Round(time.Millisecond))
	if e.err != nil {
		event = event.Str("error", text.Log(e.err))
	}
	event.Msg(what)
}

func (w *worker) about(event *logger.Event, f *Delivery) *logger.Event {
	m := f.Item.Message
	return event.Str("queue", w.Queue.Name).Str("type", m.Type).Str("stream", string(m.Stream)).Str("id", m.ID.String()).
		Int64("globalPosition", int64(m.GlobalPosition)).Int("version", f.Item.Version)
}

// ended handles the store's answer to an ending.
func (w *worker) ended(e *ending, told queuing.Ending) {
	if e.otherwise != nil && w.askAgain(e, told) {
		w.putBack([]*ending{e})
		return
	}
	if w.tell(e, told) && told == queuing.Open {
		return // the handler goes on with it
	}
	f := e.delivery
	switch {
	case told != queuing.Done:
		w.counts.Lost.Add(1)
		w.about(w.log().Warn(), f).Str("kind", string(e.Kind)).Msg("the end of the delivery came too late")
	case e.Kind == queuing.Committed && e.err != ErrUncommitted: //nolint:errorlint // as it was set
		w.afterEnd(f, e.err)
		fallthrough
	case e.Kind == queuing.Complete, e.Kind == queuing.Committed:
		w.counts.Completed.Add(1)
	}
}

// tell passes the store's answer to the calls of a job, and reports whether the ending came from
// such a call.
func (w *worker) tell(e *ending, told queuing.Ending) (early bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := e.delivery
	e.answer, e.over, e.final = told, true, e.Kind
	if early = e == f.early; early {
		f.done = told != queuing.Open
		switch {
		case !f.done:
			f.early = nil
		case told != queuing.Done:
			f.cancel(ErrLost)
		}
	}
	if e.told != nil {
		close(e.told)
	}
	return early
}

// askAgain reports whether the worker must ask again for an item that a transaction may complete,
// and sets the next finish. The store skips a row that a transaction has locked, so an ending that
// it refuses then may still succeed later.
func (w *worker) askAgain(e *ending, told queuing.Ending) bool {
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

// endEarly ends a delivery while its handler goes on. A later identical call gets the answer of the
// first. If the handler has since ended the delivery in the same way, the call gets the handler's
// answer.
func (w *worker) endEarly(ctx context.Context, f *Delivery, finish queuing.Finish, err error) (queuing.Ending, error) {
	w.mu.Lock()
	early := f.early
	switch {
	case early != nil && early.Kind == finish.Kind:
	case f.result != nil && f.kind == finish.Kind:
		if early = f.result; early.told == nil {
			if early.told = make(chan struct{}); early.over {
				close(early.told)
			}
		}
	case !f.open():
		w.mu.Unlock()
		return queuing.Lost, nil
	default:
		early = &ending{Finish: finish, delivery: f, err: err, told: make(chan struct{})}
		f.early = early
		w.pending = append(w.pending, early)
		w.decided(early)
	}
	w.mu.Unlock()
	w.wake()
	var why error
	select {
	case <-early.told:
	case <-w.over:
		why = errors.New("the worker has ended")
	case <-ctx.Done():
		why = context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !early.over:
		return 0, fmt.Errorf("%w: %w", messagestore.ErrOutcomeUnknown, why)
	case early.final != finish.Kind: // its transaction was not committed
		return queuing.Lost, nil
	}
	return early.answer, nil
}
