package consumer

import (
	"container/heap"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// An item is a message from when it is read until it is behind the position.
type item struct {
	message      *messagestore.Recorded
	number       int64                       // of the run's messages, from 0
	next         messagestore.GlobalPosition // the position once this and all before are finished
	done         bool
	attempts     int
	firstFailed  time.Time
	lastErr      error
	parking      bool // given up on: to be parked, not handled
	parkFailures int
	due          time.Time

	// request is set for a message that is not read but asked to be redriven. It is
	// before all others, and not in the window.
	request *request
}

// A window holds, in order, the messages that are read and not yet behind the
// position.
type window struct {
	items    []*item
	passed   int64                       // how many went behind the position, and so the number of the first item
	position messagestore.GlobalPosition // the lowest unfinished
}

// add takes a page of messages and returns their items.
func (w *window) add(page messagestore.CategoryPage) []*item {
	first := len(w.items)
	for _, m := range page.Messages {
		w.items = append(w.items, &item{
			message: m,
			number:  w.passed + int64(len(w.items)),
			next:    messagestore.NextAfter(m.GlobalPosition),
		})
	}
	// What the filter kept back is behind the message before it.
	if n := len(w.items); n > 0 {
		w.items[n-1].next = page.Next
	} else {
		w.position = page.Next
	}
	return w.items[first:]
}

// finish marks an item and moves the position over all that are finished.
func (w *window) finish(it *item) {
	it.done = true
	it.message = nil
	for len(w.items) > 0 && w.items[0].done {
		w.position = w.items[0].next
		w.items[0] = nil
		w.items = w.items[1:]
		w.passed++
	}
}

// Lanes hold the messages that are not in hand: a lane for each cardinal id, of
// which one message at a time is in hand.
type lanes struct {
	byID    map[string]*lane
	ready   laneHeap // lanes that can be taken from: the one with the oldest message first
	waiting laneHeap // lanes whose message waits for its next attempt: the next first
	inOrder bool     // a message that waits holds up all lanes
}

type lane struct {
	id    string
	items []*item
}

func newLanes(inOrder bool) *lanes {
	return &lanes{
		byID:    map[string]*lane{},
		ready:   laneHeap{less: func(a, b *item) bool { return a.number < b.number }},
		waiting: laneHeap{less: func(a, b *item) bool { return a.due.Before(b.due) }},
		inOrder: inOrder,
	}
}

// add puts a message at the end of its lane.
func (l *lanes) add(it *item) {
	id := it.message.Stream.CardinalID()
	if of, ok := l.byID[id]; ok {
		of.items = append(of.items, it)
		return
	}
	of := &lane{id: id, items: []*item{it}}
	l.byID[id] = of
	heap.Push(&l.ready, of)
}

// wake makes the messages ready that have waited long enough.
func (l *lanes) wake(now time.Time) {
	for len(l.waiting.lanes) > 0 && !l.waiting.lanes[0].items[0].due.After(now) {
		heap.Push(&l.ready, heap.Pop(&l.waiting))
	}
}

// take returns the oldest message that can be handled, if its number is below
// limit. Its lane is closed until it is given back.
func (l *lanes) take(limit int64) *item {
	if len(l.ready.lanes) == 0 || l.inOrder && len(l.waiting.lanes) > 0 {
		return nil
	}
	it := l.ready.lanes[0].items[0]
	if it.number >= limit {
		return nil
	}
	heap.Pop(&l.ready)
	return it
}

// finish opens the lane of a message that is finished to the next.
func (l *lanes) finish(it *item) {
	of := l.byID[it.message.Stream.CardinalID()]
	of.items[0] = nil
	if of.items = of.items[1:]; len(of.items) == 0 {
		delete(l.byID, of.id)
		return
	}
	heap.Push(&l.ready, of)
}

// retry keeps a message first in its lane until it is due.
func (l *lanes) retry(it *item, due time.Time) {
	it.due = due
	heap.Push(&l.waiting, l.byID[it.message.Stream.CardinalID()])
}

// nextDue returns when the next message stops waiting.
func (l *lanes) nextDue() (due time.Time, ok bool) {
	if len(l.waiting.lanes) == 0 {
		return time.Time{}, false
	}
	return l.waiting.lanes[0].items[0].due, true
}

// A laneHeap orders lanes by their first message.
type laneHeap struct {
	lanes []*lane
	less  func(a, b *item) bool
}

func (h *laneHeap) Len() int           { return len(h.lanes) }
func (h *laneHeap) Less(i, j int) bool { return h.less(h.lanes[i].items[0], h.lanes[j].items[0]) }
func (h *laneHeap) Swap(i, j int)      { h.lanes[i], h.lanes[j] = h.lanes[j], h.lanes[i] }
func (h *laneHeap) Push(x any)         { h.lanes = append(h.lanes, x.(*lane)) } //nolint:errcheck // only lanes are pushed

func (h *laneHeap) Pop() any {
	last := len(h.lanes) - 1
	of := h.lanes[last]
	h.lanes[last] = nil
	h.lanes = h.lanes[:last]
	return of
}
