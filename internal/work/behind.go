package work

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of going on with the items behind one that is out.
const (
	// behindTime is how long a handler may go on with items behind its own.
	behindTime = 100 * time.Millisecond

	// The held items are listed again after minBehindPause. The pause doubles, up to
	// maxBehindPause, each time that a list was of no use to a handler.
	minBehindPause = time.Millisecond
	maxBehindPause = 256 * time.Millisecond

	// A list has at most maxBehind items, and is not used for longer than behindAge.
	maxBehind = 256
	behindAge = time.Second
)

// A behind is a list of some held items, by the item that each is behind. An item that is out keeps
// the next ones of its stream held, so its handler may go on with them. Then the items of a stream
// do not need one call of the store each.
type behind struct {
	mayBe atomic.Bool // there may be held items

	// Under the work's mu.
	given   int // to handlers, and not reported yet
	list    map[messagestore.GlobalPosition]queuing.Item
	at      time.Time // of the list, or the attempt at one
	pause   time.Duration
	used    bool // an item of the list was given to a handler
	listing bool
}

// Behind returns the message of the next held item in the delivery's stream, after those that it
// returned before. It returns nil if there is no such item, if the worker has other items for its
// handlers, or if the handler has gone on for long enough. A handler that calls Behind has finished
// its own item, which is completed even if the handler returns an error. It calls [Delivery.Did]
// when it has finished the other item, too, and only then calls Behind again. An item that it has
// not finished stays where it is, and comes next. Only the handler's goroutine may call Behind.
func (d *Delivery) Behind(ctx context.Context) *messagestore.Message {
	w := d.of
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(d.also) < d.given || !w.mayGiveBehind(d) {
		return nil
	}
	last := d.last()
	item, is := w.behind.list[last]
	if is = is && time.Since(w.behind.at) < min(behindAge, w.config.Lease/3); !is && w.listBehind(ctx) {
		item, is = w.behind.list[last]
		is = is && w.mayGiveBehind(d)
	}
	if !is || item.Version != 0 || !item.Due.IsZero() || item.Message == nil {
		return nil
	}
	delete(w.behind.list, last)
	d.given++
	w.behind.given++
	w.behind.used = true
	return item.Message
}

// last returns the position of the last item that the handler has finished. It is called under mu.
func (d *Delivery) last() messagestore.GlobalPosition {
	if n := len(d.also); n > 0 {
		return d.also[n-1].Position
	}
	return d.Item.Message.GlobalPosition
}

// Did says that the handler has finished a message that [Delivery.Behind] returned.
func (d *Delivery) Did(m *messagestore.Message) {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	d.also = append(d.also, queuing.Delivery{Position: m.GlobalPosition})
}

// mayGiveBehind reports whether a handler may go on with an item behind its own. It is called under
// mu.
func (w *worker) mayGiveBehind(d *Delivery) bool {
	within := min(behindTime, w.config.Lease/10)
	if w.config.Timeout > 0 {
		within = min(within, w.config.Timeout/10)
	}
	// An item that was given back before may have ended its session, so it is handled alone.
	return d.Item.Version == 0 && d.open() && d.certain() && !w.stopping && !d.Committed.Load() && w.behind.given < w.config.Behind && time.Since(d.began) < within &&
		len(w.ready) == 0 && w.busy < w.config.MaxWorkers && len(w.deliveries)+len(w.pending)+w.behind.given < w.config.Prefetch
}

// listBehind lists the items held behind the items that are out, and reports whether it succeeded.
// It is called under mu, and unlocks it during the call of the store.
func (w *worker) listBehind(ctx context.Context) bool {
	b := &w.behind
	if b.listing || !b.mayBe.Load() || time.Since(b.at) < b.pause {
		return false
	}
	b.pause = min(max(2*b.pause, minBehindPause), maxBehindPause)
	if b.used {
		b.pause = minBehindPause
	}
	b.listing, b.used = true, false
	from := messagestore.GlobalPosition(math.MaxInt64)
	for _, f := range w.deliveries {
		from = min(from, f.last())
	}
	w.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var items []queuing.Item
	err := calling.Call(func() (err error) { // without mu, which the handler's goroutine leaves only if it has it
		items, err = w.Driver.QueueItems(call, queuing.List{Queue: w.Queue, State: queuing.Held, From: from, Limit: maxBehind})
		return err
	})
	w.mu.Lock()
	b.listing, b.at, b.list = false, time.Now(), make(map[messagestore.GlobalPosition]queuing.Item, len(items))
	for _, item := range items {
		b.list[item.Behind] = item
	}
	return err == nil // the take tells of the failure
}

// endedBehind handles the store's answer about items that were completed with another.
func (w *worker) endedBehind(also []queuing.Delivery, told []queuing.Ending) {
	if len(also) == 0 {
		return
	}
	w.mu.Lock()
	w.behind.given -= len(also)
	w.mu.Unlock()
	for i := range also {
		if told[i] == queuing.Done {
			w.counts.Completed.Add(1)
		} else {
			w.counts.Lost.Add(1)
		}
	}
}
