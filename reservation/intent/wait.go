package intent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	// tailInterval is how often a store looks for the writes of other processes that its driver
	// did not hear of.
	tailInterval = 100 * time.Millisecond

	minTailBackoff = 20 * time.Millisecond
	maxTailBackoff = time.Second

	// leastSleep bounds the looks at an intent whose time is nearly over.
	leastSleep = time.Millisecond
)

// wait has a stand in the line of the intent that it met, and waits until there may be another
// answer. The result known is the store's time as of which the states of a's keys are known; if
// it is zero, they have to be looked at. It is over when the request has waited long enough.
func (a *attempt) wait(ctx context.Context, w *waiter, now, end time.Time) (known time.Time, over bool, err error) {
	k := &a.keys[a.blocked]
	fresh := w.on(k.stream)
	if len(a.keys) > 1 {
		if fresh { // an end before it listened would be missed
			return time.Time{}, false, nil
		}
	} else if now, err = a.stand(ctx, now); err != nil || k.met == nil || now.IsZero() {
		return time.Time{}, false, err
	} else if answer, final := a.answer(now); !final || answer.Outcome != Held {
		return now, false, nil
	}
	if !slices.Contains(k.met.Line, a.request.Session) && len(a.keys) == 1 {
		return now, true, nil // the line is full
	}
	w.from(k.met.at.GlobalPosition)
	rest := time.Until(end)
	d := min(k.met.mayTake(a.request.Session, a.m.config.Turn).Sub(now), time.Until(k.watch.Add(k.silence(a))), rest)
	m, err := w.sleep(ctx, max(d, leastSleep))
	switch {
	case err != nil:
		return time.Time{}, false, err
	case m != nil && len(a.keys) == 1 && m.Position > k.met.at.Position:
		s, err := read(m)
		if err != nil {
			return time.Time{}, false, err
		}
		k.meet(s)
		return m.Time, false, nil
	}
	return time.Time{}, time.Until(end) <= 0, nil
}

// stand puts the session at the end of the line, if it is not in it, and returns the store's time
// of the state that a has met by then. A line that is full stays as it is.
func (a *attempt) stand(ctx context.Context, now time.Time) (time.Time, error) {
	k := &a.keys[0]
	for {
		s := k.met
		if slices.Contains(s.Line, a.request.Session) || len(s.Line) >= maxLine {
			return now, nil
		}
		met, err := a.line(ctx, append(slices.Clone(s.Line), a.request.Session))
		switch {
		case err != nil:
			return time.Time{}, err
		case met == nil:
			return k.met.at.Time, nil
		case k.met == nil:
			return time.Time{}, nil
		}
		now = met.Time
		if answer, final := a.answer(now); !final || answer.Outcome != Held {
			return now, nil
		}
	}
}

// line writes another line to the intent that a met. If the intent has moved on, it returns the
// meeting.
func (a *attempt) line(ctx context.Context, line []string) (*messagestore.Meeting, error) {
	k := &a.keys[0]
	s := k.met
	body := Waiting{s.Grant, s.token, s.since.UnixMicro(), s.of, s.released, s.by, s.reason}
	body.Line = line
	written, met, err := a.m.store.WriteOrLast(ctx, k.stream, s.at.Position, messagestore.Envelope{Body: body, Metadata: s.metadata})
	if err != nil {
		return nil, err
	}
	if met != nil {
		return met, a.meet(met.Last)
	}
	next := granted(body, written, s.metadata)
	k.meet(&next)
	return nil, nil
}

// leaveLine takes the session out of the line, so that its turn costs the others no time. That it
// may not succeed is the reason for turns.
func (a *attempt) leaveLine(ctx context.Context) {
	const attempts = 3
	k := &a.keys[0]
	for range attempts {
		if len(a.keys) > 1 || k.met == nil || k.met.done() {
			return
		}
		i := slices.Index(k.met.Line, a.request.Session)
		if i < 0 {
			return
		}
		if met, err := a.line(ctx, slices.Delete(slices.Clone(k.met.Line), i, i+1)); err != nil || met == nil {
			return
		}
	}
}

// A waiter waits for the end of a lease.
type waiter struct {
	m       *Manager
	stream  messagestore.StreamName
	bell    chan *messagestore.Message
	tailing bool // a tail was running when it began to listen, or does so by now
}

func (m *Manager) newWaiter() *waiter { return &waiter{m: m} }

// on begins to listen to stream, if it does not do so already.
func (w *waiter) on(stream messagestore.StreamName) (fresh bool) {
	if w.stream == stream {
		return false
	}
	w.leave()
	w.stream = stream
	w.bell = make(chan *messagestore.Message, 1)
	w.tailing = w.m.wakeups.listen(w)
	return true
}

// from has the category read from the message after position on, if no goroutine reads it yet.
// Position is that of a message that was there once the waiter listened.
func (w *waiter) from(position messagestore.GlobalPosition) {
	if !w.tailing {
		w.m.wakeups.tail(position.Next())
		w.tailing = true
	}
}

// sleep waits for d, and returns early with a message that ended the lease, or with the context's
// error.
func (w *waiter) sleep(ctx context.Context, d time.Duration) (*messagestore.Message, error) {
	if _, ok := w.m.store.(CategoryStore); !ok {
		d = min(d, PollInterval)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case m := <-w.bell:
		return m, nil
	case <-timer.C:
		return nil, nil
	}
}

// leave stops listening.
func (w *waiter) leave() {
	if w.bell != nil {
		w.m.wakeups.leave(w)
		w.bell = nil
	}
}

// wakeups tell the waiters of a manager of messages that end leases. While there are waiters, one
// goroutine reads the category.
type wakeups struct {
	m  *Manager
	mu sync.Mutex

	waiters map[messagestore.StreamName][]*waiter
	reader  *tail // nil while the category is not read
}

// A tail is a goroutine that reads the category.
type tail struct {
	next  messagestore.GlobalPosition
	again chan struct{} // receives when next has become less, and when the last waiter has left
}

// wake has the goroutine look what has changed.
func (t *tail) wake() {
	select {
	case t.again <- struct{}{}:
	default:
	}
}

// listen adds a waiter, and reports whether the category is read already.
func (w *wakeups) listen(one *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiters == nil {
		w.waiters = map[messagestore.StreamName][]*waiter{}
	}
	w.waiters[one.stream] = append(w.waiters[one.stream], one)
	return w.reader != nil
}

// tail has the category read from position on.
func (w *wakeups) tail(position messagestore.GlobalPosition) {
	store, ok := w.m.store.(CategoryStore)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.reader; r != nil {
		if position < r.next {
			r.next = position
			r.wake()
		}
		return
	}
	w.reader = &tail{position, make(chan struct{}, 1)}
	go w.read(store, w.reader)
}

// leave removes a waiter, and with the last one ends the goroutine. A read that is under way is not
// broken off: that would cost the connection, and the last waiter of a category leaves often.
func (w *wakeups) leave(one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.waiters[one.stream], func(other *waiter) bool { return other == one })
	w.waiters[one.stream] = rest
	if len(rest) == 0 {
		delete(w.waiters, one.stream)
	}
	if len(w.waiters) == 0 && w.reader != nil {
		w.reader.wake()
	}
}

// read reads the category for as long as there are waiters.
func (w *wakeups) read(store CategoryStore, r *tail) {
	bell, stop := store.Watch(w.m.category, tailInterval)
	defer stop()
	q := messagestore.CategoryQuery{
		Category: w.m.category, Limit: 1000, Filter: messagestore.Filter{Types: []string{TypeReleased, TypeConfirmed}},
	}
	for failures := 0; w.wanted(r, &q); {
		page, err := readPage(store, q)
		if err != nil {
			failures++
			w.m.config.Logger.Warn().Err(err).Str("category", string(w.m.category)).Int("failures", failures).Msg("wait for intents")
			select {
			case <-r.again:
			case <-time.After(backoff.After(failures, minTailBackoff, maxTailBackoff)):
			}
			continue
		}
		failures = 0
		if w.deliver(r, q.From, page) {
			continue
		}
		select {
		case <-r.again:
		case <-bell:
		}
	}
}

// wanted tells whether there are waiters still, and from where on the category is to be read. If there
// are none, the next one starts another goroutine.
func (w *wakeups) wanted(r *tail, q *messagestore.CategoryQuery) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.From = r.next
	if len(w.waiters) == 0 {
		w.reader = nil
	}
	return w.reader != nil
}

func readPage(store CategoryStore, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
	defer cancel()
	return store.ReadCategoryPage(ctx, q)
}

// deliver wakes the waiters for the messages of the page, and reports whether there is more to
// read.
func (w *wakeups) deliver(r *tail, from messagestore.GlobalPosition, page messagestore.CategoryPage) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range page.Messages {
		for _, one := range w.waiters[m.Stream] {
			select {
			case <-one.bell: // the one before was not received yet
			default:
			}
			one.bell <- m // there is room: no other goroutine sends
		}
	}
	if r.next != from { // it was put back meanwhile
		return true
	}
	r.next = page.Next
	return page.More
}
