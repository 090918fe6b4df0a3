package messagestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// headsTimeout bounds one look at the heads, so that a connection whose other end
	// is gone does not hold up those who wait for minutes.
	headsTimeout = 15 * time.Second

	// What fails is tried again after a wait that doubles. A look is one query for all
	// who wait, so it may be tried often; to listen takes a connection.
	minWatchBackoff  = 50 * time.Millisecond
	maxLookBackoff   = time.Second
	maxListenBackoff = 10 * time.Second

	// seldom is how often nothing happens where nothing is to be looked at.
	seldom = time.Hour
)

// Watch returns a bell that rings when there may be messages in category to read: at
// once after a write through this store, and at most interval after any other; at once
// after that too, if the driver hears of it (see [ListeningDriver]). Several writes may
// ring once, and it may ring for none. What the bell receives is the position of a
// message that is there, for one who has read past it to wait on, or 0 if none is
// known.
//
// While at least one category is watched, the store has one or two goroutines. They
// look at the heads of all watched categories together, if the driver can tell them
// (see [HeadsDriver]); else they ring every interval. An interval of 0 waits for no
// other process.
//
// Stop ends it, and with the last one the goroutines; it may be called twice. The
// channel is never closed. Stop is called before the driver is closed.
func (s *Store) Watch(category Category, interval time.Duration) (bell <-chan GlobalPosition, stop func()) {
	w := &s.watches
	b := make(chan GlobalPosition, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.by[category]
	if c == nil {
		c = &watched{bells: map[chan GlobalPosition]time.Duration{}}
		if w.by == nil {
			w.by = map[Category]*watched{}
		}
		w.by[category] = c
	}
	c.bells[b] = interval
	if at := time.Now().Add(interval); interval > 0 && (c.due.IsZero() || at.Before(c.due)) {
		c.due = at
	}
	if w.end == nil {
		w.begin(s)
	}
	w.lookAgain()

	return b, sync.OnceFunc(func() {
		w.mu.Lock()
		delete(c.bells, b)
		if len(c.bells) == 0 {
			delete(w.by, category)
		}
		end := func() {}
		if len(w.by) == 0 {
			end, w.end = w.end, nil
		}
		w.mu.Unlock()
		end()
	})
}

// watches are those who wait for writes to a store.
type watches struct {
	mu    sync.Mutex
	by    map[Category]*watched
	end   func()        // ends the goroutines, while there are any
	again chan struct{} // receives when a category may be due sooner than it was
}

// A watched category is one that somebody waits for.
type watched struct {
	bells map[chan GlobalPosition]time.Duration // how long each may wait
	head  GlobalPosition                        // the highest position that is known
	due   time.Time                             // when to look at its head, zero for never
}

// interval returns how long the most impatient may wait, 0 if nobody cares.
func (c *watched) interval() time.Duration {
	var shortest time.Duration
	for _, interval := range c.bells {
		if interval > 0 && (shortest == 0 || interval < shortest) {
			shortest = interval
		}
	}
	return shortest
}

// ring tells all who wait that there is a message at head, 0 for unknown.
func (c *watched) ring(head GlobalPosition) {
	for b := range c.bells {
		told := head
		select {
		case earlier := <-b: // nobody has heard it yet
			if told = max(told, earlier); head == 0 || earlier == 0 {
				told = 0
			}
		default:
		}
		b <- told // there is room: nobody else sends
	}
}

// heard rings for what was written, or heard of by the driver, if it is news.
func (w *watches) heard(category Category, head GlobalPosition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if category == "" { // nobody knows what was missed
		for _, c := range w.by {
			c.due = time.Now()
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
	if driver, ok := s.driver.(ListeningDriver); ok {
		wg.Go(func() { s.listen(ctx, driver) })
	}
	w.again = again
	w.end = func() {
		cancel()
		wg.Wait()
	}
}

// lookOut looks at the heads of all watched categories, each as often as it has to be,
// until ctx is done. What it cannot find out it lets those who wait find out.
func (s *Store) lookOut(ctx context.Context, again <-chan struct{}) {
	driver, canTell := s.driver.(HeadsDriver)
	timer := time.NewTimer(seldom)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-timer.C:
		}
		asked := s.watches.ask(time.Now())
		var heads []GlobalPosition
		var err error
		if canTell && len(asked) > 0 {
			heads, err = headsOf(ctx, driver, asked)
			canTell = !errors.Is(err, ErrNotSupported)
		}
		switch {
		case ctx.Err() != nil:
			return
		case heads != nil:
			s.watches.answer(asked, heads)
		default:
			for _, q := range asked {
				s.watches.heard(q.category, 0)
			}
		}
		if failures++; err == nil || !canTell {
			failures = 0
		} else {
			s.config.Logger.Warn().Err(err).Int("categories", len(asked)).Int("failures", failures).Msg("look at heads")
		}
		timer.Reset(max(time.Until(s.watches.nextDue()), watchBackoff(failures, maxLookBackoff)))
	}
}

// A question is about the head of a category.
type question struct {
	category Category
	known    GlobalPosition // when it was asked
}

// ask returns what to look at, if something is due: with it what will be soon, so that
// one look is enough for all.
func (w *watches) ask(now time.Time) []question {
	w.mu.Lock()
	defer w.mu.Unlock()
	var asked []question
	due := false
	for category, c := range w.by {
		if c.due.IsZero() {
			continue
		}
		due = due || !now.Before(c.due)
		if interval := c.interval(); !now.Before(c.due.Add(-interval / 2)) {
			asked = append(asked, question{category, c.head})
		}
	}
	if !due {
		return nil
	}
	for _, q := range asked {
		c := w.by[q.category]
		if c.due = now.Add(c.interval()); c.due.Equal(now) {
			c.due = time.Time{}
		}
	}
	return asked
}

// answer rings for the heads that have moved.
func (w *watches) answer(asked []question, heads []GlobalPosition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, q := range asked {
		c := w.by[q.category]
		switch head := heads[i]; {
		case c == nil:
		case head > c.head:
			c.head = head
			c.ring(head)
		case head < c.head && c.head == q.known:
			// Nothing was written since it was asked, and still there is less: the
			// store was put back, or trimmed.
			c.head = head
			c.ring(0)
		}
	}
}

// nextDue returns when there is a head to look at.
func (w *watches) nextDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := time.Now().Add(seldom)
	for _, c := range w.by {
		if !c.due.IsZero() && c.due.Before(next) {
			next = c.due
		}
	}
	return next
}

func headsOf(ctx context.Context, driver HeadsDriver, asked []question) ([]GlobalPosition, error) {
	ctx, cancel := context.WithTimeout(ctx, headsTimeout)
	defer cancel()
	categories := make([]Category, len(asked))
	for i, q := range asked {
		categories[i] = q.category
	}
	heads, err := driver.Heads(ctx, categories)
	if err == nil && len(heads) != len(categories) {
		err = fmt.Errorf("look at the heads of %d categories: the database answered for %d", len(categories), len(heads))
	}
	if err != nil {
		return nil, err
	}
	return heads, nil
}

// listen rings for what the driver hears, until ctx is done.
func (s *Store) listen(ctx context.Context, driver ListeningDriver) {
	for failures := 1; ; failures++ {
		err := driver.Listen(ctx, func(category Category, head GlobalPosition) {
			failures = 1
			s.watches.heard(category, head)
		})
		if ctx.Err() != nil || errors.Is(err, ErrNotSupported) {
			return
		}
		wait := watchBackoff(failures, maxListenBackoff)
		s.config.Logger.Warn().Err(err).Int("failures", failures).Dur("wait", wait).Msg("listen")
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// watchBackoff returns how long to wait after so many failures in a row, about, so
// that those that failed together do not come back together.
func watchBackoff(failures int, most time.Duration) time.Duration {
	if failures == 0 {
		return 0
	}
	wait := min(minWatchBackoff<<min(failures-1, 10), most)
	return wait/2 + rand.N(wait)
}
