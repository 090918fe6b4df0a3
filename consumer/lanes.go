package consumer

import (
	"container/heap"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"
)

// A laneItem is a value in a lane.
type laneItem[T any] struct {
	Value  T
	Number int64 // items that are ready are taken in the order of their numbers

	key    string
	behind *laneItem[T] // the next of its lane
	due    time.Time
}

// A lanesConfig says how lanes work.
type lanesConfig[T any] struct {
	// Workers is how many items may be in flight.
	Workers int

	// Key returns the lane of a value. A nil Key puts all values into one lane.
	Key func(*T) string

	// Work is called by a worker, and reports whether the item is finished. If not, the
	// item stays in flight until the owner calls Finish, Retry or Drop. Work may end its
	// goroutine, which means false: a new goroutine takes the worker's place.
	Work func(ctx context.Context, it *laneItem[T]) (finished bool)

	// Wake tells the owner that the workers run out of items, or that the lanes are stopped or
	// paused and nothing is in flight. It must not block, nor call the lanes.
	Wake func()
}

// lanes dispatch items to workers by key: items with one key form a lane, and are worked on one
// after the other, in order. Items of other lanes do not wait for them.
//
// The owner of the lanes adds items, calls [lanes.Dispatch] when something may have become due, and
// decides about the items that a worker could not finish. Workers take items without the owner, so
// an item that is finished costs the owner nothing. The methods are safe for concurrent use.
type lanes[T any] struct {
	config lanesConfig[T]
	wg     sync.WaitGroup

	mu       sync.Mutex
	given    sync.Cond               // a worker can take an item
	last     map[string]*laneItem[T] // of each lane
	ready    itemHeap[T]             // the first of each lane that can be taken: the lowest number first
	waiting  itemHeap[T]             // the first of each lane that waits for a retry: the next due first
	kept     map[*laneItem[T]]struct{}
	workers  []*laneWorker[T]
	limit    int64
	unended  int  // items that are not finished
	inFlight int  // items that a worker has, or that are kept
	working  int  // calls of Work that have not returned
	idle     int  // workers that wait
	enough   bool // the owner knows that the workers have enough
	stopped  bool
	paused   bool
}

// newLanes returns empty lanes. Their limit is 0: no item is taken before a call of [lanes.Limit].
func newLanes[T any](config lanesConfig[T]) *lanes[T] {
	l := &lanes[T]{
		config:  config,
		last:    map[string]*laneItem[T]{},
		ready:   itemHeap[T]{less: func(a, b *laneItem[T]) bool { return a.Number < b.Number }},
		waiting: itemHeap[T]{less: func(a, b *laneItem[T]) bool { return a.due.Before(b.due) }},
		kept:    map[*laneItem[T]]struct{}{},
	}
	l.given.L = &l.mu
	return l
}

// Add puts items at the ends of their lanes.
func (l *lanes[T]) Add(items iter.Seq[*laneItem[T]]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for it := range items {
		if l.config.Key != nil {
			it.key = l.config.Key(&it.Value)
		}
		if last, ok := l.last[it.key]; ok {
			last.behind = it
		} else {
			heap.Push(&l.ready, it)
		}
		l.last[it.key] = it
		l.unended++
	}
}

// Limit keeps items with a number of at least limit from being taken.
func (l *lanes[T]) Limit(limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = limit
}

// Dispatch gives the items that are ready or due to workers. A worker calls Work with the context
// work, and takes no further item once the context told is done.
func (l *lanes[T]) Dispatch(told, work context.Context, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting.items) > 0 && !l.waiting.items[0].due.After(now) {
		heap.Push(&l.ready, heap.Pop(&l.waiting))
	}
	if !l.canTake() {
		return
	}
	idle := l.idle
	for range min(len(l.ready.items), l.config.Workers-l.inFlight) {
		switch {
		case idle > 0:
			idle--
			l.given.Signal()
		case len(l.workers) < l.config.Workers:
			w := &laneWorker[T]{lanes: l}
			l.workers = append(l.workers, w)
			l.wg.Go(func() { w.serve(told, work) })
		default:
			return
		}
	}
}

// canTake reports whether an item is ready with a number below the limit.
func (l *lanes[T]) canTake() bool {
	return !l.paused && len(l.ready.items) > 0 && l.ready.items[0].Number < l.limit
}

// Finish ends an item that Work did not finish, and opens its lane to the next.
func (l *lanes[T]) Finish(it *laneItem[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(it)
	l.finish(it)
}

// Retry keeps an item that Work did not finish first in its lane until it is due.
func (l *lanes[T]) Retry(it *laneItem[T], due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(it)
	it.due = due
	heap.Push(&l.waiting, it)
}

// Drop ends the flight of an item that Work did not finish, without finishing it. Its lane stays
// closed.
func (l *lanes[T]) Drop(it *laneItem[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(it)
}

// release takes an item out of flight. A worker may still have it, if Work has reported it to the
// owner and not yet returned.
func (l *lanes[T]) release(it *laneItem[T]) {
	delete(l.kept, it)
	l.inFlight--
	for _, w := range l.workers {
		if w.item == it {
			w.item = nil
		}
	}
	l.wakeIfStopped()
}

func (l *lanes[T]) finish(it *laneItem[T]) {
	l.unended--
	if it.behind != nil {
		heap.Push(&l.ready, it.behind)
		it.behind = nil
		return
	}
	delete(l.last, it.key)
}

func (l *lanes[T]) wakeIfStopped() {
	if (l.stopped || l.paused) && l.inFlight == 0 {
		l.config.Wake()
	}
}

// NextDue returns when the next item is due for a retry.
func (l *lanes[T]) NextDue() (due time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting.items) == 0 {
		return time.Time{}, false
	}
	return l.waiting.items[0].due, true
}

// Enough reports whether each worker has an item to take next. If so, the owner is woken when that
// changes.
func (l *lanes[T]) Enough() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enough = l.hasEnough()
	return l.enough
}

func (l *lanes[T]) hasEnough() bool {
	waiting := len(l.ready.items)
	if l.config.Key == nil {
		waiting = l.unended - l.inFlight
	}
	return waiting >= l.config.Workers
}

// InFlight returns the number of items that are in flight.
func (l *lanes[T]) InFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight
}

// Items returns the items that are in flight, the lowest number first.
func (l *lanes[T]) Items() []*laneItem[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Collect(maps.Keys(l.kept))
	for _, w := range l.workers {
		if w.item != nil {
			all = append(all, w.item)
		}
	}
	slices.SortFunc(all, func(a, b *laneItem[T]) int { return int(a.Number - b.Number) })
	return all
}

// Working returns the number of calls of Work that have not returned.
func (l *lanes[T]) Working() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.working
}

// Stop keeps the workers from taking further items. It does not wait for those in flight.
func (l *lanes[T]) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.given.Broadcast()
}

// Pause keeps the workers from taking further items until it is called with false. It does not
// wait for those in flight.
func (l *lanes[T]) Pause(paused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = paused
}

// Wait waits for the workers to end, after Stop.
func (l *lanes[T]) Wait() { l.wg.Wait() }

// A laneWorker works on one item after the other, each as soon as it has finished the previous one.
// It lives until the lanes are stopped, in several goroutines if Work ends them.
type laneWorker[T any] struct {
	*lanes[T]
	busy bool         // in Work
	item *laneItem[T] // nil also if the owner has decided about it
}

func (w *laneWorker[T]) serve(told, work context.Context) {
	defer w.end(told, work)
	finished := false
	for {
		it := w.next(told, finished)
		if it == nil {
			return
		}
		finished = w.config.Work(work, it)
	}
}

// end starts another goroutine if Work has ended this one.
func (w *laneWorker[T]) end(told, work context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy {
		w.putDown(false)
		w.wg.Go(func() { w.serve(told, work) })
	}
}

// next puts down the worker's item, and waits for the next. It returns nil when the lanes
// are stopped.
func (w *laneWorker[T]) next(told context.Context, finished bool) *laneItem[T] {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy {
		w.putDown(finished)
	}
	for {
		switch {
		case w.stopped || told.Err() != nil:
			return nil
		case w.inFlight < w.config.Workers && w.canTake():
			w.item = heap.Pop(&w.ready).(*laneItem[T]) //nolint:errcheck // only items are pushed
			w.busy = true
			w.inFlight++
			w.working++
			if w.enough && !w.hasEnough() {
				w.enough = false
				w.config.Wake()
			}
			return w.item
		}
		w.idle++
		w.given.Wait()
		w.idle--
	}
}

func (w *laneWorker[T]) putDown(finished bool) {
	it := w.item
	w.item, w.busy = nil, false
	w.working--
	switch {
	case it == nil: // the owner was faster
	case finished:
		w.inFlight--
		w.finish(it)
		w.wakeIfStopped()
	default:
		w.kept[it] = struct{}{}
	}
}

type itemHeap[T any] struct {
	items []*laneItem[T]
	less  func(a, b *laneItem[T]) bool
}

func (h *itemHeap[T]) Len() int           { return len(h.items) }
func (h *itemHeap[T]) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *itemHeap[T]) Swap(i, j int)      { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *itemHeap[T]) Push(x any)         { h.items = append(h.items, x.(*laneItem[T])) } //nolint:errcheck // only items are pushed

func (h *itemHeap[T]) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return it
}
