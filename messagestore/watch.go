package messagestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
)

const (
	// headsTimeout bounds one look at the heads, so that a connection whose other end is gone
	// does not hold up the waiters for minutes.
	headsTimeout = 15 * time.Second

	// A failure is tried again after a wait that doubles. A look is one query for all waiters,
	// so it may be tried often; listening takes a connection.
	minWatchBackoff  = 50 * time.Millisecond
	maxLookBackoff   = time.Second
	maxListenBackoff = 10 * time.Second

	// listenLinger is how long a driver listens on after the last waiter has left: to listen takes
	// a connection, and waits that are short and many would make one each.
	listenLinger = 250 * time.Millisecond

	// seldom is how often nothing happens where nothing is to be looked at.
	seldom = time.Hour
)

// Watch returns a channel of wake-ups. It receives when there may be messages in category to read:
// at once after a write through this store, and at most interval after any other; at once after
// that too, if the driver hears of it. Several writes may be one wake-up, and a wake-up may come
// without a write. The channel receives the position of a message that is there, so that a reader
// that has read past it waits on, or 0 if none is known.
//
// While at least one category is watched, the store has one or two goroutines. They look at the
// heads of all watched categories together, if the driver can tell them; else they send a wake-up
// every interval. They look as often where the driver listens: a notification may be lost, and not
// every writer sends one. An interval of 0 waits for no other process.
//
// Stop ends it, and with the last one the goroutines; it may be called twice. Where the driver
// listens, they end a second later, if no other watch begins meanwhile, or with [Store.Close]. The
// channel is never closed. Stop is called before the driver is closed. A store that is nil sends no
// wake-up.
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

// A watched category has waiters.
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

// endLinger ends the goroutines if they linger: since the last waiter left for the given time, or,
// if that is 0, since any.
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

// ring wakes all waiters: there is a message at head, 0 for unknown.
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

// heard wakes the waiters for a write of this store, or for a write that the driver heard of, if
// it is news.
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

// What fails in an outage of the store.
var (
	looks   = outage.Key{By: "watch", To: "look at heads"}
	listens = outage.Key{By: "watch", To: "listen"}
)

// lookOut looks at the heads of all watched categories, each as often as it has to be, until
// ctx is done. If the heads cannot be read, it wakes every waiter to poll for itself.
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
			err = func() (err error) { // a goroutine of its own, for one that ends it, would cost more than the look
				err = failure.ErrExited
				defer failure.Catch(&err)
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

// A look is at the heads of categories. It is used again for the next.
type look struct {
	asked      []*watched
	categories []Category // of asked
}

// ask fills l with the categories to look at, if one is due, and with the categories that will be
// due soon, so that one look is enough for all.
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
			// Nothing was written since it was asked, and still there is less: the
			// store was put back, or trimmed.
			c.head = head
			c.ring(0)
		}
	}
}

// ringAll wakes the waiters of all categories that l could not look at.
func (w *watches) ringAll(l *look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range l.asked {
		c.ring(0)
	}
}

// nextDue returns when there is a head to look at.
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
		err := failure.Call(func() error {
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
