// Package work is the engine of the workers of package queue, and of the runners of package saga: it reserves items under
// one session, has them handled side by side, extends the session, reports how deliveries end, goes on without a handler
// that does not return, and stops in two steps.
package work

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/handling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/panics"
	"github.com/dibs-go/dibs/internal/retry"
	"github.com/dibs-go/dibs/internal/riding"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/upkeep"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/queuing"
)

var (
	// ErrLost is matched by the error of ending a delivery that had ended before. It is also the cause of the end of a
	// handler's context.
	ErrLost = errors.New("the delivery is lost: the item was given to another worker, or changed by an operator")

	// ErrAbandoned is matched by the error of [Run] if handlers did not return in time. Their goroutines may go on.
	ErrAbandoned = errors.New("handlers did not return")

	// ErrUncommitted is the failure of an item whose completion in a transaction was not committed.
	ErrUncommitted = errors.New("its completion was not committed")
)

// A Source is a queue of a store.
type Source struct {
	// Watch is that of the store. Outage is what its callers share.
	Watch  func(category messagestore.Category, interval time.Duration) (bell <-chan messagestore.GlobalPosition, stop func())
	Outage *outage.Outage

	Driver queuing.Driver
	Queue  queuing.Queue
	Policy queuing.Policy
	Logger logger.Logger

	// Of a queue of streams: the types that wake, and the messages of this process that open an item or wake one. The
	// category has other messages, most of them of the worker's own turns, so what else is heard of it is looked at
	// with pauses.
	Wakes []string
	Pokes *Pokes
}

// Pokes tell the worker of a process of what the process itself has written. They are safe for concurrent use.
type Pokes struct {
	bell chan struct{}
	last atomic.Int64
	stop *riding.Stop
}

// NewPokes returns pokes that nobody has heard yet.
func NewPokes() *Pokes { return &Pokes{bell: make(chan struct{}, 1), stop: riding.NewStop()} }

// Stop is where the worker waits for a write that takes its next take along. It is nil without pokes.
func (p *Pokes) Stop() *riding.Stop {
	if p == nil {
		return nil
	}
	return p.stop
}

// Poke has the worker look for a message that was written at a position, unless it has found it.
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

// heard is received from when there was a poke. It is nil without pokes.
func (p *Pokes) heard() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.bell
}

// Config is what a call of [Run] is to do. All of it is set and within bounds.
type Config struct {
	MaxWorkers   int
	Prefetch     int           // how many items are reserved at most, those that handlers have among them; MaxWorkers or more
	Behind       int           // how many of those may be given to handlers beside their own: see [Delivery.Behind]
	Timeout      time.Duration // of a handler; 0 for none: it is never abandoned before the end
	Grace        time.Duration
	Lease        time.Duration
	PollInterval time.Duration

	// Handle handles an item. It is called in a goroutine of its own, and may panic or end it.
	Handle func(ctx context.Context, d *Delivery) error

	// Finish says what the error of Handle makes of the item. Stopped says that the error is one of the worker's end, and not of
	// the item: that has ended the handler's context, or the error is one of a context that ended while the worker stops. It calls
	// no method of the delivery.
	Finish func(d *Delivery, err error, stopped bool) queuing.Finish
}

// Counts are what handlers have done.
type Counts struct{ Completed, Failed, Skipped, Buried, Lost, Abandoned atomic.Int64 }

const (
	callTimeout     = 15 * time.Second // of a call of the store
	openInterval    = time.Second      // after which a completion that is not committed yet is asked for again
	minStoreBackoff = 50 * time.Millisecond

	maxStoreBackoff = time.Second

	// prefetchTime is for how long what is reserved lasts, at the rate at which handlers return.
	prefetchTime = 100 * time.Millisecond

	// aheadBytes is about how much data the items have at most that are reserved, unless each has a handler.
	aheadBytes = 4 << 20

	// gatherPause is for how long completed items are gathered at most while the handlers have more than half of what was
	// reserved ahead of them: a take costs the store as much as the items of some 70 do.
	gatherPause = 20 * time.Millisecond

	// LeaveTimeout bounds the end of a session whose caller has gone.
	LeaveTimeout = 5 * time.Second
)

// Run reserves items and has them handled until ctx ends, or the store refuses for good. It adds to counts. The error
// matches [ErrAbandoned] if handlers did not return in time; it is nil if ctx ended and all returned.
func Run(ctx context.Context, from Source, config Config, counts *Counts) error {
	w := &work{
		Source: from, config: config, counts: counts, flights: map[queuing.Delivery]*Delivery{}, wakes: make(chan struct{}, 1), beats: make(chan struct{}, 1),
		deliveries: make(chan func() bool), over: make(chan struct{}), session: NewSession(), notes: &Notes{}, look: true,
	}
	return w.run(ctx)
}

// NewSession returns a number that no other session has, of any database, and that nobody can guess: a delivery is ended only
// by its session.
func NewSession() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:])                                // it never fails
	return int64(binary.NativeEndian.Uint64(b[:])>>2) + 1 //nolint:gosec // of 62 bits
}

// Leave gives back what a session has, and tries again until a time while the store fails. If it cannot, the session's
// end does.
func (s *Source) Leave(ctx context.Context, session int64, until time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaveTimeout)
	defer cancel()
	decided := func(err error) bool { return retry.Lasts(err) || !time.Now().Before(until) }
	err := retry.Loop{Decided: decided}.Do(ctx, func() error {
		return s.Driver.QueueLeave(ctx, queuing.Leave{Queue: s.Queue, Session: session})
	})
	if err != nil {
		s.Logger.Debug().Str("queue", s.Queue.Name).Str("error", text.Log(err)).Msg("session is left to end by itself")
	}
}

// A work is one call of Run. The goroutine of run makes all calls of the store but extensions.
type work struct {
	Source

	config Config
	counts *Counts
	wakes  chan struct{}
	beats  chan struct{} // the session is to be extended now
	notes  *Notes

	// A goroutine whose handler has returned sees to the next delivery, with the stack that it has: a new one
	// would grow its stack in the first handler that decodes a message, which costs as much as the decoding.
	deliveries chan func() (ended bool)
	over       chan struct{} // closed when no delivery follows

	behind behind

	// Of the goroutine of run.
	look     bool // there may be an item
	ticket   int64
	ticketed bool // there was a ticket since the last item
	wakeAt   time.Time
	lookAt   time.Time                   // to look then for what was heard of a queue of streams
	took     time.Time                   // the last take began
	lasted   time.Duration               // it lasted
	misses   int                         // takes in a row that only looked, and found nothing
	met      messagestore.GlobalPosition // of the items that were delivered, the highest
	renew    bool                        // the answer of a take was lost
	left     time.Time                   // the session was left first, while renew is set
	failures int                         // of the store, in a row

	mu       sync.Mutex
	session  int64
	leaving  int64 // the session that is left, and the one that follows, until the store has told that it is left
	next     int64
	until    time.Time // the session lasts at least until then; by the process's monotonic clock
	flights  map[queuing.Delivery]*Delivery
	ready    []*Delivery // of the flights, those whose handlers were not called yet
	running  int         // how many handlers are waited for
	pending  []*ending
	stopping bool

	unextended bool // it was said that items are lost, and the store has not answered since

	// How many handlers have returned since a time, and would have in a time as long before.
	returned int
	since    time.Time
	prefetch int
	size     int // of the data of an item, in the last take
}

// A Delivery is an item, as its handler has it. It is safe for concurrent use.
type Delivery struct {
	Item queuing.Taking

	// Committed is set when a completion of the item was written in a transaction of the caller's.
	Committed atomic.Bool

	of *work

	// Under the work's mu.
	session int64 // that has it
	cancel  context.CancelCauseFunc
	call    func() (ended bool) // of the handler
	timer   *time.Timer         // nil for no time-out
	began   time.Time           // its handler
	early   *ending             // by End: what the handler returns does not count
	result  *ending             // of what the handler returned, and its kind at first
	kind    queuing.Kind
	done    bool               // it ends, or is lost: the same
	gone    bool               // an extension told that it is lost, though its handler may have finished it, and goes on
	ended   bool               // its context was, by the end of the worker and before its time-out
	given   int                // by Behind
	also    []queuing.Delivery // of those, the items that Did was called for
}

// ID names the delivery.
func (d *Delivery) ID() queuing.Delivery { return d.Item.Delivery() }

// Notes are those of the session.
func (d *Delivery) Notes() *Notes { return d.of.notes }

// Sessions returns the session that has the item, and the one to which the store may have moved it.
func (d *Delivery) Sessions() []int64 {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.of.next != 0 && d.session == d.of.leaving {
		return []int64{d.session, d.of.next}
	}
	return []int64{d.session}
}

// moved takes in that a session was left. It is called under mu.
func (d *Delivery) moved(l queuing.Leave) {
	if d.session == l.Session {
		d.session = l.Next
	}
}

// Lost reports whether the delivery has ended, as far as the process knows.
func (d *Delivery) Lost() bool {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	return !d.open()
}

// A NotBegunError is the error of what was not begun for an item, because the worker stops or may have lost the item. The item is given
// back without a failure, if it is the worker's still.
type NotBegunError struct{ cause error }

func (e *NotBegunError) Error() string { return "not begun: " + e.cause.Error() }

// Unwrap returns [ErrLost], or the error of a context that was cancelled.
func (e *NotBegunError) Unwrap() error { return e.cause }

// Check returns nil if the item is its handler's to work on, and else a [*NotBegunError]: the handler's context was cancelled, the
// delivery has ended, or its lease may be over and nobody has found that out yet, such as after a pause of the process. Whatever
// calls code of a user for an item asks it first. A time-out is none of its reasons.
func (d *Delivery) Check(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &NotBegunError{context.Cause(ctx)}
	}
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.done || !d.of.certain() {
		return &NotBegunError{ErrLost}
	}
	return nil
}

// End ends the delivery while its handler goes on. A later call for the same is told what the first one is.
func (d *Delivery) End(ctx context.Context, finish queuing.Finish, why error) (queuing.Ending, error) {
	return d.of.endEarly(ctx, d, finish, why)
}

// open reports whether what the handler returns decides what becomes of the item.
func (d *Delivery) open() bool { return !d.done && d.early == nil }

// stopTimer ends the watch over the handler.
func (d *Delivery) stopTimer() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// An ending is a finish that is to be reported.
type ending struct {
	queuing.Finish
	also   []queuing.Delivery // completed with it
	flight *Delivery
	err    error     // of the handler
	after  time.Time // not reported before
	rides  bool      // or before that, with what else a take is for, as all do that ride

	// Of a call of the job's: closed when the store has told what it answers.
	told   chan struct{}
	answer queuing.Ending
	over   bool         // the store has told it, under the work's mu as the next
	final  queuing.Kind // what it told it of

	// Where CompleteTx was called: what becomes of the item if it is open still at a time.
	otherwise *queuing.Finish
	until     time.Time
	said      bool // it was logged
}

func (w *work) wake() {
	select {
	case w.wakes <- struct{}{}:
	default:
	}
}

func (w *work) run(ctx context.Context) error {
	defer close(w.over)
	bell, stop := w.Watch(w.Queue.Category, w.config.PollInterval)
	defer stop()
	beating, endBeat := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { w.beat(beating) })
	defer beat.Wait()
	defer endBeat()

	poll := time.NewTicker(w.config.PollInterval)
	defer poll.Stop()
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
			if err := w.take(context.WithoutCancel(ctx), due, want); err != nil {
				lasting = w.storeFailed(ctx, err)
			}
			continue
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
			if err := w.ride(context.WithoutCancel(ctx), call); err != nil {
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
	return errors.Join(lasting, w.drain(ctx))
}

const (
	// A worker of a queue of streams looks for what it only heard of so long after its last take. The time doubles with each
	// take that finds nothing.
	minLookPause = 4 * time.Millisecond
	maxLookPause = 16 * time.Millisecond

	// lookShare is how many times longer the pause is than a take, at least: where takes are slow, what else is to be done is
	// slow too, and they are in its way.
	lookShare = 8

	// ridePause is for how long a completed item of a queue of streams, behind which nothing is held, is reported with a take that
	// is for something else.
	ridePause = 3 * time.Millisecond
)

// rung has the queue looked at because something was written to its category.
func (w *work) rung() {
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

// untilNext is for how long nothing happens by itself.
func (w *work) untilNext(soonest time.Time) time.Duration {
	next := time.Hour
	for _, at := range []time.Time{soonest, w.wakeAt, w.lookAt} {
		if !at.IsZero() {
			next = min(next, max(time.Until(at), time.Millisecond))
		}
	}
	return next
}

// due returns the endings to report now, how many items to reserve if there may be any, and when the next ending is due.
func (w *work) due() (due []*ending, free int, soonest time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.count(now)
	free = w.reserve() - len(w.flights) - w.behind.given
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

// ahead reports whether more than half of what was reserved is ahead of the handlers, so that a take can wait until it is for
// more items. It is called under mu.
func (w *work) ahead() bool { return 2*len(w.ready) > w.reserve() }

// reserve is how many items are to be reserved: as many as handlers returned from in the last prefetchTime, so that none
// waits for a take, and a process that is slow leaves the rest to others; and no more than fit into aheadBytes, beside those that
// have a handler, if they are as large as the last. It is called under mu.
func (w *work) reserve() int {
	ahead := max(w.prefetch, w.returned)
	if w.size > 0 {
		ahead = min(ahead, aheadBytes/w.size)
	}
	return min(max(ahead, w.config.MaxWorkers), max(w.config.Prefetch, w.config.MaxWorkers))
}

// count counts anew how many handlers return, once the time is over. It is called under mu.
func (w *work) count(now time.Time) {
	if past := now.Sub(w.since); past >= prefetchTime {
		w.prefetch = int(float64(w.returned) * float64(prefetchTime) / float64(past))
		w.returned, w.since = 0, now
	}
}

// poll asks whether there may be an item, without a lock.
func (w *work) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ready, err := w.Driver.QueueReady(ctx, w.Queue)
	if err != nil {
		w.look = true // the take tells of the failure
		return
	}
	w.look = ready.Ready
	w.setWake(ready.Wake)
}

func (w *work) setWake(after time.Duration) {
	w.wakeAt = time.Time{}
	if after >= 0 {
		w.wakeAt = time.Now().Add(after)
	}
}

// take reports endings and reserves items. If it fails, the endings are reported again.
func (w *work) take(ctx context.Context, due []*ending, want int) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if w.renew {
		if err := w.renewSession(ctx, due); err != nil {
			w.putBack(due)
			return err
		}
	}
	t, began := w.asks(due, want), time.Now()
	taken, err := w.Driver.QueueTake(ctx, t)
	return w.takeIn(ctx, began, due, t, taken, err)
}

// ride has a write of this process take the next take along, which finds what is written: unless there is no place.
func (w *work) ride(ctx context.Context, call chan<- *riding.Ride) error {
	w.look = true // by the next take, if not by this
	due, want, _ := w.due()
	if want == 0 || w.renew {
		w.putBack(due)
		call <- nil
		return nil
	}
	t := w.asks(due, want)
	ride, began := riding.NewRide(t), time.Now()
	call <- ride
	taken, err := ride.Told()
	if errors.Is(err, riding.ErrAlone) {
		w.putBack(due)
		return nil
	}
	return w.takeIn(ctx, began, due, t, taken, err)
}

// asks returns the take that reports endings and reserves items.
func (w *work) asks(due []*ending, want int) queuing.Take {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := queuing.Take{Queue: w.Queue, Policy: w.Policy, Wakes: w.Wakes, Session: w.session, Lease: w.config.Lease, Want: want, Finishes: make([]queuing.Finish, 0, len(due))}
	for _, e := range due {
		e.Session = e.flight.session
		t.Finishes = append(t.Finishes, e.Finish)
		for _, d := range e.also {
			t.Finishes = append(t.Finishes, queuing.Finish{Delivery: d, Kind: queuing.Behind})
		}
	}
	if want > 0 {
		t.Ticket = w.ticket
		// What another process began is no worse off there: a queue of streams needs no line.
		if w.look && !w.ticketed && len(w.Wakes) == 0 {
			t.Wait = queuing.MaxWait
		}
	}
	if want > 0 {
		w.took, w.lookAt = time.Now(), time.Time{}
	}
	return t
}

// takeIn takes in the answer to a take that began at a time.
func (w *work) takeIn(ctx context.Context, began time.Time, due []*ending, t queuing.Take, taken queuing.Taken, err error) error {
	ended := len(due)
	for _, e := range due {
		ended += len(e.also)
	}
	if err == nil && len(taken.Endings) != ended {
		err = fmt.Errorf("%w: the store told %d endings of %d", messagestore.ErrOutcomeUnknown, len(taken.Endings), ended)
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
			w.begin(ctx, began, t.Session, taken.Items)
		}
	}
	return nil
}

// putBack has endings reported by the next take, before younger ones.
func (w *work) putBack(due []*ending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(slices.Clip(due), w.pending...)
}

// renewSession leaves a session that may have reserved items that nobody was told of, and takes along what is known.
func (w *work) renewSession(ctx context.Context, due []*ending) error {
	w.mu.Lock()
	if w.next == 0 {
		w.leaving, w.next = w.session, NewSession()
	}
	l := queuing.Leave{Queue: w.Queue, Session: w.leaving, Next: w.next, Lease: w.config.Lease}
	for delivery, f := range w.flights {
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
	for _, f := range w.flights {
		f.moved(l)
	}
	for _, e := range slices.Concat(w.pending, due) {
		e.flight.moved(l)
	}
	if w.session == l.Session { // else it has ended meanwhile, and its items are lost
		if w.session = l.Next; time.Now().Before(w.until) { // else what it had may have been another's before
			w.until = later(w.until, w.left.Add(w.config.Lease))
		}
	}
	w.leaving, w.next = 0, 0
	w.mu.Unlock()
	w.left = time.Time{}
	w.renew, w.ticket, w.ticketed = false, 0, false
	return nil
}

func (w *work) outageKey() outage.Key { return outage.Key{By: "queue " + w.Queue.Name, To: "take"} }

// storeFailed waits after an error of the store, and returns it if it lasts.
func (w *work) storeFailed(ctx context.Context, err error) error {
	for _, lasting := range []error{
		disposition.ErrLasting, messagestore.ErrClosed, messagestore.ErrNotPermitted, messagestore.ErrNotSupported, messagestore.ErrInvalid,
	} {
		if errors.Is(err, lasting) {
			return err
		}
	}
	w.failures++
	pause := backoff.After(w.failures, minStoreBackoff, maxStoreBackoff)
	w.Outage.Failed(w.outageKey(), w.log(), "queue", w.Queue.Name, "category", string(w.Queue.Category), "failures", w.failures,
		"wait", pause, "error", text.Log(err))
	_ = backoff.Wait(ctx, pause)
	w.look = true
	return nil
}

func (w *work) log() logger.Logger { return w.Logger }

// begin delivers items.
func (w *work) begin(ctx context.Context, asked time.Time, session int64, items []queuing.Taking) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if session != w.session { // given up while the take was under way
		for _, item := range items {
			w.unbegun(&Delivery{Item: item, of: w, session: session})
		}
		return
	}
	// The session was extended if less than two thirds of the lease were left. If it may have been over in the meantime, what it
	// had before may be another's: then nothing is certain until the store has said so.
	if time.Now().Before(w.until) || !w.holds() {
		w.until = later(w.until, asked.Add(w.config.Lease*66/100))
	}
	w.size = 0
	for _, item := range items {
		w.size += len(item.Message.Data)
	}
	w.size /= max(1, len(items))
	base := handling.With(context.WithoutCancel(ctx), &handling.Delivery{Consumer: w.Queue.Name})
	for _, item := range items {
		f := &Delivery{Item: item, of: w, session: session}
		w.flights[f.ID()] = f
		handled, cancel := context.WithCancelCause(base)
		f.cancel = cancel
		f.call = func() bool { return w.fly(handled, f) }
		w.ready = append(w.ready, f)
	}
	w.fill()
	if !w.certain() {
		select {
		case w.beats <- struct{}{}:
		default:
		}
	}
}

// holds reports whether the session has a delivery that has not ended. It is called under mu.
func (w *work) holds() bool {
	for _, f := range w.flights {
		if !f.done && !f.gone {
			return true
		}
	}
	return false
}

// certain reports whether what the session has is nobody else's, and for longer than the margin. The time is of the monotonic
// clock, which goes on while the process is stopped. (On Linux it does not while the machine sleeps: then it takes the next
// extension to find out.) It is called under mu.
func (w *work) certain() bool { return time.Now().Before(w.until.Add(-w.margin())) }

// fill has handlers called while places are free. It is called under mu.
func (w *work) fill() {
	for f := w.nextReady(); f != nil; f = w.nextReady() {
		w.start(f.call)
	}
}

func (w *work) refill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fill()
}

// nextReady returns the delivery whose handler is to be called next, or nil: also while it is not certain that what was reserved
// is the session's still. It is called under mu.
func (w *work) nextReady() *Delivery {
	for len(w.ready) > 0 {
		f := w.ready[0]
		if !f.done && (w.running == w.config.MaxWorkers || !w.certain()) {
			return nil
		}
		w.ready[0] = nil
		w.ready = w.ready[1:]
		if f.done { // it was lost meanwhile
			delete(w.flights, f.ID())
			continue
		}
		w.running++
		f.began = time.Now()
		if w.config.Timeout > 0 {
			f.timer = time.AfterFunc(w.config.Timeout+w.config.Grace, func() { w.abandon(f) })
		}
		return f
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// start has a goroutine see to a delivery: one that is idle, or a new one.
func (w *work) start(delivery func() (ended bool)) {
	select {
	case w.deliveries <- delivery:
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
				case delivery = <-w.deliveries:
				case <-w.over:
					return
				}
			}
		}()
	}
}

// fly calls the handler, which may panic or end the goroutine. It reports whether the delivery ended with it: an
// abandoned one has ended before, and another goroutine has its place.
func (w *work) fly(ctx context.Context, f *Delivery) (ended bool) {
	if w.config.Timeout > 0 {
		timed, cancel := context.WithTimeout(ctx, w.config.Timeout)
		defer cancel()
		ctx = timed
	}
	var err error
	defer func() { ended = w.landed(f, err, errors.Is(ctx.Err(), context.Canceled)) }()
	w.handle(ctx, f, &err)
	return ended
}

// handle calls the handler, unless the lease has ended since the goroutine was given the delivery: it may have been stopped.
func (w *work) handle(ctx context.Context, f *Delivery, err *error) {
	if *err = f.Check(ctx); *err != nil {
		return
	}
	*err = panics.ErrExited
	defer panics.Catch(err)
	*err = w.config.Handle(ctx, f)
}

// landed takes in what a handler returned, whose context was cancelled or not, and reports whether it was waited for.
func (w *work) landed(f *Delivery, err error, cancelled bool) (waited bool) {
	f.stopTimer()
	f.cancel(nil)
	w.mu.Lock()
	f.ended = cancelled && w.stopping // else it is lost
	if waited = w.flights[f.ID()] == f; waited {
		delete(w.flights, f.ID())
		w.notes.Ended(f.ID())
		w.running--
		w.returned++
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
		// The first of those that ride has told of them all.
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

// afterEnd logs an error that changes nothing any more.
func (w *work) afterEnd(f *Delivery, err error) {
	if err != nil && !isNotBegun(err) {
		w.about(w.log().Warn(), f).Str("error", text.Log(err)).Msg("handler failed after the end of its delivery")
	}
}

// endingOf decides what becomes of an item. It is called under mu.
func (w *work) endingOf(f *Delivery, err error) *ending {
	if f.given > 0 { // the handler had done with the item itself
		err = nil
	}
	e := &ending{Finish: w.finishOf(f, err), flight: f, err: err}
	if !f.Committed.Load() {
		if e.Kind == queuing.Complete {
			e.also = f.also
			w.behind.given += len(e.also)
		}
		w.decided(e)
		return e
	}
	// The store knows whether the transaction was committed.
	e.otherwise, e.until = new(queuing.Finish), time.Now()
	if *e.otherwise = e.Finish; err == nil {
		e.err, e.until = ErrUncommitted, e.until.Add(w.config.Timeout)
		*e.otherwise = w.finishOf(f, e.err)
	}
	e.Kind = queuing.Committed
	return e
}

// finishOf says what the error of a handler makes of its item. It is called under mu.
func (w *work) finishOf(f *Delivery, err error) queuing.Finish {
	finish := queuing.Finish{Kind: queuing.Unhandled}
	if isNotBegun(err) {
		finish.Error = text.Log(err)
	} else {
		finish = w.config.Finish(f, err, f.ended || w.stopping && panics.Is(err, context.Canceled))
	}
	finish.Delivery = f.ID()
	return finish
}

// FinishOf says what the error of a handler makes of its item, as package queue promises it. The pause after a failure is between
// least and most. Nil and a disposition are the handler's decision, whenever it comes; any other error behind the stop is one of the
// stop, whatever it wraps.
func FinishOf(d *Delivery, err error, stopped bool, least, most time.Duration) queuing.Finish {
	finish := queuing.Finish{Kind: queuing.Complete}
	disposed := disposition.Of(err)
	if err == nil || disposed.Asks(disposition.Skip) {
		return finish
	}
	finish.Error = text.Log(err)
	switch {
	case disposed.Asks(disposition.Retry):
		finish.Kind, finish.Delay = queuing.Defer, min(max(disposed.After, 0), queuing.MaxDelay)
	case disposed.Asks(disposition.Park), disposed.Asks(disposition.Refuse):
		finish.Kind = queuing.Bury
	case panics.Is(err, handler.ErrUnknownType) && panics.Of(err) == nil: // a newer process may know it
		finish.Kind, finish.Delay = queuing.Defer, backoff.After(d.Item.Version+1, least, most)
	case stopped:
		finish.Kind = queuing.Unhandled
	default:
		finish.Kind, finish.Delay = queuing.Retry, backoff.After(d.Item.Failures+1, least, most)
	}
	return finish
}

func isNotBegun(err error) bool {
	_, is := err.(*NotBegunError) //nolint:errorlint // what a handler wraps is its own
	return is
}

// decided logs and counts what becomes of an item, but for its completion.
func (w *work) decided(e *ending) {
	var event *logger.Event
	var what string
	f := e.flight
	switch e.Kind {
	case queuing.Committed, queuing.Wait, queuing.Suspend:
		return
	case queuing.Complete:
		if e.err == nil {
			return
		}
		w.counts.Skipped.Add(1)
		event, what = w.log().Warn(), "item skipped"
	case queuing.Defer:
		event, what = w.log().Debug(), "item deferred"
		if panics.Is(e.err, handler.ErrUnknownType) {
			event, what = w.log().Warn(), "item has no handler"
		}
	case queuing.Retry, queuing.Bury:
		w.counts.Failed.Add(1)
		event, what = w.log().Warn(), "handler failed"
		if e.Kind == queuing.Bury || f.Item.Failures+1 >= w.Policy.MaxFailures {
			w.counts.Buried.Add(1)
			event, what = w.log().Error(), "item is dead"
		}
		event = event.Int("failures", f.Item.Failures+1)
		if stack := panics.Stack(e.err); stack != "" && f.Item.Failures == 0 {
			event = event.Str(logger.Stack, stack)
		}
	default:
		event, what = w.log().Info(), "handler interrupted"
	}
	event = w.about(event, f).Stringer("wait", e.Delay.Round(time.Millisecond))
	if e.err != nil {
		event = event.Str("error", text.Log(e.err))
	}
	event.Msg(what)
}

func (w *work) about(event *logger.Event, f *Delivery) *logger.Event {
	m := f.Item.Message
	return event.Str("queue", w.Queue.Name).Str("type", m.Type).Str("stream", string(m.Stream)).Str("id", m.ID.String()).
		Int64("globalPosition", int64(m.GlobalPosition)).Int("version", f.Item.Version)
}

// ended takes in what the store told of an ending.
func (w *work) ended(e *ending, told queuing.Ending) {
	if e.otherwise != nil && w.askAgain(e, told) {
		w.putBack([]*ending{e})
		return
	}
	if w.tell(e, told) && told == queuing.Open {
		return // the handler goes on with it
	}
	f := e.flight
	switch {
	case told != queuing.Done:
		w.counts.Lost.Add(1)
		w.about(w.log().Warn(), f).Str("kind", string(e.Kind)).Msg("the end of the delivery came too late")
	case e.Kind == queuing.Committed && e.err != ErrUncommitted: //nolint:errorlint // as it was set
		w.afterEnd(f, e.err)
		fallthrough
	case e.Kind == queuing.Complete, e.Kind == queuing.Committed:
		w.counts.Completed.Add(1)
	}
}

// tell gives the calls of a job what the store told of an ending, and reports whether the ending is one of theirs.
func (w *work) tell(e *ending, told queuing.Ending) (early bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := e.flight
	e.answer, e.over, e.final = told, true, e.Kind
	if early = e == f.early; early {
		f.done = told != queuing.Open
		switch {
		case !f.done:
			f.early = nil
		case told != queuing.Done:
			f.cancel(ErrLost)
		}
	}
	if e.told != nil {
		close(e.told)
	}
	return early
}

// askAgain reports whether an item that a transaction was to complete is to be asked for again, as what. A row that a
// transaction has is passed over, so what is refused then may be the item's yet.
func (w *work) askAgain(e *ending, told queuing.Ending) bool {
	committed := queuing.Finish{Delivery: e.Delivery, Kind: queuing.Committed}
	switch {
	case e.Kind == queuing.Committed && told == queuing.Open && time.Now().Before(e.until):
		e.after = time.Now().Add(openInterval)
	case e.Kind == queuing.Committed && told == queuing.Open:
		if e.Finish = *e.otherwise; !e.said {
			e.said = true
			w.decided(e)
		}
	case e.Kind != queuing.Committed && told == queuing.Lost:
		e.Finish, e.after = committed, time.Now().Add(openInterval)
	default:
		return false
	}
	return true
}

// endEarly ends a delivery while its handler goes on. A later call for the same is told what the first one is, and a call that
// ends it as its handler has ended it since is told of that.
func (w *work) endEarly(ctx context.Context, f *Delivery, finish queuing.Finish, err error) (queuing.Ending, error) {
	w.mu.Lock()
	early := f.early
	switch {
	case early != nil && early.Kind == finish.Kind:
	case f.result != nil && f.kind == finish.Kind:
		if early = f.result; early.told == nil {
			if early.told = make(chan struct{}); early.over {
				close(early.told)
			}
		}
	case !f.open():
		w.mu.Unlock()
		return queuing.Lost, nil
	default:
		early = &ending{Finish: finish, flight: f, err: err, told: make(chan struct{})}
		f.early = early
		w.pending = append(w.pending, early)
		w.decided(early)
	}
	w.mu.Unlock()
	w.wake()
	var why error
	select {
	case <-early.told:
	case <-w.over:
		why = errors.New("the worker has ended")
	case <-ctx.Done():
		why = context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !early.over:
		return 0, fmt.Errorf("%w: %w", messagestore.ErrOutcomeUnknown, why)
	case early.final != finish.Kind: // its transaction was not committed
		return queuing.Lost, nil
	}
	return early.answer, nil
}

// abandon gives back an item whose handler does not return.
func (w *work) abandon(f *Delivery) {
	w.mu.Lock()
	if w.flights[f.ID()] != f {
		w.mu.Unlock()
		return
	}
	delete(w.flights, f.ID())
	w.notes.Ended(f.ID())
	took := time.Since(f.began).Round(time.Millisecond)
	if f.open() {
		f.done = true
		w.pending = append(w.pending, w.endingOf(f, fmt.Errorf("abandoned: its handler did not return within %v", took)))
	}
	w.running--
	w.fill()
	w.mu.Unlock()
	w.counts.Abandoned.Add(1)
	w.about(w.log().Error(), f).Stringer("after", took).Msg("handler abandoned: it goes on without its item")
	w.wake()
}

// beat extends the session, and ends the handlers of what it cannot extend.
func (w *work) beat(ctx context.Context) {
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
		for delivery, f := range w.flights {
			if !f.done && !f.gone {
				e.Deliveries = append(e.Deliveries, delivery)
			}
		}
		for _, p := range w.pending {
			e.Deliveries = append(e.Deliveries, p.Delivery)
		}
		until := w.until
		var version int
		if len(e.Deliveries) > 0 {
			e.Notes, version = w.notes.News()
		}
		w.mu.Unlock()
		if len(e.Deliveries) == 0 {
			continue // the session may end
		}
		began := time.Now()
		call, cancel := context.WithDeadline(upkeep.With(ctx), later(until.Add(-w.margin()), began.Add(w.config.Lease/10)))
		var lost []queuing.Delivery
		err := panics.Call(func() (err error) {
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
func (w *work) margin() time.Duration { return w.config.Lease / 10 }

func (w *work) beatPause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	pause := w.config.Lease / 3
	if left := time.Until(w.until) - w.margin() - w.config.Lease/10; left < pause && w.holds() {
		pause = max(left, w.config.Lease/20)
	}
	return pause
}

// extended takes in the answer to an extension.
func (w *work) extended(e queuing.Extension, began time.Time, lost []queuing.Delivery, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session != e.Session {
		return // left meanwhile, and what it had is another's
	}
	defer w.fill()                                // what waited to be certain, in the places of what is lost, too
	alive := err == nil && w.leaving != e.Session // while it is left, nobody knows whose they are
	switch {
	case alive:
		// If all are lost the session may have been over, and then what a take had reserved before is lost too, though the call
		// did not name it, since the take was answered later. Nothing is certain until a call has named that.
		if keeps(e.Deliveries, lost) {
			w.until = later(w.until, began.Add(w.config.Lease))
		}
		w.answered()
	case time.Now().Before(w.until.Add(-w.margin())):
		return
	default: // nobody else may work on them while they go on
		lost = slices.Collect(maps.Keys(w.flights)) // also what was begun since the call was made
		w.session, w.until = NewSession(), time.Time{}
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
		f := w.flights[delivery]
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

// keeps reports whether some deliveries are not among those that are lost.
func keeps(all, lost []queuing.Delivery) bool {
	if len(lost) == 0 {
		return true
	}
	is := make(map[queuing.Delivery]bool, len(lost))
	for _, d := range lost {
		is[d] = true
	}
	return slices.ContainsFunc(all, func(d queuing.Delivery) bool { return !is[d] })
}

// answered says that the store answers again, if it was said that items are lost. It is called under mu.
func (w *work) answered() {
	if w.unextended {
		w.unextended = false
		w.log().Warn().Str("queue", w.Queue.Name).Msg("the store answers again: items are taken")
	}
}

// drain waits for the handlers, reports what they return, and gives back the rest.
func (w *work) drain(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	w.mu.Lock()
	w.stopping = true
	for _, f := range w.ready {
		w.unbegun(f)
	}
	w.ready = nil
	w.mu.Unlock()
	w.drainUntil(ctx, time.Now().Add(w.config.Grace))
	w.mu.Lock()
	for _, f := range w.flights {
		f.cancel(nil)
	}
	w.mu.Unlock()
	w.drainUntil(ctx, time.Now().Add(w.config.Grace))

	w.mu.Lock()
	var left []string
	for delivery, f := range w.flights {
		delete(w.flights, delivery)
		f.stopTimer()
		left = append(left, f.Item.Message.String())
		if f.open() {
			f.done = true
			w.pending = append(w.pending, &ending{Finish: queuing.Finish{Delivery: delivery, Kind: queuing.Unhandled}, flight: f})
		}
	}
	w.mu.Unlock()
	until := time.Now().Add(LeaveTimeout)
	w.drainUntil(ctx, until)
	w.mu.Lock()
	session, unreported := w.session, len(w.pending)
	w.mu.Unlock()
	w.Leave(ctx, session, until)
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

// unbegun gives back an item whose handler was not called. It is called under mu.
func (w *work) unbegun(f *Delivery) {
	delete(w.flights, f.ID())
	if f.open() {
		f.done = true
		w.pending = append(w.pending, &ending{Finish: queuing.Finish{Delivery: f.ID(), Kind: queuing.Unhandled}, flight: f})
	}
}

// drainUntil reports endings until there is nothing to wait for, or the time comes. If the store refuses for good, it waits
// for the handlers alone.
func (w *work) drainUntil(ctx context.Context, end time.Time) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	refused := false
	for first := true; first || ctx.Err() == nil; first = false {
		w.mu.Lock()
		idle := len(w.flights) == 0 && (refused || len(w.pending) == 0)
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
