package consumer

import (
	"container/heap"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// An item is a message from when it is read until it is behind the position.
type item struct {
	message      *messagestore.Message
	number       int64    // of the run's messages, from 0
	next         recorded // the position once this and all before are finished
	behind       *item    // the next of its lane
	held         bool     // in hand, or failed and not decided on
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
	pages    [][]item // as they were read, none of them empty
	length   int
	passed   int64    // how many went behind the position, and so the number of the first item
	position recorded // the lowest unfinished
}

// add takes a page of messages and returns their items, which stay where they are.
func (w *window) add(page messagestore.CategoryPage) []item {
	items := make([]item, len(page.Messages))
	for i, m := range page.Messages {
		items[i].message = m
		items[i].number = w.passed + int64(w.length+i)
		items[i].next = recorded{messagestore.NextAfter(m.GlobalPosition), m.ID}
	}
	if len(items) > 0 {
		w.pages = append(w.pages, items)
		w.length += len(items)
	}
	// What the filter kept back is behind the message before it.
	end := &w.position
	if n := len(w.pages); n > 0 {
		last := w.pages[n-1]
		end = &last[len(last)-1].next
	}
	if end.Position != page.Next {
		*end = recorded{page.Next, page.Last.ID}
	}
	return items
}

// finish marks an item and moves the position over all that are finished.
func (w *window) finish(it *item) {
	it.done = true
	it.message = nil
	for w.length > 0 && w.pages[0][0].done {
		w.position = w.pages[0][0].next
		w.length--
		w.passed++
		if w.pages[0] = w.pages[0][1:]; len(w.pages[0]) == 0 {
			w.pages[0] = nil
			w.pages = w.pages[1:]
		}
	}
}

// Lanes hold the messages that are not finished: a lane for each cardinal id, or one
// for all, of which only the first message can be in hand.
type lanes struct {
	last    map[string]*item // of each lane
	ready   itemHeap         // the first of the lanes that can be taken from: the oldest first
	waiting itemHeap         // those that wait for their next attempt: the next first
	inOrder bool             // there is one lane
}

func newLanes(inOrder bool) *lanes {
	return &lanes{
		last:    map[string]*item{},
		ready:   itemHeap{less: func(a, b *item) bool { return a.number < b.number }},
		waiting: itemHeap{less: func(a, b *item) bool { return a.due.Before(b.due) }},
		inOrder: inOrder,
	}
}

// of names the lane of a message.
func (l *lanes) of(it *item) string {
	if l.inOrder {
		return ""
	}
	return it.message.Stream.CardinalID()
}

// add puts a message at the end of its lane.
func (l *lanes) add(it *item) {
	lane := l.of(it)
	if last, ok := l.last[lane]; ok {
		last.behind = it
	} else {
		heap.Push(&l.ready, it)
	}
	l.last[lane] = it
}

// wake makes the messages ready that have waited long enough.
func (l *lanes) wake(now time.Time) {
	for len(l.waiting.items) > 0 && !l.waiting.items[0].due.After(now) {
		heap.Push(&l.ready, heap.Pop(&l.waiting))
	}
}

// canTake reports whether there is a message to be handled with a number below limit.
func (l *lanes) canTake(limit int64) bool {
	return len(l.ready.items) > 0 && l.ready.items[0].number < limit
}

// take returns the oldest message that can be handled. Its lane is closed until it is
// finished, or tried again.
func (l *lanes) take() *item {
	return heap.Pop(&l.ready).(*item) //nolint:errcheck // only items are pushed
}

// finish opens the lane of a message that is finished to the next.
func (l *lanes) finish(it *item) {
	if it.behind != nil {
		heap.Push(&l.ready, it.behind)
		it.behind = nil
		return
	}
	delete(l.last, l.of(it))
}

// retry keeps a message first in its lane until it is due.
func (l *lanes) retry(it *item, due time.Time) {
	it.due = due
	heap.Push(&l.waiting, it)
}

// nextDue returns when the next message stops waiting.
func (l *lanes) nextDue() (due time.Time, ok bool) {
	if len(l.waiting.items) == 0 {
		return time.Time{}, false
	}
	return l.waiting.items[0].due, true
}

type itemHeap struct {
	items []*item
	less  func(a, b *item) bool
}

func (h *itemHeap) Len() int           { return len(h.items) }
func (h *itemHeap) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *itemHeap) Swap(i, j int)      { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *itemHeap) Push(x any)         { h.items = append(h.items, x.(*item)) } //nolint:errcheck // only items are pushed

func (h *itemHeap) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return it
}
