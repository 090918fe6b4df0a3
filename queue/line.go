package queue

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// receivePoll is how often the first of the waiting calls looks for items without a wake-up.
const receivePoll = 250 * time.Millisecond

// A line is where the calls of Receive that wait stand, in the order in which they came. Only the
// first asks the store, in its own goroutine and for the calls behind it too. When it returns, the
// next is the first. So any number of waiting calls costs the store as much as one. The first stands
// in the queue's own line, which decides between processes, and leaves its place there to the next.
type line struct {
	mu    sync.Mutex
	calls list.List     // of *place
	ended chan struct{} // receives when a call of this queue has ended deliveries

	// Of the first call, and then of the next.
	bell     <-chan messagestore.GlobalPosition // rings after a write, while any call waits
	stop     func()
	look     bool      // there may be an item
	wakeAt   time.Time // something may become available then; zero for never
	ticket   int64     // the place in the queue's own line, 0 for none
	session  int64     // under which the store has the ticket
	ticketed time.Time
}

// A place is one call's place in a line.
type place struct {
	ctx  context.Context //nolint:containedctx // of the call
	take queuing.Take
	in   *list.Element // nil if it is in the line no more
	turn chan struct{} // is closed when the call is the first, or is not to wait any more
	err  error         // why not

	part   *part         // of a call of the store that the first has begun; nil for none
	served chan struct{} // receives when that has brought something
}

func (p *place) first() bool {
	select {
	case <-p.turn:
		return true
	default:
		return false
	}
}

// enter puts a call at the end of the line. With alone it returns nil if others are there.
func (q *Queue) enter(ctx context.Context, t queuing.Take, alone bool) *place {
	l := &q.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if alone && l.calls.Len() > 0 {
		return nil
	}
	p := &place{ctx: ctx, take: t, turn: make(chan struct{}), served: make(chan struct{}, 1)}
	p.in = l.calls.PushBack(p)
	if l.calls.Len() == 1 {
		l.bell, l.stop = q.store.Watch(q.of.Category, receivePoll)
		l.look = true
		close(p.turn)
	}
	return p
}

// leave takes a call out of the line. Behind the last the queue's own line has no place any more.
func (q *Queue) leave(ctx context.Context, p *place) {
	l := &q.line
	l.mu.Lock()
	if p.in == nil {
		l.mu.Unlock()
		return
	}
	wasFirst := l.calls.Front() == p.in
	l.calls.Remove(p.in)
	p.in = nil
	var left int64
	if next := l.calls.Front(); next == nil {
		l.stop()
		if l.ticket != 0 {
			left = l.session
		}
		l.ticket, l.wakeAt = 0, time.Time{}
	} else if wasFirst {
		close(next.Value.(*place).turn) //nolint:errcheck // as put
	}
	l.mu.Unlock()
	if left != 0 {
		q.source.Leave(ctx, left, time.Now().Add(work.LeaveTimeout))
	}
}

// behind returns the parts that go with the take of the first call, in their order.
func (l *line) behind(t queuing.Take) (parts []*part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.calls.Front()
	if first == nil {
		return nil
	}
	wants := t.Want
	for e := first.Next(); e != nil && wants < maxShared; e = e.Next() {
		p := e.Value.(*place) //nolint:errcheck // as put
		if p.ctx.Err() != nil || p.part != nil && p.part.ended() && (p.part.err != nil || len(p.part.taken.Items) > 0) {
			continue // it is about to leave
		}
		wants += p.take.Want
		if p.part != nil && !p.part.ended() || p.take.Lease != t.Lease || wants > maxShared {
			break
		}
		with := queuing.Take{Queue: t.Queue, Policy: t.Policy, Session: p.take.Session, Lease: t.Lease, Want: p.take.Want}
		p.part = newPart(p.ctx, with)
		p.part.served = p.served
		parts = append(parts, p.part)
	}
	return parts
}

// partOf returns the call's part of a call of the store that an earlier first has begun.
func (l *line) partOf(p *place) *part {
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.part
}

// failed ends the wait of all calls in the line with an error of the store.
func (q *Queue) failed(err error) {
	l := &q.line
	l.mu.Lock()
	defer l.mu.Unlock()
	for next := l.calls.Front(); next != nil; next = l.calls.Front() {
		p := l.calls.Remove(next).(*place) //nolint:errcheck // as put
		p.in = nil
		if !p.first() {
			p.err = err
			close(p.turn)
		}
	}
	l.stop()
	l.ticket, l.wakeAt = 0, time.Time{}
}

// await waits until there may be an item or something else to look for. It reports false if the time
// left or ctx has ended.
func (q *Queue) await(ctx context.Context, left time.Duration) bool {
	l := &q.line
	pause := min(left, receivePoll)
	if !l.wakeAt.IsZero() {
		pause = min(pause, max(time.Until(l.wakeAt), time.Millisecond))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-l.bell:
		l.look = true
	case <-l.ended: // what was held behind it may be offered now
		l.look = q.mayHave(ctx)
	case <-ctx.Done():
	case <-timer.C:
		if left <= pause {
			return false
		}
		now := time.Now()
		l.look = !l.wakeAt.IsZero() && !now.Before(l.wakeAt) || now.Sub(l.ticketed) >= queuing.MaxWait
		l.look = l.look || q.mayHave(ctx)
	}
	return ctx.Err() == nil
}

// mayHave reports whether there may be an item for the first call in the line.
func (q *Queue) mayHave(ctx context.Context) bool {
	ready, err := q.driver.QueueReady(ctx, q.of)
	q.line.wakeIn(ready.Wake)
	return err != nil || ready.Ready // the take reports the failure
}

// freed tells the first call in the line, if any, that deliveries have ended.
func (l *line) freed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls.Len() == 0 {
		return
	}
	select {
	case l.ended <- struct{}{}:
	default: // it is about to look
	}
}

func (l *line) wakeIn(after time.Duration) {
	l.wakeAt = time.Time{}
	if after >= 0 {
		l.wakeAt = time.Now().Add(after)
	}
}

// An asking is one call of Receive.
type asking struct {
	*Queue

	take       queuing.Take
	repeatOnly bool
	endings    []queuing.Ending
}

// receive returns items, or none after the wait.
func (a *asking) receive(ctx context.Context, wait time.Duration) ([]queuing.Taking, error) {
	if a.repeatOnly {
		return a.ask(ctx, 0, nil)
	}
	deadline := time.Now().Add(wait)
	for wait == 0 || inTransaction(ctx) { // who is first in the line may wait for this transaction's connection
		items, err := a.ask(ctx, a.take.Want, nil)
		left := time.Until(deadline)
		if err != nil || len(items) > 0 || left <= 0 {
			return items, err
		}
		if err := outage.Wait(ctx, min(left, receivePoll)); err != nil {
			return nil, err
		}
	}
	p := a.enter(ctx, a.take, len(a.take.Finishes)+len(a.take.Resume) > 0)
	if p == nil { // this does not wait for the others
		if items, err := a.ask(ctx, 0, nil); err != nil || len(items) > 0 {
			return items, err
		}
		p = a.enter(ctx, a.take, false)
	}
	defer a.leave(ctx, p)
	if !p.first() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		over := true
		select {
		case <-p.turn:
			over = p.err != nil
		case <-p.served:
		case <-timer.C:
		case <-ctx.Done():
		}
		if over {
			a.leave(ctx, p) // from here on nobody asks for it
		}
		if part := a.line.partOf(p); part != nil {
			if items, err := a.answered(ctx, part, nil); err != nil || len(items) > 0 {
				return items, err
			}
			if left := time.Until(deadline); over && p.err == nil && left > 0 && ctx.Err() == nil {
				return a.receive(ctx, left) // they came too late
			}
		}
		if over {
			return nil, cmp.Or(p.err, ctx.Err())
		}
	}
	for {
		if a.line.look {
			if items, err := a.ask(ctx, a.take.Want, &a.line); err != nil || len(items) > 0 {
				return items, err
			}
		}
		if left := time.Until(deadline); !a.line.look && !a.await(ctx, left) || left <= 0 {
			return nil, ctx.Err()
		}
	}
}

// leaveWait is how long a call whose caller has gone waits until its items are given back, because
// the process may end with the call.
const leaveWait = 500 * time.Millisecond

// takeOrLeave waits for the answer to a take. If ctx ends, it reports that its caller is gone, but it
// does not cut the call off: a take that was cut off may still reserve items, after they were given
// back in vain. What it reserves is given back when it has its answer.
func (a *asking) takeOrLeave(ctx context.Context, p *part) (taken queuing.Taken, gone bool, err error) {
	select {
	case <-p.done:
		return p.taken, false, p.err
	case <-ctx.Done():
	}
	if a.calls.withdraw(p) {
		return queuing.Taken{}, true, ctx.Err()
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if <-p.done; p.err != nil || len(p.taken.Items) > 0 || p.taken.Ticket != 0 {
			a.source.Leave(ctx, p.take.Session, time.Now().Add(work.LeaveTimeout))
		}
	}()
	timer := time.NewTimer(leaveWait)
	defer timer.Stop()
	select {
	case <-left:
	case <-timer.C:
	}
	switch ended := p.ended(); {
	case ended && p.err == nil: // of what it was to settle the outcome is known
		return queuing.Taken{Endings: p.taken.Endings}, true, ctx.Err()
	case ended && len(p.take.Finishes) > 0:
		return queuing.Taken{}, true, p.err
	case len(p.take.Finishes) > 0:
		return queuing.Taken{}, true, &messagestore.OutcomeUnknownError{Cause: ctx.Err()}
	default:
		return queuing.Taken{}, true, ctx.Err()
	}
}

// ask makes one call of the store, for the first call in the line if l is not nil.
func (a *asking) ask(ctx context.Context, want int, l *line) ([]queuing.Taking, error) {
	policy, err := a.policyOf(ctx)
	t, now := a.take, time.Now()
	t.Policy, t.Want = policy, want
	if l != nil {
		if now.Sub(l.ticketed) >= queuing.MaxWait { // it has ended
			l.ticket = 0
		}
		if t.Ticket = l.ticket; t.Ticket == 0 {
			t.Wait = queuing.MaxWait
		}
	}
	p := newPart(ctx, t)
	if err != nil {
		return a.answered(ctx, p.failed(err), l)
	}
	if l != nil {
		a.begin(append([]*part{p}, l.behind(t)...)...)
	} else {
		a.begin(p)
	}
	return a.answered(ctx, p, l)
}

// answered waits for the answer to a part, and keeps its items unless they came too late.
func (a *asking) answered(ctx context.Context, p *part, l *line) ([]queuing.Taking, error) {
	t := p.take
	taken, gone, err := a.takeOrLeave(ctx, p)
	if err == nil || gone {
		a.endings = append(a.endings, taken.Endings...)
	}
	if err == nil {
		a.take.Finishes, a.take.Resume = nil, nil // done
	}
	items, late := taken.Items, false
	switch n := a.take.Want; {
	case err != nil:
	case len(items) > 0 && ctx.Err() != nil: // nobody waits for them
		err = ctx.Err()
	case len(items) > 0 && time.Since(taken.Since) >= t.Lease: // by now others may have them
		items, late = nil, true
		err = a.driver.QueueLeave(ctx, queuing.Leave{Queue: a.of, Session: t.Session})
	case len(items) > n: // of several earlier attempts
		var rest []queuing.Finish
		for _, item := range items[n:] {
			rest = append(rest, queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Unhandled, Session: t.Session})
		}
		items = items[:n]
		_, err = a.finishAll(ctx, rest)
	}
	if err != nil {
		if l != nil {
			l.look = true
			if l.session == t.Session {
				l.ticket = 0
			}
			if ctx.Err() == nil {
				a.failed(err)
			}
		}
		unknown := errors.Is(err, messagestore.ErrOutcomeUnknown)
		if !gone && (l != nil && p.served == nil || unknown || len(taken.Items) > 0) { // nobody else can have a place in the line, or the reserved items
			a.source.Leave(ctx, t.Session, time.Now().Add(work.LeaveTimeout))
		}
		return nil, err
	}
	if l != nil {
		l.look = len(items) > 0 || taken.More || late
		l.wakeIn(taken.Wake)
		switch {
		case taken.Ticket != 0:
			l.ticket, l.session, l.ticketed = taken.Ticket, t.Session, taken.Since
		case len(taken.Items) > 0:
			l.ticket = 0
		}
	}
	return items, nil
}
