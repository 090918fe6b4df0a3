package queue

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	// takeTimeout bounds a take of items, whose caller may have gone.
	takeTimeout = 15 * time.Second

	// sharedTimeout bounds a call that ends the deliveries of several callers.
	sharedTimeout = time.Minute

	// maxShared bounds the items of callers who share a take: each may be large.
	maxShared = 100

	// hangs is after which time a call of the store keeps no later one waiting.
	hangs = time.Second
)

// calls are the calls of the store that a queue's callers make. One is under way at a time, and what
// comes meanwhile goes together in the next one: the ends of all deliveries, and the takes of items.
// Each caller has its own answer, and an error of the store is the answer of each. A call that comes
// alone goes at once, and so does a call in the function of a transaction, by itself: the one under way
// may wait for that function's connection. It has a goroutine while a call is under way.
type calls struct {
	mu      sync.Mutex
	waiting []*part
	senders int
	began   time.Time // the last call
}

// A part is what one caller wants of a call of the store.
type part struct {
	ctx   context.Context //nolint:containedctx // of its caller, who waits for the answer
	take  queuing.Take    // each of its Finishes names its session
	alone bool            // in its call, which ends with ctx if it takes no items
	done  chan struct{}

	served chan<- struct{} // receives if the answer has items or is an error; nil for none

	taken queuing.Taken // once done
	err   error
}

// takes reports whether a part can have items.
func (p *part) takes() bool { return p.take.Want > 0 || len(p.take.Resume) > 0 }

// shares reports whether the part can share the take of an earlier one.
func (p *part) shares(first *part) bool {
	t, of := &p.take, &first.take
	return t.Lease == of.Lease && t.Wait == 0 && t.Ticket == 0 && len(t.Resume)+len(of.Resume) == 0
}

func newPart(ctx context.Context, t queuing.Take) *part {
	return &part{ctx: ctx, take: t, done: make(chan struct{})}
}

// failed returns the part with an error as its answer. It was not sent.
func (p *part) failed(err error) *part {
	p.err = err
	close(p.done)
	return p
}

// ended reports whether the part has its answer.
func (p *part) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// inTransaction reports whether ctx belongs to the function of a transaction of the store.
func inTransaction(ctx context.Context) bool { return calling.CallerOf(ctx).Transaction }

// begin has parts go in the next call, which begins now if none is under way. A repeated call goes
// now: the call under way may be of its earlier attempt.
func (q *Queue) begin(parts ...*part) {
	if inTransaction(parts[0].ctx) {
		parts[0].alone = true
		go q.together(parts)
		return
	}
	c := &q.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	repeats := len(parts[0].take.Resume) > 0
	if repeats {
		c.waiting = slices.Concat(parts, c.waiting)
	} else {
		c.waiting = append(c.waiting, parts...)
	}
	if c.senders == 0 || repeats || time.Since(c.began) > hangs {
		c.senders++
		c.began = time.Now()
		go q.send()
	}
}

// withdraw reports whether the part was not sent, and will not be.
func (c *calls) withdraw(p *part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, p)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	return i >= 0
}

// answer waits for the answer to a part.
func (c *calls) answer(p *part) (queuing.Taken, error) {
	select {
	case <-p.done:
		return p.taken, p.err
	case <-p.ctx.Done():
	}
	if c.withdraw(p) {
		return queuing.Taken{}, p.ctx.Err()
	}
	if !p.alone && !p.ended() {
		return queuing.Taken{}, &messagestore.OutcomeUnknownError{Cause: p.ctx.Err()}
	}
	<-p.done // the call has ended with ctx
	return p.taken, p.err
}

// send makes calls until nobody waits.
func (q *Queue) send() {
	for group := q.calls.next(); len(group) > 0; group = q.calls.next() {
		q.together(group)
		runtime.Gosched() // callers that were answered may call again, and go with the next group
	}
}

// next returns the parts of the next call, in their order. Of each item there is one delivery,
// because the drivers do not say in which order a call treats two.
func (c *calls) next() (group []*part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	met := map[messagestore.GlobalPosition]bool{}
	ends, wants, sessions := 0, 0, map[int64]bool{}
	var first *part // of those that take items
	var passed bool // one of them, so no later one goes before it
	c.waiting = slices.DeleteFunc(c.waiting, func(p *part) bool {
		goes := ends+len(p.take.Finishes) <= queuing.MaxItems && !slices.ContainsFunc(p.take.Finishes, func(f queuing.Finish) bool { return met[f.Position] })
		for _, f := range p.take.Finishes {
			met[f.Position] = true
		}
		if p.takes() {
			goes = goes && !passed && (first == nil || wants+p.take.Want <= maxShared && !sessions[p.take.Session] && p.shares(first))
			passed, sessions[p.take.Session] = !goes, true
			if goes && first == nil {
				first = p
			}
		}
		if goes {
			group, ends, wants = append(group, p), ends+len(p.take.Finishes), wants+p.take.Want
		}
		return goes
	})
	if len(group) == 1 {
		group[0].alone = true
	}
	if c.began = time.Now(); len(group) == 0 {
		c.senders--
	}
	return group
}

// together makes one call of the store for a group of parts.
func (q *Queue) together(group []*part) {
	main := group[max(0, slices.IndexFunc(group, (*part).takes))]
	t, began := main.take, time.Now()
	if len(group) > 1 {
		t.Finishes = nil
		for _, p := range group {
			if p != main && p.takes() {
				t.Others = append(t.Others, queuing.Other{Session: p.take.Session, Want: p.take.Want})
			}
			t.Finishes = append(t.Finishes, p.take.Finishes...)
		}
	}
	ctx := main.ctx
	if limit := takeTimeout; main.takes() || len(group) > 1 {
		if !main.takes() {
			limit = sharedTimeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
	}
	var taken queuing.Taken
	err := calling.Call(func() (err error) {
		taken, err = q.driver.QueueTake(ctx, t)
		return err
	})
	if calling.PanicOf(err) != nil {
		err = &messagestore.OutcomeUnknownError{Cause: err}
	}
	if err == nil && len(taken.Endings) != len(t.Finishes) {
		err = fmt.Errorf("%w: the store returned %d endings for %d", messagestore.ErrOutcomeUnknown, len(taken.Endings), len(t.Finishes))
	}
	if err == nil && len(t.Finishes) > 0 {
		q.line.freed()
	}
	endings, items := taken.Endings, taken.Items
	for _, p := range group {
		if p.err = err; err != nil {
			continue
		}
		if p == main {
			p.taken = taken
		}
		p.taken.Since = cmp.Or(taken.Since, began)
		n := len(p.take.Finishes)
		p.taken.Endings, endings = endings[:n:n], endings[n:]
		if len(t.Others) > 0 {
			n = min(p.take.Want, len(items))
			p.taken.Items, items = items[:n:n], items[n:]
		}
	}
	for _, p := range slices.Backward(group) { // the first in line is told last, because it leaves the line then
		close(p.done)
		if p.served != nil && (err != nil || len(p.taken.Items) > 0) {
			p.served <- struct{}{}
		}
	}
}
