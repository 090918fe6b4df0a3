package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
)

// A dispatch calls handlers for deliveries in order, as many at a time as the worker has places.
type dispatch struct {
	// A goroutine whose handler has returned takes the next delivery, and so keeps its stack. A new
	// goroutine would grow its stack in the first handler that decodes a message, which costs as
	// much as the decoding.
	idle chan func() (ended bool)
	over chan struct{} // closed when no delivery follows

	// Under the worker's mu.
	deliveries map[queuing.Delivery]*Delivery
	ready      []*Delivery // deliveries that have not started a handler yet
	busy       int         // how many handlers the worker waits for
	rate       rate
}

func newDispatch() dispatch {
	return dispatch{idle: make(chan func() bool), over: make(chan struct{}), deliveries: map[queuing.Delivery]*Delivery{}}
}

// A rate is how many handlers have returned since a time, and how many of them a prefetchTime would
// have had.
type rate struct {
	returned int
	since    time.Time
	prefetch int
	size     int // of the data of an item, in the last take
}

// A Delivery is an item that was given to a handler. It is safe for concurrent use.
type Delivery struct {
	Item queuing.Taking

	// Committed is set when a completion of the item was written in a transaction of the caller's.
	Committed atomic.Bool

	of *worker

	// Under the work's mu.
	session int64     // that has it
	until   time.Time // the session lasts at least until then; by the process's monotonic clock
	cancel  context.CancelCauseFunc
	call    func() (ended bool) // of the handler
	timer   *time.Timer         // nil for no time-out
	began   time.Time           // when its handler began
	early   *ending             // set by End: the handler's result does not count
	result  *ending             // from the handler's result; kind is its kind at first
	kind    queuing.Kind
	done    bool               // it ends or is lost, in both cases for good
	gone    bool               // an extension reported it lost, but its handler may have finished it, and goes on
	ended   bool               // the worker's stop ended its context, before its timeout
	given   int                // by Behind
	also    []queuing.Delivery // of those, the items for which Did was called
}

// ID names the delivery.
func (d *Delivery) ID() queuing.Delivery { return d.Item.Delivery() }

// Notes returns the notes of the session.
func (d *Delivery) Notes() *Notes { return d.of.notes }

// Sessions returns the session that has the item, and the session to which the store may have moved
// it.
func (d *Delivery) Sessions() []int64 {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.of.next != 0 && d.session == d.of.leaving {
		return []int64{d.session, d.of.next}
	}
	return []int64{d.session}
}

// moved follows the delivery to the next session, and reports whether that has it. It is called
// under mu.
func (d *Delivery) moved(l queuing.Leave) bool {
	if d.session == l.Session {
		d.session = l.Next
	}
	return d.session == l.Next
}

// certain reports whether the item is still the worker's, for longer than the margin. It uses the
// monotonic clock, which goes on while the process is stopped. (On Linux that clock stands still
// while the machine sleeps: then only the next extension shows that the session is over.) It is
// called under mu.
func (d *Delivery) certain() bool { return time.Now().Before(d.until.Add(-d.of.margin())) }

// Lost reports whether the delivery has ended, as far as the process knows.
func (d *Delivery) Lost() bool {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	return !d.open()
}

// A NotBegunError says that the work on an item was not begun, because the worker stops or may have
// lost the item. If the worker still has the item, the item is given back without a failure.
type NotBegunError struct{ cause error }

func (e *NotBegunError) Error() string { return "not begun: " + e.cause.Error() }

// Unwrap returns [ErrLost], or the error of a context that was cancelled.
func (e *NotBegunError) Unwrap() error { return e.cause }

// Check returns nil if the handler may work on the item, and a [*NotBegunError] otherwise: the
// handler's context was cancelled, the delivery has ended, or its lease may be over although nobody
// has noticed yet, for example after the process was paused. Call it before any code of a user for
// an item. A timeout is not a reason.
func (d *Delivery) Check(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &NotBegunError{context.Cause(ctx)}
	}
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.done || !d.certain() {
		return &NotBegunError{ErrLost}
	}
	return nil
}

// End ends the delivery while its handler goes on. A later identical call gets the answer of the
// first.
func (d *Delivery) End(ctx context.Context, finish queuing.Finish, why error) (queuing.Ending, error) {
	return d.of.endEarly(ctx, d, finish, why)
}

// open reports whether the handler's result still decides how the delivery ends.
func (d *Delivery) open() bool { return !d.done && d.early == nil }

// stopTimer stops the handler's timeout.
func (d *Delivery) stopTimer() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// ahead reports whether more than half of the reserved items wait for a handler, so that the next
// take can wait until it is for more items. It is called under mu.
func (w *worker) ahead() bool { return 2*len(w.ready) > w.reserve() }

// reserve returns how many items to reserve: as many as handlers finished in the last prefetchTime,
// so that no handler waits for a take and a slow process leaves the rest to others. The items
// without a handler fit into aheadBytes if they are as large as the last ones. It is called under
// mu.
func (w *worker) reserve() int {
	ahead := max(w.rate.prefetch, w.rate.returned)
	if w.rate.size > 0 {
		ahead = min(ahead, aheadBytes/w.rate.size)
	}
	return min(max(ahead, w.config.MaxWorkers), max(w.config.Prefetch, w.config.MaxWorkers))
}

// count restarts the count of returned handlers once the time is over. It is called under mu.
func (r *rate) count(now time.Time) {
	if past := now.Sub(r.since); past >= prefetchTime {
		r.prefetch = int(float64(r.returned) * float64(prefetchTime) / float64(past))
		r.returned, r.since = 0, now
	}
}

// begin delivers items.
func (w *worker) begin(ctx context.Context, asked time.Time, session int64, items []queuing.Taking) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if session != w.session { // given up while the take was under way
		for _, item := range items {
			w.unbegun(&Delivery{Item: item, of: w, session: cmp.Or(item.Session, session)})
		}
		return
	}
	w.rate.size = 0
	for _, item := range items {
		w.rate.size += len(item.Message.Data)
	}
	w.rate.size /= max(1, len(items))
	base := calling.WithCaller(context.WithoutCancel(ctx), func(c *calling.Caller) { c.Consumer, c.Category, c.Upkeep = w.Queue.Name, "", false })
	certain := true
	for _, item := range items {
		// The session was extended if less than two thirds of the lease were left. If it had ended
		// in the meantime, its earlier items may be another's: this says nothing about them. A
		// session of the take's own has just begun.
		f := &Delivery{Item: item, of: w, session: cmp.Or(item.Session, session), until: asked.Add(w.config.Lease * 66 / 100)}
		if item.Session != 0 {
			f.until = asked.Add(w.config.Lease)
		}
		certain = certain && f.certain()
		w.deliveries[f.ID()] = f
		handled, cancel := context.WithCancelCause(base)
		f.cancel = cancel
		f.call = func() bool { return w.deliver(handled, f) }
		w.ready = append(w.ready, f)
	}
	w.fill()
	if !certain {
		select {
		case w.beats <- struct{}{}:
		default:
		}
	}
}

// fill calls handlers while places are free. It is called under mu.
func (w *worker) fill() {
	for f := w.nextReady(); f != nil; f = w.nextReady() {
		w.start(f.call)
	}
}

func (w *worker) refill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fill()
}

// nextReady returns the delivery whose handler is called next. It returns nil if there is no such
// delivery, and while it is not certain that the worker still has it. It is called under mu.
func (w *worker) nextReady() *Delivery {
	for len(w.ready) > 0 {
		f := w.ready[0]
		if !f.done && (w.busy == w.config.MaxWorkers || !f.certain()) {
			return nil
		}
		w.ready[0] = nil
		w.ready = w.ready[1:]
		if f.done { // it was lost meanwhile
			delete(w.deliveries, f.ID())
			continue
		}
		w.busy++
		f.began = time.Now()
		if w.config.Timeout > 0 {
			f.timer = time.AfterFunc(w.config.Timeout+w.config.Grace, func() { w.abandon(f) })
		}
		return f
	}
	return nil
}

// start gives a delivery to an idle goroutine, or to a new one.
func (w *worker) start(delivery func() (ended bool)) {
	select {
	case w.idle <- delivery:
	default:
		go func() {
			defer w.refill() // a handler may have ended the goroutine
			for delivery() {
				w.mu.Lock()
				f := w.nextReady()
				w.mu.Unlock()
				if f != nil {
					delivery = f.call
					continue
				}
				select {
				case delivery = <-w.idle:
				case <-w.over:
					return
				}
			}
		}()
	}
}

// deliver calls the handler, which may panic or end the goroutine. It reports whether the delivery
// ended with it: an abandoned delivery has ended before, and another goroutine has its place.
func (w *worker) deliver(ctx context.Context, f *Delivery) (ended bool) {
	if w.config.Timeout > 0 {
		timed, cancel := context.WithTimeout(ctx, w.config.Timeout)
		defer cancel()
		ctx = timed
	}
	var err error
	defer func() { ended = w.returned(f, err, errors.Is(ctx.Err(), context.Canceled)) }()
	w.handle(ctx, f, &err)
	return ended
}

// handle calls the handler, unless the lease has ended since the goroutine got the delivery: the
// process may have been paused.
func (w *worker) handle(ctx context.Context, f *Delivery, err *error) {
	if *err = f.Check(ctx); *err != nil {
		return
	}
	*err = calling.ErrExited
	defer calling.Catch(err)
	*err = w.config.Handle(ctx, f)
}

// returned handles the result of a handler, and reports whether the worker still waited for it.
func (w *worker) returned(f *Delivery, err error, cancelled bool) (waited bool) {
	f.stopTimer()
	f.cancel(nil)
	w.mu.Lock()
	f.ended = cancelled && w.stopping // else it is lost
	if waited = w.deliveries[f.ID()] == f; waited {
		delete(w.deliveries, f.ID())
		w.notes.Ended(f.ID())
		w.busy--
		w.rate.returned++
	}
	open, told := f.open(), false
	w.behind.given -= f.given
	if open {
		f.done = true
		e := w.endingOf(f, err)
		f.result, f.kind = e, e.Kind
		gathers := w.ahead()
		if e.Kind == queuing.Complete && (gathers || len(w.Wakes) > 0) {
			pause := ridePause
			if gathers {
				pause = gatherPause
			}
			e.after, e.rides = time.Now().Add(pause), true
		}
		// The first of the riding endings wakes the worker for all of them.
		told = gathers && e.rides && len(w.pending) > 0 && w.pending[len(w.pending)-1].rides
		w.pending = append(w.pending, e)
	}
	w.mu.Unlock()
	if !open {
		w.afterEnd(f, err)
	}
	if !told {
		w.wake()
	}
	return waited
}

func isNotBegun(err error) bool {
	_, is := err.(*NotBegunError) //nolint:errorlint // what a handler wraps is its own
	return is
}

// abandon gives back an item if its handler does not return.
func (w *worker) abandon(f *Delivery) {
	w.mu.Lock()
	if w.deliveries[f.ID()] != f {
		w.mu.Unlock()
		return
	}
	delete(w.deliveries, f.ID())
	w.notes.Ended(f.ID())
	took := time.Since(f.began).Round(time.Millisecond)
	if f.open() {
		f.done = true
		w.pending = append(w.pending, w.endingOf(f, fmt.Errorf("abandoned: its handler did not return within %v", took)))
	}
	w.busy--
	w.fill()
	w.mu.Unlock()
	w.counts.Abandoned.Add(1)
	w.about(w.log().Error(), f).Stringer("after", took).Msg("handler abandoned: it goes on without its item")
	w.wake()
}

// unbegun gives back an item before its handler was called. It is called under mu.
func (w *worker) unbegun(f *Delivery) {
	delete(w.deliveries, f.ID())
	if f.open() {
		f.done = true
		w.pending = append(w.pending, &ending{Finish: queuing.Finish{Delivery: f.ID(), Kind: queuing.Unhandled}, delivery: f})
	}
}
