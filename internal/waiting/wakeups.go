package waiting

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of reading a category for those who wait.
const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = time.Second

	// maxPage bounds the messages of one read.
	maxPage = 1000

	// readTimeout bounds one read, which is not under a caller's context.
	readTimeout = 5 * time.Second
)

// A Store has the methods of [messagestore.Store] for reading.
type Store interface {
	Watch(category messagestore.Category, interval time.Duration) (bell <-chan messagestore.GlobalPosition, stop func())
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
}

// Wakeups wakes callers that wait for something in a stream when a message ends their wait. One
// goroutine reads the category for any number of waiting callers, and no goroutine runs while no
// caller waits. Wakeups is safe for concurrent use. There is nothing to close.
type Wakeups struct {
	store    Store
	category messagestore.Category
	types    []string
	interval time.Duration
	log      logger.Logger
	outage   *outage.Outage // of the store
	pause    func() time.Duration

	mu      sync.Mutex
	waiters map[messagestore.StreamName][]*Waiter
	reader  *tail // nil while the category is not read
}

// NewWakeups returns wake-ups by the messages of these types. The interval is the longest time until a
// message that another process wrote is noticed. With a nil store, messages wake nobody.
func NewWakeups(store Store, category messagestore.Category, types []string, interval time.Duration, log logger.Logger) *Wakeups {
	return &Wakeups{
		store: store, category: category, types: types, interval: interval, log: log, outage: outage.Of(store), waiters: map[messagestore.StreamName][]*Waiter{},
	}
}

// Paced delays each read of the category by a pause, after it was needed and after the previous
// read. Use it if [Wakeups.Tell] reports most events. The pause may be 0. Call it before any other
// method. It returns w.
func (w *Wakeups) Paced(pause func() time.Duration) *Wakeups {
	w.pause = pause
	return w
}

// A Waiter waits for messages of one stream. It is for one goroutine.
type Waiter struct {
	of      *Wakeups
	stream  messagestore.StreamName
	bell    chan *messagestore.Message
	told    atomic.Pointer[any]
	tailing bool // a tail was running when it began to listen, or is running now
}

// NewWaiter returns a waiter that does not listen yet.
func (w *Wakeups) NewWaiter() *Waiter { return &Waiter{of: w} }

// On begins to listen to stream, and to no other, and reports whether that is new. Messages stored
// before that do not wake the waiter, unless From asks for them.
func (w *Waiter) On(stream messagestore.StreamName) (fresh bool) {
	if w.stream == stream {
		return false
	}
	w.Leave()
	w.stream = stream
	w.bell = make(chan *messagestore.Message, 1)
	w.tailing = w.of.listen(w)
	return true
}

// Again reads the category from the message after position on, even if it is already being read
// further on.
func (w *Waiter) Again(position messagestore.GlobalPosition) {
	w.of.tail(position.Next())
	w.tailing = true
}

// From reads the category from the message after position on, if no goroutine reads it yet. A
// message must have been at position when the waiter began to listen.
func (w *Waiter) From(position messagestore.GlobalPosition) {
	if !w.tailing {
		w.of.tail(position.Next())
		w.tailing = true
	}
}

// Bell returns a channel with the last message of the stream that the waiter has not received. A
// nil message means that the waiter has to look: because of [Wakeups.Tell], or because the store is
// closed and reports nothing any more.
func (w *Waiter) Bell() <-chan *messagestore.Message { return w.bell }

// Leave stops listening.
func (w *Waiter) Leave() {
	if w.bell != nil {
		w.of.leave(w)
		w.told.Store(nil)
		w.bell, w.stream = nil, ""
	}
}

// A tail is a goroutine that reads the category.
type tail struct {
	next  messagestore.GlobalPosition
	again chan struct{} // receives when next has become less, and when the last waiter has left
}

// wake makes the goroutine check for changes.
func (t *tail) wake() {
	select {
	case t.again <- struct{}{}:
	default:
	}
}

// listen adds a waiter, and reports whether the category is read already.
func (w *Wakeups) listen(one *Waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiters[one.stream] = append(w.waiters[one.stream], one)
	return w.reader != nil
}

// tail starts reading the category from position on.
func (w *Wakeups) tail(position messagestore.GlobalPosition) {
	if w.store == nil {
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
	go w.read(w.reader)
}

// leave removes a waiter, and with the last one ends the goroutine. It does not abort a read under
// way: that would cost the connection, and the last waiter of a category leaves often.
func (w *Wakeups) leave(one *Waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.waiters[one.stream], func(other *Waiter) bool { return other == one })
	w.waiters[one.stream] = rest
	if len(rest) == 0 {
		delete(w.waiters, one.stream)
	}
	if len(w.waiters) == 0 && w.reader != nil {
		w.reader.wake()
	}
}

// read reads the category for as long as there are waiters.
func (w *Wakeups) read(r *tail) {
	bell, stop := w.store.Watch(w.category, w.interval)
	defer stop()
	key := outage.Key{By: "waiters of " + string(w.category), To: "read for those that wait"}
	defer w.outage.Ends(key.By)
	q := messagestore.CategoryQuery{Category: w.category, Limit: maxPage, Filter: messagestore.Filter{Types: w.types}}
	for failures := 0; ; {
		if w.rest(r); !w.wanted(r, &q) {
			return
		}
		page, err := w.readPage(q)
		if errors.Is(err, messagestore.ErrClosed) {
			w.closed()
			return
		}
		if err != nil {
			failures++
			w.outage.Failed(key, w.log, "category", string(w.category), "to", key.To, "failures", failures, "error", text.Log(err))
			select {
			case <-r.again:
			case <-time.After(outage.Pause(failures, minBackoff, maxBackoff)):
			}
			continue
		}
		failures = 0
		w.outage.Works(key)
		if w.deliver(r, q.From, page) {
			continue
		}
		select {
		case <-r.again:
		case <-bell:
		}
	}
}

// closed makes all waiters look once more, and drops the goroutine that read: it ends. A closed
// store stays closed, and no outage is logged.
func (w *Wakeups) closed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reader = nil
	for _, all := range w.waiters {
		for _, one := range all {
			one.ring(nil)
		}
	}
}

// ring replaces a message that the waiter has not received yet by m.
func (w *Waiter) ring(m *messagestore.Message) {
	select {
	case <-w.bell:
	default:
	}
	w.bell <- m // there is room: no other goroutine sends
}

// Tell wakes the waiters of a stream at once, with a value: see [Waiter.Told].
func (w *Wakeups) Tell(stream messagestore.StreamName, what any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.waiters[stream] {
		one.told.Store(&what)
		one.ring(nil)
	}
}

// Told returns the last value from [Wakeups.Tell] for the stream, or nil. All waiters get the same
// value.
func (w *Waiter) Told() any {
	if what := w.told.Load(); what != nil {
		return *what
	}
	return nil
}

// rest waits for the pause, or until there are no waiters.
func (w *Wakeups) rest(r *tail) {
	if w.pause == nil {
		return
	}
	pause := w.pause()
	if pause == 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for w.awaited() {
		select {
		case <-timer.C:
			return
		case <-r.again:
		}
	}
}

func (w *Wakeups) awaited() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiters) > 0
}

// wanted reports whether there are still waiters, and sets the position from which to read the
// category. If there are none, the next waiter starts another goroutine.
func (w *Wakeups) wanted(r *tail, q *messagestore.CategoryQuery) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.From = r.next
	if len(w.waiters) == 0 {
		w.reader = nil
	}
	return w.reader != nil
}

func (w *Wakeups) readPage(q messagestore.CategoryQuery) (page messagestore.CategoryPage, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	err = calling.Call(func() (err error) {
		page, err = w.store.ReadCategoryPage(ctx, q)
		return err
	})
	return page, err
}

// deliver wakes the waiters for the messages of the page, and reports whether there is more to
// read.
func (w *Wakeups) deliver(r *tail, from messagestore.GlobalPosition, page messagestore.CategoryPage) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range page.Messages {
		for _, one := range w.waiters[m.Stream] {
			one.ring(m)
		}
	}
	if r.next != from { // it was put back meanwhile
		return true
	}
	r.next = page.Next
	return page.More
}
