package saga

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// The pauses between turns, and the limits of their failures.
const (
	// maxFailures is how many turns of a saga may fail in a row, or end with their process, before
	// the saga is dead.
	maxFailures = 20

	grace        = 10 * time.Second
	fencedPause  = time.Second // after which a process looks at a saga again with which another one went on
	minTurnPause = time.Second

	// maxOutages is how many turns of a saga may meet an outage in a row, in one process: about
	// three minutes. The pauses between them are short, because a deadline may pass during one.
	maxOutages     = 100
	minOutagePause = 500 * time.Millisecond
	maxOutagePause = 2 * time.Second
	maxTurnPause   = time.Hour
)

// Stats are counts of this process since [New].
type Stats struct {
	Ended     int64 // sagas that ended
	Suspended int64 // sagas that were suspended
	Skipped   int64 // streams that hold no saga
	Failed    int64 // turns that the store refused or did not answer; the saga goes on after a back-off
	Dead      int64 // sagas that failed so 20 times in a row, and could not be suspended
	Lost      int64 // turns whose end came too late
	Abandoned int64 // functions that did not return
}

// Stats returns the counts of this moment.
func (s *Saga[In, Out]) Stats() Stats {
	c := s.core
	return Stats{
		c.endings.Load(), c.suspends.Load(), c.counts.Skipped.Load(), c.counts.Failed.Load(), c.counts.Buried.Load(), c.counts.Lost.Load(), c.counts.Abandoned.Load(),
	}
}

// Run goes on with the sagas of the category until ctx is done, and then returns nil. Call it in
// each replica of a service: the replicas share the sagas. A second call in the same process fails
// with an error that matches [messagestore.ErrInvalid] while the first runs. If the store refuses
// for good, Run returns the store's error.
//
// When ctx is done, no further turn starts, and the current turns have ten seconds to end. Then the
// contexts of their steps are cancelled. If a function has not returned another ten seconds later,
// its saga goes on in another process, and the error names it.
func (s *Saga[In, Out]) Run(ctx context.Context) error {
	c := s.core
	if !c.running.CompareAndSwap(false, true) {
		return fmt.Errorf("sagas of %s: %w", c.category, invalid("call of Run", nil, "must not be made while the saga runs already"))
	}
	defer c.running.Store(false)
	err := work.Run(ctx, c.source, work.Config{
		MaxWorkers: c.config.Concurrency, Grace: grace, Lease: c.config.Lease, PollInterval: c.config.PollInterval, Handle: c.handle, Finish: finishOf,
	}, &c.counts)
	if err != nil {
		return fmt.Errorf("sagas of %s: %w", c.category, err)
	}
	return nil
}

// A turned is how a turn ends.
type turned struct {
	queuing.Finish
	reason error
}

func (t *turned) Error() string { return t.reason.Error() }
func (t *turned) Unwrap() error { return t.reason }

func ends(finish queuing.Finish, reason error) error {
	finish.Error = text.Log(reason)
	return &turned{finish, reason}
}

// finishOf returns the end of a turn. A turn that panicked, which should never happen, comes again.
func finishOf(d *work.Delivery, err error, _ bool) queuing.Finish {
	if err == nil {
		return queuing.Finish{Kind: queuing.Complete}
	}
	if t, is := err.(*turned); is { //nolint:errorlint // as handle returns it
		return t.Finish
	}
	return queuing.Finish{Kind: queuing.Retry, Delay: turnPause(d), Error: text.Log(err)}
}

func turnPause(d *work.Delivery) time.Duration {
	return outage.Pause(d.Item.Failures+1, minTurnPause, maxTurnPause)
}

// handle is one turn of a saga. If the store refuses 20 turns of a saga in a row, or 100 meet an
// outage, handle tries to suspend the saga: if that write succeeds, it was not an outage.
func (c *core) handle(ctx context.Context, d *work.Delivery) error { return c.turn(ctx, d, d.Check) }

func (c *core) turn(ctx context.Context, d *work.Delivery, held func(ctx context.Context) error) error {
	began := time.Now()
	l, err := c.goOn(ctx, d.Item.Message, d.Item.Version == 0, held)
	if errors.Is(ctx.Err(), context.Canceled) {
		err = l.keepDone(ctx, err)
	}
	c.lasted(time.Since(began))
	key := outage.Key{By: "queue " + c.source.Queue.Name, To: "go on with a saga"}
	_, isMalformed := errors.AsType[*malformedError](err)
	_, notBegun := errors.AsType[*work.NotBegunError](err)
	gone := ctx.Err() != nil || notBegun
	isAway := err != nil && !gone && !isMalformed && !errors.Is(err, errFenced) && !isDefinite(err)
	times := c.outages.count(d.Item.Message.Stream, isAway)
	if err != nil && !isMalformed && !gone && !errors.Is(err, errFenced) && (d.Item.Failures+1 >= maxFailures || times >= maxOutages) {
		if stuck, suspending := c.giveUp(ctx, d.Item.Message, l.step(), err); suspending == nil {
			l, err = stuck, nil
		}
	}
	switch {
	case isMalformed:
		c.kept.drop(l.stream)
		return ends(queuing.Finish{Kind: queuing.Complete}, err)
	case err != nil && gone:
		return ends(queuing.Finish{Kind: queuing.Unhandled}, err)
	case errors.Is(err, errFenced):
		return ends(queuing.Finish{Kind: queuing.Defer, Delay: fencedPause}, err)
	case isAway && err != nil:
		c.source.Outage.Failed(key, c.config.Logger, "category", string(c.category), "to", key.To, "error", text.Log(err))
		return ends(queuing.Finish{Kind: queuing.Defer, Delay: outage.Pause(times, minOutagePause, maxOutagePause)}, err)
	case err != nil:
		return ends(queuing.Finish{Kind: queuing.Retry, Delay: turnPause(d)}, err)
	}
	c.source.Outage.Works(key)
	if l.ended != "" {
		c.endings.Add(1)
		c.kept.drop(l.stream) // before it is told: see Wait
		c.wakeups.Tell(l.stream, l)
		return nil
	}
	finish := queuing.Finish{Kind: queuing.Wait, Delay: queuing.MaxDelay, Seen: l.seen}
	if !l.next.IsZero() {
		finish.Delay = l.pause()
	}
	if l.lacks != "" {
		return ends(finish, errors.New("waits for "+l.lacks)) //nolint:err113 // it is the text
	}
	c.laters.count(l.stream, false)
	why := l.suspended
	if !l.guessed && len(l.noted) == 0 {
		c.kept.put(l) // the state is another turn's from now on
	}
	if why == nil {
		return &turned{finish, errWaits}
	}
	finish.Kind = queuing.Suspend
	c.wakeups.Tell(l.stream, nil)
	return ends(finish, errors.New(why.Reason)) //nolint:err113 // it is the text
}

// streaks count the turns in a row of sagas in which something happened.
type streaks struct {
	mu       sync.Mutex
	byStream map[messagestore.StreamName]int
}

// count returns how many turns in a row met it, this turn included. If this turn did not, the
// saga's count ends.
func (o *streaks) count(stream messagestore.StreamName, met bool) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !met {
		delete(o.byStream, stream)
		return 0
	}
	if o.byStream == nil || len(o.byStream) > maxCounted { // of sagas that went on elsewhere, mostly
		o.byStream = map[messagestore.StreamName]int{}
	}
	o.byStream[stream]++
	return o.byStream[stream]
}

// maxCounted bounds how many sagas have a count.
const maxCounted = 10_000

// giveUp suspends a saga because its turns have failed too often, and then goes on with it as far
// as a suspended saga can.
func (c *core) giveUp(ctx context.Context, m *messagestore.Message, step string, reason error) (*life, error) {
	l := newLife(c, m, nil)
	_, err := l.read(ctx)
	if err == nil && l.ended == "" && l.suspended == nil {
		err = l.suspend(ctx, suspendedEvent{Why: whyFailed, Step: step, Reason: textOf(reason)})
	}
	if err != nil {
		return l, err
	}
	return c.goOn(ctx, m, false, nil)
}

// keepDone writes the events of a turn that ended because the process stops, such as that a step is
// done. Otherwise the step would be done again. If another process has gone on with the saga, the
// write is refused because of its version.
func (l *life) keepDone(ctx context.Context, err error) error {
	if err == nil || len(l.noted) == 0 || errors.Is(context.Cause(ctx), work.ErrLost) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), work.LeaveTimeout)
	defer cancel()
	if failure := l.write(ctx); failure != nil {
		log := l.config.Logger
		log.Debug().Str("saga", string(l.stream)).Str("error", text.Log(failure)).Msg("the last outcomes of a turn are not recorded")
	}
	return err
}

var errWaits = errors.New("the saga waits")
