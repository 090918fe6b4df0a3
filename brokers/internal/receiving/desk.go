package receiving

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
)

// A Desk keeps the deliveries that a receiver holds, a bounded number: in flight, ready, behind
// another of their key, or paused before the next attempt. Deliveries of one key are handled one
// after the other, in the order of [Desk.Put]; a waiting delivery does not hold up other keys. It
// is safe for concurrent use.
type Desk[D interface{ Times() int }] struct {
	work   func(ctx context.Context, d D, times int) (again time.Duration, ended bool)
	window int

	mu      sync.Mutex
	changed sync.Cond
	lanes   map[string][]*entry[D] // the first is ready, in flight, or waits
	alone   map[*entry[D]]struct{} // the deliveries without a key
	ready   []*entry[D]
	inHand  int
	stopped bool
	failed  error // the first panic
	workers sync.WaitGroup
}

type entry[D any] struct {
	delivery D
	key      string
	keyed    bool
	failures int
	inWork   bool
	gone     bool // it was dropped
	timer    *time.Timer
}

// NewDesk returns a desk for up to window deliveries, handled by r.
func NewDesk[D Delivery[M], M any](r *Receiver[M], window int) *Desk[D] {
	k := &Desk[D]{window: window, lanes: map[string][]*entry[D]{}, alone: map[*entry[D]]struct{}{}}
	k.work = func(ctx context.Context, d D, times int) (time.Duration, bool) { return r.Handle(ctx, d, times, 0) }
	k.changed.L = &k.mu
	return k
}

// Serve runs workers that handle deliveries with the context working, while fetch puts deliveries
// on the desk and beside does everything else. When ctx is done, workers take no more deliveries.
// The context of beside ends when fetch has returned and all workers have ended. Serve returns the
// unended deliveries, which go back to the broker, and the error of fetch. If a worker or beside
// panics, Serve ends with the panic as its error.
func (k *Desk[D]) Serve(ctx, working context.Context, workers int, fetch func(context.Context) error, beside func(context.Context)) (unended []D, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(ctx, k.end)
	guarded := func(f func()) func() {
		return func() {
			if err := calling.Call(func() error { f(); return nil }); err != nil {
				k.fail(err)
				stop()
			}
		}
	}
	for range workers {
		k.workers.Go(guarded(func() { k.serve(working) }))
	}
	going, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var all sync.WaitGroup
	all.Go(guarded(func() { beside(going) }))
	err = fetch(ctx)
	unended = k.stop()
	end()
	all.Wait()
	return unended, cmp.Or(k.failed, err)
}

// fail keeps the first panic.
func (k *Desk[D]) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failed = cmp.Or(k.failed, err)
}

func (k *Desk[D]) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.changed.Broadcast()
}

// Room waits until there is room, and returns for how many deliveries. It returns 0 when ctx is
// done.
func (k *Desk[D]) Room(ctx context.Context) int {
	stop := context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.changed.Broadcast()
	})
	defer stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	for ctx.Err() == nil && k.inHand >= k.window {
		k.changed.Wait()
	}
	if ctx.Err() != nil {
		return 0
	}
	return k.window - k.inHand
}

// Put adds a delivery. Without a key it does not wait for other deliveries.
func (k *Desk[D]) Put(d D, key string, keyed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := &entry[D]{delivery: d, key: key, keyed: keyed}
	k.inHand++
	if !keyed {
		k.alone[e] = struct{}{}
		k.offer(e)
		return
	}
	k.lanes[key] = append(k.lanes[key], e)
	if len(k.lanes[key]) == 1 {
		k.offer(e)
	}
}

func (k *Desk[D]) offer(e *entry[D]) {
	k.ready = append(k.ready, e)
	k.changed.Broadcast()
}

func (k *Desk[D]) serve(ctx context.Context) {
	for {
		e := k.next()
		if e == nil {
			return
		}
		again, ended := k.work(ctx, e.delivery, e.delivery.Times()+e.failures)
		k.put(e, again, ended)
	}
}

func (k *Desk[D]) next() *entry[D] {
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.stopped && len(k.ready) == 0 {
		k.changed.Wait()
	}
	if k.stopped {
		return nil
	}
	e := k.ready[0]
	k.ready = k.ready[1:]
	e.inWork = true
	return e
}

// put takes a delivery back from a worker.
func (k *Desk[D]) put(e *entry[D], again time.Duration, ended bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.inWork = false
	if ended || e.gone {
		k.remove(e)
		return
	}
	e.failures++
	e.timer = time.AfterFunc(again, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !e.gone && !k.stopped {
			k.offer(e)
		}
	})
}

// remove removes an ended delivery, and lets the next in its lane start.
func (k *Desk[D]) remove(e *entry[D]) {
	k.inHand--
	k.changed.Broadcast()
	if !e.keyed {
		delete(k.alone, e)
		return
	}
	lane := k.lanes[e.key][1:]
	if len(lane) == 0 {
		delete(k.lanes, e.key)
		return
	}
	k.lanes[e.key] = lane
	k.offer(lane[0])
}

// InHand returns the deliveries that have not ended.
func (k *Desk[D]) InHand() (all []D) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for e := range k.entries {
		all = append(all, e.delivery)
	}
	return all
}

func (k *Desk[D]) entries(yield func(*entry[D]) bool) {
	for e := range k.alone {
		if !yield(e) {
			return
		}
	}
	for _, lane := range k.lanes {
		for _, e := range lane {
			if !yield(e) {
				return
			}
		}
	}
}

// Drop forgets the deliveries that the broker has taken back. Workers finish the deliveries that
// they have begun.
func (k *Desk[D]) Drop(lost func(D) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for e := range k.alone {
		if lost(e.delivery) {
			k.forget(e)
			if !e.inWork {
				delete(k.alone, e)
			}
		}
	}
	for key, lane := range k.lanes {
		kept := slices.DeleteFunc(slices.Clone(lane), func(e *entry[D]) bool {
			if !lost(e.delivery) {
				return false
			}
			k.forget(e)
			return !e.inWork
		})
		switch {
		case len(kept) == 0:
			delete(k.lanes, key)
		default:
			k.lanes[key] = kept
			if first := kept[0]; first != lane[0] {
				k.offer(first)
			}
		}
	}
	k.ready = slices.DeleteFunc(k.ready, func(e *entry[D]) bool { return e.gone })
	k.changed.Broadcast()
}

// forget marks a delivery as dropped. If a worker has it, it is removed when the worker puts it
// back.
func (k *Desk[D]) forget(e *entry[D]) {
	if e.gone {
		return
	}
	e.gone = true
	if e.timer != nil {
		e.timer.Stop()
	}
	if !e.inWork {
		k.inHand--
	}
}

// stop waits for the deliveries in flight, and returns the others.
func (k *Desk[D]) stop() (unended []D) {
	k.end()
	k.workers.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	for e := range k.entries {
		if e.timer != nil {
			e.timer.Stop()
		}
		unended = append(unended, e.delivery)
	}
	return unended
}
