package consumer

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/messagestore"
)

// A delivery is a message from the time it is read until the position has passed it.
type delivery struct {
	message  *messagestore.Message
	next     checkpoint.Checkpoint // the checkpoint once this message and all before it are finished
	finished bool                  // under the lock of progress

	// The fields below belong to the worker that has the item, and at other times to the run's
	// loop.

	attempts     int
	failingSince time.Time // for the error policy: since a failure that was not a RetryAfter
	warned       time.Time // the failingSince for which the warning was logged that the consumer will stop
	lastErr      error
	parking      bool   // park it instead of delivering it
	reason       string // of an operator, for parking it
	parked       bool   // an earlier run has parked it
	parkFailures int
	away         int // failures in a row while the store was away

	// redrive is set for a parked message that is offered again. It comes before all other items,
	// and is not in the window.
	redrive *redrive
}

type item = laneItem[delivery]

// cardinalID is the key of a delivery's lane.
func cardinalID(d *delivery) string { return d.message.Stream.CardinalID() }

// A window holds, in order, the messages that are read and that the position has not passed yet.
type window struct {
	pages    [][]item // as they were read, none of them empty
	length   int
	passed   int64                 // the number of messages that the position has passed, which is also the number of the first item
	position checkpoint.Checkpoint // of the first message that is not finished
}

// add takes a page of messages and returns their items, which never move in memory.
func (w *window) add(page messagestore.CategoryPage) []item {
	items := make([]item, len(page.Messages))
	for i, m := range page.Messages {
		items[i].Value.message = m
		items[i].Value.next = checkpoint.Checkpoint{Position: m.GlobalPosition.Next(), After: m.ID}
		items[i].Number = w.passed + int64(w.length+i)
	}
	if len(items) > 0 {
		w.pages = append(w.pages, items)
		w.length += len(items)
	}
	// Messages that the filter left out count with the message before them.
	end := &w.position
	if n := len(w.pages); n > 0 {
		last := w.pages[n-1]
		end = &last[len(last)-1].Value.next
	}
	if end.Position != page.Next {
		*end = checkpoint.Checkpoint{Position: page.Next, After: page.Last.ID}
	}
	return items
}

// finish marks an item and moves the position past all finished ones.
func (w *window) finish(it *item) {
	it.Value.finished = true
	it.Value.message = nil
	for w.length > 0 && w.pages[0][0].Value.finished {
		w.position = w.pages[0][0].Value.next
		w.length--
		w.passed++
		if w.pages[0] = w.pages[0][1:]; len(w.pages[0]) == 0 {
			w.pages[0] = nil
			w.pages = w.pages[1:]
		}
	}
}

// A progress says how many messages of a run are finished, and how many of these are checkpointed.
// Workers report to it directly. Its methods are safe for concurrent use.
type progress struct {
	checkpointMessages int

	mu       sync.Mutex
	window   window
	room     int // how many messages the window may have when the next are read
	saved    saved
	movedAt  time.Time // when the position moved away from the checkpoint; zero if it has not
	workedAt time.Time // when the last message in the window was finished
	closed   bool      // the run no longer waits for messages in flight
	failing  failing
}

// A saved is a position, how many messages it has passed, and the failing messages.
type saved struct {
	checkpoint.Checkpoint
	passed  int64
	failing checkpoint.Failing
	changes int64 // of the failing messages
}

func newProgress(p *checkpoint.Place, config *Config) *progress {
	return &progress{
		checkpointMessages: config.CheckpointMessages,
		window:             window{position: p.Checkpoint},
		room:               config.BatchSize,
		saved:              saved{Checkpoint: p.Checkpoint},
		failing:            newFailing(p),
	}
}

// add takes a page of messages, and sets how many the window may have when the next are read.
func (p *progress) add(page messagestore.CategoryPage, room int) (items []item, tombstones int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room = room
	items = p.window.add(page)
	for i := range items {
		if items[i].Value.message.IsTombstone() { // which no handler knows
			tombstones++
			p.window.finish(&items[i])
		}
	}
	p.moved()
	return items, tombstones
}

// finish marks an item as finished. It reports whether that gives the run's loop something to do.
// counts is false if the run no longer waits for the item.
func (p *progress) finish(it *item) (wake, counts bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false, false
	}
	cleared := p.failing.remove(it.Value.message.GlobalPosition)
	before := p.window.length
	p.window.finish(it)
	after := p.window.length
	if after == 0 {
		p.workedAt = time.Now()
	}
	moved := p.moved()
	due := int(p.window.passed-p.saved.passed) - p.checkpointMessages
	return moved || cleared || after == 0 ||
		before > p.room && after <= p.room || // there is room to read on
		due >= 0 && due < before-after, true // a checkpoint is due
}

// moved records that the position differs from the checkpoint, and reports whether that is new. The
// caller holds mu.
func (p *progress) moved() bool {
	if !p.movedAt.IsZero() || p.window.position.Position == p.saved.Position {
		return false
	}
	p.movedAt = time.Now()
	return true
}

// worked notes that a message was redriven.
func (p *progress) worked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workedAt = time.Now()
}

// message returns the message of an item, nil if it is finished.
func (p *progress) message(it *item) *messagestore.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return it.Value.message
}

// length returns the number of messages in the window, and whether there is room for more.
func (p *progress) length() (n int, room bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.window.length, p.window.length <= p.room
}

// toStore returns the current position and failing messages.
func (p *progress) toStore() saved {
	p.mu.Lock()
	defer p.mu.Unlock()
	return saved{p.window.position, p.window.passed, p.failing.toStore(p.window.position.Position), p.failing.changes}
}

// checkpoint returns the stored position.
func (p *progress) checkpoint() messagestore.GlobalPosition {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.saved.Position
}

// save notes a checkpoint.
func (p *progress) save(s saved) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saved = s
	p.movedAt = time.Time{}
	p.moved()
	p.failing.stored, p.failing.changedAt = s.failing.Count > 0, time.Time{}
	if p.failing.changes != s.changes {
		p.failing.changedAt = time.Now()
	}
}

// due returns when a checkpoint is due, if the position has moved: after an interval, after a
// number of messages, or when the consumer has been idle for a while.
func (p *progress) due(interval, idle time.Duration) (due time.Time, moved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.movedAt.IsZero() {
		return time.Time{}, false
	}
	due = p.movedAt.Add(interval)
	finished := p.window.passed - p.saved.passed
	switch {
	case finished >= int64(p.checkpointMessages):
		due = p.movedAt
	case finished > 0 && p.window.length == 0:
		if at := p.workedAt.Add(idle); at.Before(due) {
			due = at
		}
	}
	return due, true
}

// close makes every later finish do nothing.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}
