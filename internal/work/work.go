// Package work runs the workers of package queue, relays, the runners of package saga, and the
// redrive of parked messages. It reserves items under one session, calls handlers for them side by
// side, extends the session, reports how deliveries end, goes on without a handler that does not
// return, and stops in two steps.
package work

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

var (
	// ErrLost is returned when you end a delivery that had already ended. It is also the cause with
	// which a handler's context is cancelled.
	ErrLost = errors.New("the delivery is lost: its lease is over, or an operator changed the item")

	// ErrAbandoned is returned by [Run] if handlers did not return in time. Their goroutines may go
	// on.
	ErrAbandoned = errors.New("handlers did not return")

	// ErrUncommitted is the failure of an item if the transaction that was to complete it was not
	// committed.
	ErrUncommitted = errors.New("its completion was not committed")
)

// A Source is a queue of a store.
type Source struct {
	// Watch is the store's method: the worker takes no more items from its stop on. Outage is shared
	// with the store's other callers.
	Watch  func(category messagestore.Category, interval time.Duration) (bell <-chan messagestore.GlobalPosition, stop func())
	Outage *outage.Outage

	Driver queuing.Keeper
	Queue  queuing.Queue
	Policy func(ctx context.Context) (queuing.Policy, error) // of a take that begins now
	Logger logger.Logger

	// Only for a queue of streams: the types that wake an item, and the pokes for messages of this
	// process that open or wake one. Most other messages of the category come from the worker's own
	// turns, so the worker looks for those only after a pause.
	Wakes []string
	Pokes *Pokes

	// Slots are the slots of a queue of parked messages, a bit each; 0 for another queue.
	Slots uint32
}

// Pokes tell a worker about messages that its own process has written. They are safe for concurrent
// use.
type Pokes struct {
	bell chan struct{}
	last atomic.Int64
	stop *queuing.Stop
}

// NewPokes returns pokes without a message.
func NewPokes() *Pokes { return &Pokes{bell: make(chan struct{}, 1), stop: queuing.NewStop()} }

// Stop returns the place where the worker waits for a write that carries its next take. It is nil
// if p is nil.
func (p *Pokes) Stop() *queuing.Stop {
	if p == nil {
		return nil
	}
	return p.stop
}

// Poke tells the worker to look for a message at a position, unless it has already found it.
func (p *Pokes) Poke(position messagestore.GlobalPosition) {
	if p == nil {
		return
	}
	for at := int64(position); ; {
		before := p.last.Load()
		if before >= at || p.last.CompareAndSwap(before, at) {
			break
		}
	}
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// heard returns a channel that receives after a poke. It is nil if p is nil.
func (p *Pokes) heard() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.bell
}

// Config says how [Run] works. All fields are set and within bounds.
type Config struct {
	MaxWorkers   int
	Prefetch     int           // how many items are reserved at most, including those with handlers; MaxWorkers or more
	Behind       int           // how many of those handlers may take in addition to their own: see [Delivery.Behind]
	Timeout      time.Duration // of a handler; 0 for none: it is never abandoned before the end
	Grace        time.Duration
	Lease        time.Duration
	PollInterval time.Duration

	// Once ends Run when a take has found nothing and no item is out. Hasty ends Run at the first
	// error of the store.
	Once, Hasty bool

	// Handle handles an item. It is called in a goroutine of its own, and may panic or end it.
	Handle func(ctx context.Context, d *Delivery) error

	// Finish decides how the delivery ends after the error of Handle. Stopped says that the error
	// comes from the worker's stop and not from the item: the stop has ended the handler's context,
	// or the error is about a context that ended while the worker stops. Finish calls no method of
	// the delivery.
	Finish func(d *Delivery, err error, stopped bool) queuing.Finish
}

// Counts has the counts of handlers' results.
type Counts struct{ Completed, Failed, Skipped, Buried, Lost, Abandoned atomic.Int64 }

const (
	callTimeout     = 15 * time.Second // of a call of the store
	openInterval    = time.Second      // after which the worker asks again for a completion that is not committed yet
	minStoreBackoff = 50 * time.Millisecond

	maxStoreBackoff = time.Second

	// prefetchTime is how long the reserved items should last, at the rate at which handlers
	// return.
	prefetchTime = 100 * time.Millisecond

	// aheadBytes bounds, roughly, the data of all reserved items, unless each has a handler.
	aheadBytes = 4 << 20

	// gatherPause is how long completed items are gathered at most, while more than half of the
	// reserved items still wait for a handler. A take costs the store as much as about 70 items do.
	gatherPause = 20 * time.Millisecond

	// LeaveTimeout bounds the call that ends a session after its caller has gone.
	LeaveTimeout = 5 * time.Second
)

// Run reserves items and calls the handler for them until ctx ends, the store refuses for good, or
// [Config].Once ends it. It counts the results in counts. The error matches [ErrAbandoned] if
// handlers did not return in time; it is nil if Run ended because of ctx or Once and all handlers
// returned.
func Run(ctx context.Context, from Source, config Config, counts *Counts) error {
	w := &worker{
		Source: from, config: config, counts: counts, notes: &Notes{}, wakes: make(chan struct{}, 1), looks: looks{look: true},
		lease: newLease(), dispatch: newDispatch(),
	}
	return w.run(ctx)
}

// A worker is one call of Run. Each of its parts has a file. The goroutine of run makes all calls
// of the store except extensions and lists of held items.
type worker struct {
	Source

	config Config
	counts *Counts
	notes  *Notes
	wakes  chan struct{} // a handler has returned

	looks // of the goroutine of run

	mu     sync.Mutex // guards the rest
	policy queuing.Policy
	lease
	dispatch
	reports
	behind   behind
	stopping bool
}

// looks says when to take items, and why.
type looks struct {
	look     bool // there may be an item
	ticket   int64
	ticketed bool // there was a ticket since the last item
	wakeAt   time.Time
	lookAt   time.Time                   // when to look for messages that were noticed in a queue of streams
	took     time.Time                   // the last take began
	lasted   time.Duration               // it lasted
	misses   int                         // takes in a row that only looked and found nothing
	met      messagestore.GlobalPosition // the highest position among the delivered items
	failures int                         // of the store, in a row
}

func (w *worker) wake() {
	select {
	case w.wakes <- struct{}{}:
	default:
	}
}

func (w *worker) run(ctx context.Context) error {
	defer close(w.over)
	bell, stop := w.Watch(w.Queue.Category, w.config.PollInterval)
	beating, endBeat := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { w.beat(beating) })
	defer beat.Wait()
	defer endBeat()

	poll := time.NewTicker(w.config.PollInterval)
	defer poll.Stop()
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx)) // those under way when ctx ends have as long as handlers
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(max(w.config.Grace, time.Second), cancel) })()
	var lasting error
	for ctx.Err() == nil && lasting == nil {
		w.Pokes.Stop().Wait(true)
		runtime.Gosched() // handlers that return at once do so first: the next take ends all of them, and not some
		due, free, soonest := w.due()
		want := 0
		if w.look || len(due) > 0 { // what ends may let go what is held behind it
			want = free
		}
		if len(due) > 0 || want > 0 {
			w.Pokes.Stop().Wait(false)
			if err := w.take(calls, due, want); err != nil {
				lasting = w.storeFailed(ctx, err)
			}
			continue
		}
		if w.config.Once && w.rests() {
			break
		}
		timer := time.NewTimer(w.untilNext(soonest))
		select {
		case <-ctx.Done():
		case <-w.wakes: // a handler has returned
		case <-bell:
			w.rung()
		case <-w.Pokes.heard():
			w.look = w.look || messagestore.GlobalPosition(w.Pokes.last.Load()) > w.met
		case call := <-w.Pokes.Stop().Calls():
			w.Pokes.Stop().Wait(false)
			if err := w.ride(calls, call); err != nil {
				lasting = w.storeFailed(ctx, err)
			}
		case <-timer.C:
			now := time.Now()
			for _, at := range []*time.Time{&w.wakeAt, &w.lookAt} {
				if !at.IsZero() && !now.Before(*at) {
					w.look, *at = true, time.Time{}
				}
			}
		case <-poll.C:
			if free > 0 {
				w.Pokes.Stop().Wait(false)
				w.poll(ctx)
			}
		}
		timer.Stop()
	}
	w.Pokes.Stop().Wait(false)
	stop()
	return errors.Join(lasting, w.drain(ctx, lasting != nil && w.config.Hasty))
}

// rests reports whether no item is out and no ending is left to report.
func (w *worker) rests() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.deliveries)+len(w.pending) == 0
}

const (
	// After a take, a worker of a queue of streams waits this long before it looks for messages
	// that it only noticed. The pause doubles with each take that finds nothing.
	minLookPause = 4 * time.Millisecond
	maxLookPause = 16 * time.Millisecond

	// After a take that lasted d, the worker waits at least lookShare*d, so that slow takes do not
	// starve other work.
	lookShare = 8

	// ridePause is how long the report of a completed item of a queue of streams may wait for a
	// take with another purpose, if nothing is held behind the item.
	ridePause = 3 * time.Millisecond
)

// rung makes the worker look at the queue because something was written to its category.
func (w *worker) rung() {
	at := w.took
	if len(w.Wakes) > 0 {
		at = at.Add(max(min(minLookPause<<min(w.misses, 8), maxLookPause), min(lookShare*w.lasted, w.config.PollInterval)))
	}
	if !time.Now().Before(at) {
		w.look = true
	} else if w.lookAt.IsZero() || at.Before(w.lookAt) {
		w.lookAt = at
	}
}

// untilNext returns how long the worker has nothing to do unless it is woken.
func (w *worker) untilNext(soonest time.Time) time.Duration {
	next := time.Hour
	for _, at := range []time.Time{soonest, w.wakeAt, w.lookAt} {
		if !at.IsZero() {
			next = min(next, max(time.Until(at), time.Millisecond))
		}
	}
	return next
}

// due returns the endings to report now, how many items to reserve if there are any, and when the
// next ending is due.
func (w *worker) due() (due []*ending, free int, soonest time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.rate.count(now)
	free = w.reserve() - len(w.deliveries) - w.behind.given
	takes := w.stopping || slices.ContainsFunc(w.pending, func(e *ending) bool { return !now.Before(e.after) })
	switch {
	case takes:
	case w.ahead():
		free = 0
	default:
		takes = w.look
	}
	kept, room := w.pending[:0], queuing.MaxItems
	for _, e := range w.pending {
		switch {
		case len(e.also) < room && (!now.Before(e.after) || e.rides && takes):
			room -= 1 + len(e.also)
			free += len(e.also)
			due = append(due, e)
		default:
			kept = append(kept, e)
			if soonest.IsZero() || e.after.Before(soonest) {
				soonest = e.after
			}
		}
	}
	w.pending = kept
	return due, max(0, free), soonest
}

// poll asks whether there may be an item, without a lock.
func (w *worker) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ready, err := w.Driver.QueueReady(ctx, w.Queue)
	if err != nil {
		w.look = true // the take will report the failure
		return
	}
	w.look = ready.Ready
	w.setWake(ready.Wake)
}

func (w *worker) setWake(after time.Duration) {
	w.wakeAt = time.Time{}
	if after >= 0 {
		w.wakeAt = time.Now().Add(after)
	}
}

// Always is the [Source].Policy of a queue whose policy does not change.
func Always(p queuing.Policy) func(context.Context) (queuing.Policy, error) {
	return func(context.Context) (queuing.Policy, error) { return p, nil }
}

// readPolicy gets the policy of the next take.
func (w *worker) readPolicy(ctx context.Context) error {
	p, err := w.Policy(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.policy = p
	return nil
}

// take reports endings and reserves items. If it fails, the endings are reported again later.
func (w *worker) take(ctx context.Context, due []*ending, want int) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := w.readPolicy(ctx)
	if err == nil && w.renew {
		err = w.renewSession(ctx, due)
	}
	if err != nil {
		w.putBack(due)
		return err
	}
	t, began := w.asks(due, want), time.Now()
	taken, err := w.Driver.QueueTake(ctx, t)
	return w.takeIn(ctx, began, due, t, taken, err)
}

// ride sends the worker's next take along with a write of this process, so that it finds the new
// message. If no place is free, the write goes alone.
func (w *worker) ride(ctx context.Context, call chan<- *queuing.Ride) error {
	w.look = true // by the next take, if not by this one
	due, want, _ := w.due()
	err := w.readPolicy(ctx)
	if err != nil || want == 0 || w.renew {
		w.putBack(due)
		call <- nil
		return err
	}
	t := w.asks(due, want)
	ride, began := queuing.NewRide(t), time.Now()
	call <- ride
	taken, err := ride.Told()
	if errors.Is(err, queuing.ErrAlone) {
		w.putBack(due)
		return nil
	}
	return w.takeIn(ctx, began, due, t, taken, err)
}

// asks returns the take that reports the endings and reserves items.
func (w *worker) asks(due []*ending, want int) queuing.Take {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := queuing.Take{Queue: w.Queue, Policy: w.policy, Wakes: w.Wakes, Slots: w.Slots, Session: w.session, Lease: w.config.Lease, Want: want, Finishes: make([]queuing.Finish, 0, len(due))}
	for _, e := range due {
		e.Session = e.delivery.session
		t.Finishes = append(t.Finishes, e.Finish)
		for _, d := range e.also {
			t.Finishes = append(t.Finishes, queuing.Finish{Delivery: d, Kind: queuing.Behind})
		}
	}
	if want > 0 {
		t.Ticket = w.ticket
		// No ticket is needed for items that another process's write began: a queue of streams has
		// no line, and each slot has only one taker.
		if w.look && !w.ticketed && len(w.Wakes) == 0 && w.Slots == 0 {
			t.Wait = queuing.MaxWait
		}
	}
	if want > 0 {
		w.took, w.lookAt = time.Now(), time.Time{}
	}
	return t
}

// takeIn handles the answer to a take that began at the given time.
func (w *worker) takeIn(ctx context.Context, began time.Time, due []*ending, t queuing.Take, taken queuing.Taken, err error) error {
	ended := len(due)
	for _, e := range due {
		ended += len(e.also)
	}
	if err == nil && len(taken.Endings) != ended {
		err = fmt.Errorf("%w: the store returned %d endings for %d", messagestore.ErrOutcomeUnknown, len(taken.Endings), ended)
	}
	if err != nil {
		w.renew = w.renew || errors.Is(err, messagestore.ErrOutcomeUnknown)
		w.putBack(due)
		return err
	}
	w.failures, w.lasted = 0, time.Since(began)
	w.Outage.Works(w.outageKey())
	w.mu.Lock()
	w.answered()
	w.mu.Unlock()
	endings := taken.Endings
	for _, e := range due {
		w.ended(e, endings[0])
		w.endedBehind(e.also, endings[1:])
		endings = endings[1+len(e.also):]
	}
	if t.Want > 0 {
		w.behind.mayBe.Store(taken.Wake >= 0 && taken.Wake <= queuing.OrphanInterval)
		switch {
		case len(taken.Items) > 0:
			w.misses = 0
			for _, item := range taken.Items {
				w.met = max(w.met, item.Message.GlobalPosition)
			}
		case len(due) == 0:
			w.misses++
		}
		w.look = taken.More || len(taken.Items) == t.Want
		w.setWake(taken.Wake)
		if taken.Ticket != 0 {
			w.ticket, w.ticketed = taken.Ticket, true
		}
		if len(taken.Items) > 0 {
			w.ticket, w.ticketed = 0, false
			if !taken.Since.IsZero() {
				began = taken.Since
			}
			w.begin(ctx, began, t.Session, taken.Items)
		}
	}
	return nil
}

func (w *worker) outageKey() outage.Key { return outage.Key{By: "queue " + w.Queue.Name, To: "take"} }

// storeFailed waits after an error of the store, or returns the error if it lasts.
func (w *worker) storeFailed(ctx context.Context, err error) error {
	for _, lasting := range []error{
		calling.ErrLasting, messagestore.ErrClosed, messagestore.ErrNotPermitted, messagestore.ErrNotSupported, messagestore.ErrInvalid,
	} {
		if errors.Is(err, lasting) {
			return err
		}
	}
	if w.config.Hasty {
		return err
	}
	w.failures++
	pause := outage.Pause(w.failures, minStoreBackoff, maxStoreBackoff)
	w.Outage.Failed(w.outageKey(), w.log(), "queue", w.Queue.Name, "category", string(w.Queue.Category), "failures", w.failures,
		"wait", pause, "error", text.Log(err))
	_ = outage.Wait(ctx, pause)
	w.look = true
	return nil
}

func (w *worker) log() logger.Logger { return w.Logger }

// drain waits for the handlers, reports their endings, and gives back the other items. It reports
// endings until LeaveTimeout, or for as long as the handlers may take. If the store has refused for
// good, it reports none.
func (w *worker) drain(ctx context.Context, refused bool) error {
	ctx, until := context.WithoutCancel(ctx), time.Now().Add(LeaveTimeout)
	w.mu.Lock()
	w.stopping = true
	for _, f := range w.ready {
		w.unbegun(f)
	}
	w.ready = nil
	w.mu.Unlock()
	w.drainUntil(ctx, time.Now().Add(w.config.Grace), refused)
	w.mu.Lock()
	late := len(w.deliveries) > 0
	for _, f := range w.deliveries {
		f.cancel(nil)
	}
	w.mu.Unlock()
	if late {
		w.drainUntil(ctx, time.Now().Add(w.config.Grace), refused)
		until = time.Now().Add(LeaveTimeout)
	}

	w.mu.Lock()
	var left []string
	for delivery, f := range w.deliveries {
		delete(w.deliveries, delivery)
		f.stopTimer()
		left = append(left, f.Item.Message.String())
		if f.open() {
			f.done = true
			w.pending = append(w.pending, &ending{Finish: queuing.Finish{Delivery: delivery, Kind: queuing.Unhandled}, delivery: f})
		}
	}
	w.mu.Unlock()
	w.drainUntil(ctx, until, refused)
	w.mu.Lock()
	session, unreported := w.session, len(w.pending)
	w.mu.Unlock()
	if w.Slots == 0 || w.renew || unreported > 0 { // else it has nothing, and a queue that was removed would be made again
		w.Leave(ctx, session, until)
	}
	w.Outage.Ends(w.outageKey().By)
	var err error
	if unreported > 0 {
		err = fmt.Errorf("%w: the ends of %d deliveries were not reported", messagestore.ErrOutcomeUnknown, unreported)
	}
	if len(left) > 0 {
		slices.Sort(left)
		err = errors.Join(fmt.Errorf("%w within %v: %s", ErrAbandoned, 2*w.config.Grace, strings.Join(left, ", ")), err)
	}
	return err
}

// drainUntil reports endings until there is nothing to wait for, or until the given time. If the
// store refuses for good, it only waits for the handlers.
func (w *worker) drainUntil(ctx context.Context, end time.Time, refused bool) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for first := true; first || ctx.Err() == nil; first = false {
		w.mu.Lock()
		idle := len(w.deliveries) == 0 && (refused || len(w.pending) == 0)
		w.mu.Unlock()
		if idle {
			return
		}
		var soonest time.Time
		if !refused {
			var due []*ending
			if due, _, soonest = w.due(); len(due) > 0 {
				if err := w.take(ctx, due, 0); err != nil {
					refused = w.storeFailed(ctx, err) != nil
				}
				continue
			}
		}
		timer := time.NewTimer(w.untilNext(soonest))
		select {
		case <-ctx.Done():
		case <-w.wakes:
		case <-timer.C:
			w.wakeAt, w.lookAt = time.Time{}, time.Time{}
		}
		timer.Stop()
	}
}
