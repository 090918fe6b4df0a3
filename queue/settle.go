package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
)

// A Delivery names one delivery of an item to a caller of [Queue.Receive]. Any process can end or
// extend the delivery by it: store it, or send it to whoever does the work. A delivery that was
// never made is lost, so a wrong Delivery ends nothing.
type Delivery struct {
	Position messagestore.GlobalPosition // of the item
	Version  int                         // how often the item was given back before
	Session  int64                       // of the call of Receive; it cannot be guessed
}

// An Action says how a [Settlement] ends a delivery.
type Action string

// The actions, each as the method of [Job] with the same name.
const (
	Complete Action = "complete" // the item is finished
	Retry    Action = "retry"    // a failure: delivered again after Delay, or dead
	Defer    Action = "defer"    // no failure: delivered again after Delay
	Bury     Action = "bury"     // a failure, and dead
)

var kindOf = map[Action]queuing.Kind{Complete: queuing.Complete, Retry: queuing.Retry, Defer: queuing.Defer, Bury: queuing.Bury}

// A Settlement ends a delivery.
type Settlement struct {
	Delivery Delivery
	Action   Action

	// Delay is how long the item is not delivered, for Retry and Defer: up to 100 years.
	//
	// Defaults to 0: the item is offered at once.
	Delay time.Duration

	// Error is for the item's log. It is cut after 1 KiB, and control characters become spaces. A
	// Complete has none.
	//
	// Defaults to none.
	Error string
}

// Settle ends 1 to 1,000 deliveries, in their order, in one call of the store, whichever calls of
// Receive they come from and whichever process made those. It returns an outcome for each
// settlement: nil, or an error that matches [ErrLost] if the delivery had already ended in another
// way. The outcomes do not depend on each other.
//
// You may call again with the same settlements after an error, even if it matches
// [messagestore.ErrOutcomeUnknown]: for a delivery that an earlier call ended in the same way the
// outcome is nil. Of an item that is finished nothing but the position and the version is known, so
// then a Complete is nil for each session. If a settlement is invalid, the error is a
// [*messagestore.InvalidError], and nothing is sent.
//
// If several settlements are of one item, Settle makes several calls of the store. While a call for
// Receive or Settle of this Queue is under way, others wait, and then go together in one: each has
// its own outcomes, and an error of the store is the error of each. A call in the function of
// [messagestore.TxStore.Transact], with its context, goes by itself, so that it never waits for one
// that waits for the transaction. If ctx ends before the call began, nothing was sent; the error
// matches [messagestore.ErrOutcomeUnknown] if it may have been.
func (q *Queue) Settle(ctx context.Context, settlements ...Settlement) ([]error, error) {
	if err := q.use(ctx); err != nil {
		return nil, err
	}
	finishes, err := finishesOf(settlements, 1)
	if err != nil {
		return nil, q.fail("settle", err)
	}
	endings, err := q.finishAll(ctx, finishes)
	return outcomesOf(endings), q.fail("settle", err)
}

// ExtendAll makes 1 to 1,000 deliveries last for d from now on, 10 ms to 24 hours, as [Job.Extend]
// does for one: each takes along all deliveries of its call of Receive, and no time becomes
// shorter. It returns an outcome for each delivery, in order: nil, or an error that matches
// [ErrLost] if the delivery has ended. You may call again after an error.
func (q *Queue) ExtendAll(ctx context.Context, d time.Duration, deliveries ...Delivery) ([]error, error) {
	if err := q.use(ctx); err != nil {
		return nil, err
	}
	err := errors.Join(checkDuration("time", d, queuing.MinLease, queuing.MaxLease), checkCount("deliveries", len(deliveries), 1))
	for i := 0; i < len(deliveries) && err == nil; i++ {
		err = deliveries[i].check(fmt.Sprintf("deliveries[%d]", i))
	}
	if err != nil {
		return nil, q.fail("extend", err)
	}
	outcomes := make([]error, 0, len(deliveries))
	for _, some := range apart(deliveries, func(d Delivery) messagestore.GlobalPosition { return d.Position }) {
		e := queuing.Extension{Queue: q.of, Session: some[0].Session, Lease: d}
		for _, one := range some {
			e.Deliveries, e.Sessions = append(e.Deliveries, one.of()), append(e.Sessions, one.Session)
		}
		lost, err := q.driver.QueueExtend(ctx, e)
		if err != nil {
			return nil, q.fail("extend", err)
		}
		is := make(map[queuing.Delivery]bool, len(lost))
		for _, one := range lost {
			is[one] = true
		}
		for _, one := range some {
			var outcome error
			if is[one.of()] {
				outcome = ErrLost
			}
			outcomes = append(outcomes, outcome)
		}
	}
	return outcomes, nil
}

func (d Delivery) of() queuing.Delivery {
	return queuing.Delivery{Position: d.Position, Version: d.Version}
}

func (d Delivery) check(field string) error {
	switch {
	case d.Position < 1:
		return messagestore.NewInvalidError(field+".Position", int64(d.Position), "must be at least 1")
	case d.Version < 0 || d.Version > math.MaxInt32:
		return messagestore.NewInvalidError(field+".Version", d.Version, "must be between 0 and 2147483647")
	case d.Session < 1:
		return messagestore.NewInvalidError(field+".Session", d.Session, "must be at least 1")
	}
	return nil
}

func checkCount(field string, n, least int) error {
	if n < least || n > queuing.MaxItems {
		return messagestore.NewInvalidError(field, n, fmt.Sprintf("must be between %d and %d", least, queuing.MaxItems))
	}
	return nil
}

// finishesOf checks settlements, of which there must be least or more.
func finishesOf(settlements []Settlement, least int) ([]queuing.Finish, error) {
	if err := checkCount("settlements", len(settlements), least); err != nil {
		return nil, err
	}
	finishes := make([]queuing.Finish, len(settlements))
	for i, s := range settlements {
		field := fmt.Sprintf("settlements[%d]", i)
		kind := kindOf[s.Action]
		err := s.Delivery.check(field + ".Delivery")
		switch delays := s.Action == Retry || s.Action == Defer; {
		case err != nil:
		case kind == 0:
			err = messagestore.NewInvalidError(field+".Action", string(s.Action), "must be Complete, Retry, Defer or Bury")
		case !delays && s.Delay != 0:
			err = messagestore.NewInvalidError(field+".Delay", s.Delay, "must be 0 unless the action is Retry or Defer")
		case s.Action == Complete && s.Error != "":
			err = messagestore.NewInvalidError(field+".Error", s.Error, "must be empty if the action is Complete")
		default:
			err = checkDuration(field+".Delay", s.Delay, 0, queuing.MaxDelay)
		}
		if err != nil {
			return nil, err
		}
		finishes[i] = queuing.Finish{Delivery: s.Delivery.of(), Kind: kind, Delay: s.Delay, Error: text.Shorten(s.Error), Session: s.Delivery.Session}
	}
	return finishes, nil
}

func outcomesOf(endings []queuing.Ending) []error {
	if endings == nil {
		return nil
	}
	outcomes := make([]error, len(endings))
	for i, ending := range endings {
		if ending != queuing.Done {
			outcomes[i] = ErrLost
		}
	}
	return outcomes
}

// apart cuts a list where an item would come twice in one part: the drivers do not say in which
// order a call treats two deliveries of one item.
func apart[T any](all []T, of func(T) messagestore.GlobalPosition) (parts [][]T) {
	met, begin := make(map[messagestore.GlobalPosition]bool, len(all)), 0
	for i, one := range all {
		if met[of(one)] {
			parts = append(parts, all[begin:i])
			begin = i
			clear(met)
		}
		met[of(one)] = true
	}
	return append(parts, all[begin:])
}

// finishAll ends deliveries by a call of its own. If its answer is lost, the call is repeated once.
func (q *Queue) finishAll(ctx context.Context, finishes []queuing.Finish) ([]queuing.Ending, error) {
	endings := make([]queuing.Ending, 0, len(finishes))
	policy, err := q.policyOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, some := range apart(finishes, func(f queuing.Finish) messagestore.GlobalPosition { return f.Position }) {
		t := queuing.Take{Queue: q.of, Policy: policy, Session: some[0].Session, Lease: queuing.MinLease, Finishes: some}
		taken, err := q.call(ctx, t)
		if errors.Is(err, messagestore.ErrOutcomeUnknown) && ctx.Err() == nil {
			var o waiting.Outcome
			_ = o.Of(err)
			taken, err = q.call(ctx, t)
			err = o.Of(err)
		}
		if err != nil {
			return nil, err
		}
		endings = append(endings, taken.Endings...)
	}
	return endings, nil
}

// call is one caller's part in a call of the store.
func (q *Queue) call(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	p := newPart(ctx, t)
	q.begin(p)
	return q.calls.answer(p)
}
