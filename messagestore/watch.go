package messagestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
)

// The times of watching for messages.
const (
	// headsTimeout bounds one read of the heads, so that a dead connection does not hold up the
	// waiters for minutes.
	headsTimeout = 15 * time.Second

	// After a failure the wait doubles. Reading the heads is one query for all waiters, so it may
	// be retried often; listening takes a connection.
	minWatchBackoff  = 50 * time.Millisecond
	maxLookBackoff   = time.Second
	maxListenBackoff = 10 * time.Second

	// listenLinger is how long a driver goes on listening after the last waiter has left. Listening
	// takes a connection, and each of many short waits would open one.
	listenLinger = 250 * time.Millisecond

	// seldom is the interval of the timer when there is no head to look at.
	seldom = time.Hour
)

// Watch returns a channel of wake-ups. A wake-up comes when there may be messages in category to
// read: at once after a write through this store, or after a write that the driver hears of, and at
// most interval after any other write. Several writes may be one wake-up, and a wake-up may come
// without a write. Its value is the position of a message that can be read, so that a reader that
// is past it keeps waiting, or 0 if no position is known.
//
// While at least one category is watched, the store has one or two goroutines. They read the heads
// of all watched categories together, if the driver supports that; else they send a wake-up every
// interval. They do so even if the driver listens: a notification may be lost, and not every writer
// sends one. With an interval of 0, Watch does not look for writes of other processes.
//
// Call stop when you are done, before the driver is closed; you may call it twice. The channel is
// never closed. The last stop ends the goroutines; if the driver listens, they end a quarter of a
// second later, unless another watch begins meanwhile, or at [Store.Close]. A nil store sends no
// wake-ups.
func (s *Store) Watch(category Category, interval time.Duration) (bell <-chan GlobalPosition, stop func()) {
	if s == nil {
		return nil, func() {}
	}
	w := &s.watches
	b := &watcher{make(chan GlobalPosition, 1), interval}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.by[category]
	if c == nil {
		c = &watched{category: category}
		if w.by == nil {
			w.by = map[Category]*watched{}
		}
		w.by[category] = c
		w.all = append(w.all, c)
	}
	c.watchers = append(c.watchers, b)
	c.setInterval()
	if at := time.Now().Add(interval); interval > 0 && (c.due.IsZero() || at.Before(c.due)) {
		c.due = at
	}
	if w.end == nil {
		w.begin(s)
	}
	if w.linger != nil {
		w.linger.Stop()
		w.linger = nil
	}
	w.lookAgain()
	return b.bell, sync.OnceFunc(func() { w.leave(c, b) })
}

// watches are the waiters for writes to a store.
type watches struct {
	mu  sync.Mutex
	by  map[Category]*watched
	all []*watched // the same as a list, which is walked ten times a second
	end func()     // ends the goroutines, while there are any

	listens bool          // one of them has begun to listen
	linger  *time.Timer   // until their end, while they have no waiter
	left    int           // how often the last waiter has left
	again   chan struct{} // receives when a category may be due sooner than it was
}

// A watched is a category with waiters.
type watched struct {
	category Category
	watchers []*watcher     // none once the last watcher has left
	interval time.Duration  // the shortest interval of its watchers, 0 for none
	head     GlobalPosition // the highest position that is known
	asked    GlobalPosition // the same, when it was looked at last
	due      time.Time      // when to look at its head, zero for never
}

// A watcher waits for a category.
type watcher struct {
	bell     chan GlobalPosition
	interval time.Duration // how long it may wait, 0 if it does not care
}

func (w *watches) leave(c *watched, b *watcher) {
	w.mu.Lock()
	c.watchers = slices.DeleteFunc(c.watchers, func(other *watcher) bool { return other == b })
	c.setInterval()
	if len(c.watchers) == 0 {
		delete(w.by, c.category)
		w.all = slices.DeleteFunc(w.all, func(other *watched) bool { return other == c })
	}
	end := func() {}
	switch {
	case len(w.all) > 0:
	case w.listens:
		w.left++
		last := w.left
		w.linger = time.AfterFunc(listenLinger, func() { w.endLinger(last) })
	default:
		end, w.end = w.end, nil
	}
	w.mu.Unlock()
	end()
}

// endLinger ends the goroutines if they linger since the last waiter left for the left-th time, or,
// if left is 0, since any time.
func (w *watches) endLinger(left int) {
	w.mu.Lock()
	end := func() {}
	if w.linger != nil && (left == 0 || left == w.left) {
		w.linger.Stop()
		end, w.end, w.linger = w.end, nil, nil
	}
	w.mu.Unlock()
	end()
}

func (c *watched) setInterval() {
	c.interval = 0
	for _, b := range c.watchers {
		if b.interval > 0 && (c.interval == 0 || b.interval < c.interval) {
			c.interval = b.interval
		}
	}
}

// ring wakes all waiters for a message at head, 0 for unknown.
func (c *watched) ring(head GlobalPosition) {
	for _, b := range c.watchers {
		told := head
		select {
		case earlier := <-b.bell: // the wake-up before was not received yet
			if told = max(told, earlier); head == 0 || earlier == 0 {
				told = 0
			}
		default:
		}
		b.bell <- told // there is room: no other goroutine sends
	}
}

// heard wakes the waiters for a write of this store, or for a write that the driver noticed, unless
// they know already.
func (w *watches) heard(category Category, head GlobalPosition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if category == "" { // the driver begins to listen: writes may have been missed
		w.listens = true
		now := time.Now()
		for _, c := range w.all {
			c.due = now
		}
		w.lookAgain()
		return
	}
	if c := w.by[category]; c != nil && (head == 0 || head > c.head) {
		c.head = max(c.head, head)
		c.ring(head)
	}
}

func (w *watches) lookAgain() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// begin starts the goroutines.
func (w *watches) begin(s *Store) {
	ctx, cancel := context.WithCancel(context.Background())
	again := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() { s.lookOut(ctx, again) })
	wg.Go(func() { s.listen(ctx) })
	w.again, w.listens = again, false
	w.end = func() {
		cancel()
		wg.Wait()
		s.outage.Ends(looks.By)
	}
}

// The parts of the store that an outage can stop.
var (
	looks   = outage.Key{By: "watch", To: "look at heads"}
	listens = outage.Key{By: "watch", To: "listen"}
)

// lookOut reads the heads of all watched categories, each as often as its waiters need, until ctx
// is done. If the heads cannot be read, it wakes every waiter to poll for itself.
func (s *Store) lookOut(ctx context.Context, again <-chan struct{}) {
	canTell := true
	timer := time.NewTimer(seldom)
	defer timer.Stop()
	var l look
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-timer.C:
		}
		s.watches.ask(&l, time.Now())
		var heads []GlobalPosition
		var err error
		if canTell && len(l.asked) > 0 {
			err = func() (err error) { // a goroutine of its own, for a driver that ends it, would cost more than the look
				err = calling.ErrExited
				defer calling.Catch(&err)
				heads, err = s.heads(ctx, l.categories)
				return err
			}()
			canTell = !errors.Is(err, ErrNotSupported)
		}
		switch {
		case ctx.Err() != nil:
			return
		case heads != nil:
			s.watches.answer(&l, heads)
		default:
			s.watches.ringAll(&l)
		}
		switch {
		case len(l.asked) == 0: // nothing was asked, and nothing is known
		case err == nil, !canTell:
			failures = 0
			s.outage.Works(looks)
		case errors.Is(err, ErrClosed): // no outage, and the waiters that were woken find out
			failures++
		default:
			failures++
			s.outage.Failed(looks, s.config.Logger, "to", looks.To, "categories", len(l.asked), "failures", failures, "error", text.Log(err))
		}
		timer.Reset(max(time.Until(s.watches.nextDue()), outage.Pause(failures, minWatchBackoff, maxLookBackoff)))
	}
}

// A look is one read of the heads of categories. It is reused for the next read.
type look struct {
	asked      []*watched
	categories []Category // of asked
}

// ask fills l with the categories that are due, if any, and those due soon, so that one read serves
// all.
func (w *watches) ask(l *look, now time.Time) {
	l.asked, l.categories = l.asked[:0], l.categories[:0]
	w.mu.Lock()
	defer w.mu.Unlock()
	due := func(c *watched) bool { return !c.due.IsZero() && !now.Before(c.due) }
	if !slices.ContainsFunc(w.all, due) {
		return
	}
	for _, c := range w.all {
		if c.due.IsZero() || now.Before(c.due.Add(-c.interval/2)) {
			continue
		}
		l.asked = append(l.asked, c)
		l.categories = append(l.categories, c.category)
		c.asked = c.head
		if c.due = now.Add(c.interval); c.interval == 0 {
			c.due = time.Time{}
		}
	}
}

// answer rings for the heads that have moved.
func (w *watches) answer(l *look, heads []GlobalPosition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range l.asked {
		switch head := heads[i]; {
		case head > c.head:
			c.head = head
			c.ring(head)
		case head < c.head && c.head == c.asked:
			// Nothing was written since the query, and yet the head is lower: the store was
			// restored or trimmed.
			c.head = head
			c.ring(0)
		}
	}
}

// ringAll wakes the waiters of all categories that l could not read.
func (w *watches) ringAll(l *look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range l.asked {
		c.ring(0)
	}
}

// nextDue returns when the next head is due.
func (w *watches) nextDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := time.Now().Add(seldom)
	for _, c := range w.all {
		if !c.due.IsZero() && c.due.Before(next) {
			next = c.due
		}
	}
	return next
}

func (s *Store) heads(ctx context.Context, categories []Category) ([]GlobalPosition, error) {
	ctx, cancel := context.WithTimeout(ctx, headsTimeout)
	defer cancel()
	var heads []GlobalPosition
	for part := range slices.Chunk(categories, maxHeads) {
		found, err := s.driver.Heads(ctx, part)
		if err == nil && len(found) != len(part) {
			err = fmt.Errorf("look at the heads of %d categories: the database answered for %d", len(part), len(found))
		}
		if err != nil {
			return nil, err
		}
		heads = append(heads, found...)
	}
	return heads, nil
}

// listen wakes waiters for the writes that the driver hears of, until ctx is done.
func (s *Store) listen(ctx context.Context) {
	for failures := 1; ; failures++ {
		err := calling.Call(func() error {
			return s.driver.Listen(ctx, func(category Category, head GlobalPosition) {
				failures = 1
				s.outage.Works(listens)
				s.watches.heard(category, head)
			})
		})
		if ctx.Err() != nil || errors.Is(err, ErrNotSupported) || errors.Is(err, ErrClosed) {
			return
		}
		wait := outage.Pause(failures, minWatchBackoff, maxListenBackoff)
		s.outage.Failed(listens, s.config.Logger, "to", listens.To, "failures", failures, "wait", wait, "error", text.Log(err))
		if outage.Wait(ctx, wait) != nil {
			return
		}
	}
}
