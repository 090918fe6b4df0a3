package work

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/waiting"
)

// A lease is the lease of a worker's session. It is extended while the session has items.
type lease struct {
	beats chan struct{} // it is to be extended now

	// Of the goroutine of run.
	renew bool      // the answer of a take was lost
	left  time.Time // when the session was first left, while renew is set

	// Under the worker's mu.
	session    int64
	leaving    int64 // the session that is left, and the one that follows, until the store has told that it is left
	next       int64
	unextended bool // a warning said that items are lost, and the store has not answered since
}

func newLease() lease { return lease{beats: make(chan struct{}, 1), session: NewSession()} }

// NewSession returns a number that no other session of any database has and that nobody can guess:
// only its own session can end a delivery.
func NewSession() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:])                                // it never fails
	return int64(binary.NativeEndian.Uint64(b[:])>>2) + 1 //nolint:gosec // of 62 bits
}

// Leave gives back all items of a session. While the store fails, it tries again, up to the time
// until. If it does not succeed, the items come back when the session ends.
func (s *Source) Leave(ctx context.Context, session int64, until time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaveTimeout)
	defer cancel()
	decided := func(err error) bool { return waiting.Lasts(err) || !time.Now().Before(until) }
	err := waiting.Loop{Decided: decided}.Do(ctx, func() error {
		return s.Driver.QueueLeave(ctx, queuing.Leave{Queue: s.Queue, Session: session})
	})
	if err != nil {
		s.Logger.Debug().Str("queue", s.Queue.Name).Str("error", text.Log(err)).Msg("session is left to end by itself")
	}
}

// renewSession leaves a session that may have reserved items in a take with a lost answer. It moves
// the known items to the next session.
func (w *worker) renewSession(ctx context.Context, due []*ending) error {
	w.mu.Lock()
	if w.next == 0 {
		w.leaving, w.next = w.session, NewSession()
	}
	l := queuing.Leave{Queue: w.Queue, Session: w.leaving, Next: w.next, Lease: w.config.Lease}
	for delivery, f := range w.deliveries {
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
	if err := w.Driver.QueueLeave(ctx, l); err != nil {
		return err
	}
	w.mu.Lock()
	w.notes.Again()
	for _, e := range slices.Concat(w.pending, due) {
		e.delivery.moved(l)
	}
	for _, f := range w.deliveries {
		if f.moved(l) && w.session == l.Session && time.Now().Before(f.until) { // else it may have been another's before
			f.until = later(f.until, w.left.Add(w.config.Lease))
		}
	}
	if w.session == l.Session { // else it has ended meanwhile, and its items are lost
		w.session = l.Next
	}
	w.leaving, w.next = 0, 0
	w.mu.Unlock()
	w.left = time.Time{}
	w.renew, w.ticket, w.ticketed = false, 0, false
	return nil
}

// until returns the first time at which a session that has a delivery may end, unless it is
// extended. It returns the zero time if no delivery goes on. It is called under mu.
func (w *worker) until() (first time.Time) {
	for _, f := range w.deliveries {
		if !f.done && !f.gone && (first.IsZero() || f.until.Before(first)) {
			first = f.until
		}
	}
	return first
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// beat extends the session, and cancels the handlers of items that it cannot extend.
func (w *worker) beat(ctx context.Context) {
	for {
		timer := time.NewTimer(w.beatPause())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-w.beats:
		case <-timer.C:
		}
		timer.Stop()
		w.mu.Lock()
		e := queuing.Extension{Queue: w.Queue, Session: w.session, Lease: w.config.Lease}
		for delivery, f := range w.deliveries {
			if !f.done && !f.gone {
				e.Deliveries, e.Sessions = append(e.Deliveries, delivery), f.own(e.Sessions)
			}
		}
		for _, p := range w.pending {
			e.Deliveries, e.Sessions = append(e.Deliveries, p.Delivery), p.delivery.own(e.Sessions)
		}
		until := w.until()
		var version int
		if len(e.Deliveries) > 0 {
			e.Notes, version = w.notes.News()
		}
		w.mu.Unlock()
		if len(e.Deliveries) == 0 {
			continue // the session may end
		}
		began := time.Now()
		call, cancel := context.WithDeadline(calling.Upkeep(ctx), later(until.Add(-w.margin()), began.Add(w.config.Lease/10)))
		var lost []queuing.Delivery
		err := calling.Call(func() (err error) {
			lost, err = w.Driver.QueueExtend(call, e)
			return err
		})
		cancel()
		w.extended(e, began, lost, err)
		if err == nil {
			w.notes.Stored(version)
		}
	}
}

// margin is how long before its end a session that was not extended counts as over.
func (w *worker) margin() time.Duration { return w.config.Lease / 10 }

func (w *worker) beatPause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	pause := w.config.Lease / 3
	if until := w.until(); !until.IsZero() {
		pause = min(pause, max(time.Until(until)-w.margin()-w.config.Lease/10, w.config.Lease/20))
	}
	return pause
}

// extended handles the answer to an extension.
func (w *worker) extended(e queuing.Extension, began time.Time, lost []queuing.Delivery, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session != e.Session {
		return // left meanwhile, and what it had is another's
	}
	defer w.fill()                                // what waited to be certain, in the places of what is lost, too
	alive := err == nil && w.leaving != e.Session // while it is left, nobody knows whose they are
	until := w.until()
	switch {
	case alive:
		// An item that the call did not name, because its take was answered later, keeps its time:
		// its session may have ended since.
		for _, delivery := range e.Deliveries {
			if f := w.deliveries[delivery]; f != nil {
				f.until = later(f.until, began.Add(w.config.Lease))
			}
		}
		w.answered()
	case until.IsZero() || time.Now().Before(until.Add(-w.margin())):
		return
	default: // nobody else may work on them while they go on
		lost = slices.Collect(maps.Keys(w.deliveries)) // also what was begun since the call was made
		w.session = NewSession()
		if w.unextended {
			break // in the same outage
		}
		w.unextended = true
		event := w.log().Warn().Str("queue", w.Queue.Name).Int("items", len(lost))
		if err != nil {
			event = event.Str("error", text.Log(err))
		}
		event.Msg("session could not be extended: its items are lost")
	}
	for _, delivery := range lost {
		f := w.deliveries[delivery]
		if f == nil || f.done {
			continue
		}
		if f.early != nil || f.Committed.Load() { // it is finished, or will be: the store tells whether by this handler
			f.gone = alive
			if !alive || f.early != nil && slices.Contains(w.pending, f.early) {
				f.cancel(ErrLost)
			}
			continue
		}
		f.done = true
		w.wake()
		w.counts.Lost.Add(1)
		f.cancel(ErrLost)
		w.about(w.log().Warn(), f).Msg("delivery lost")
	}
}

// own adds the session of a delivery, if it has one of its own.
func (d *Delivery) own(sessions []int64) []int64 {
	if d.Item.Session == 0 {
		return sessions
	}
	return append(sessions, d.Item.Session)
}

// answered logs that the store answers again, if a warning said that items are lost. It is called
// under mu.
func (w *worker) answered() {
	if w.unextended {
		w.unextended = false
		w.log().Warn().Str("queue", w.Queue.Name).Msg("the store answers again: items are taken")
	}
}
