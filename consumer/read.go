package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// headInterval is how often an idle consumer reads though the store's bell does not
// ring, and makes sure that the store still has what it has read, and that nobody has
// had it start elsewhere: one that lost messages looks like one with none to come, and
// one that has nothing to do records no position. So often, too, one makes sure that
// works on a message for so long that it neither reads nor records.
const headInterval = 10 * time.Second

const (
	// batchBytes is about how much data the messages of a batch have: where they are
	// large, a batch has fewer than it may have.
	batchBytes = 4 << 20

	// fullPage is how many messages a page has together with the one that was read before:
	// drivers may have a dearer way for more.
	fullPage = 1000

	// firstBatch is how many messages a batch has while nothing is known of them.
	firstBatch = 16
)

// A reader is how far a run has read, and when it reads on.
type reader struct {
	next     messagestore.GlobalPosition
	mark     messagestore.Mark // of the message that next is right behind, zero if it is not known
	limit    int               // of messages, to be read in time
	fit      int               // how many of those that were read last are about batchBytes
	busy     bool
	rung     bool                        // the bell did while it was busy, for who knows what
	heard    messagestore.GlobalPosition // the highest head that it told meanwhile
	atEnd    bool                        // the last page reached the end of the category
	at       time.Time
	quiet    bool          // nothing tells that the next read will find anything
	pause    time.Duration // between reads that find nothing
	failures int           // in a row
	headAt   time.Time     // when the store was last seen to have what was read
}

// wake has the reader look at once, unless it has read past the head that it is told.
// One that waits after a failure waits on: others may write as fast as it fails.
func (r *reader) wake(head messagestore.GlobalPosition) {
	if r.failures == 0 && (head == 0 || head >= r.next) {
		r.at, r.quiet = time.Time{}, false
	}
	if r.busy {
		r.heard = max(r.heard, head)
		r.rung = r.rung || head == 0
	}
}

// missed reports whether the bell rang, during the read that has ended, for what that
// may have been too early to find.
func (r *reader) missed() bool {
	missed := r.rung || r.heard > 0 && r.heard >= r.next
	r.heard, r.rung = 0, false
	return missed
}

// needsCheck reports whether the next read has to show that the store still has what
// was read. Where there is more to read, that does.
func (r *reader) needsCheck(now time.Time) bool {
	return r.headAt.IsZero() || r.atEnd && (r.failures > 0 || now.Sub(r.headAt) >= headInterval)
}

// batch returns how many messages to ask for.
func (r *reader) batch() int { return min(r.limit, r.fit) }

// learn judges by a page how many messages are a batch.
func (r *reader) learn(messages []*messagestore.Message, most int) {
	r.limit = min(r.limit+1+r.limit/8, most)
	if len(messages) == 0 {
		return
	}
	size := 1
	for _, m := range messages {
		size += len(m.Data)
	}
	r.fit = max(1, min(2*r.fit, most, batchBytes*len(messages)/size))
}

// A page is the answer to a read.
type page struct {
	messagestore.CategoryPage
	idle    bool // nothing was left to handle when it was asked for
	checked bool // the store was seen to have what was read
	err     error
}

// wantsMore reports whether there is room for another batch, and a use. Where a batch
// is what was written since the last, the workers have to be about to run out: as long
// as they are busy the batch grows, and else each message would be read by itself.
func (r *run) wantsMore() bool {
	if r.reader.atEnd && (r.catchUp && r.window.length > 0 || r.hasEnough()) {
		return false // what handlers write meanwhile is read when they are done
	}
	return r.window.length <= r.room
}

// hasEnough reports whether there is a message for each worker to take next.
func (r *run) hasEnough() bool {
	waiting := len(r.lanes.ready.items)
	if r.lanes.inOrder {
		waiting = r.window.length - r.held
	}
	return waiting >= r.config.Concurrency
}

func (r *run) startRead(ctx context.Context, now time.Time) {
	r.enough = r.hasEnough()
	if r.reader.busy || !r.wantsMore() || now.Before(r.reader.at) {
		return
	}
	r.reader.busy = true
	next, mark := r.reader.next, r.reader.mark
	q := messagestore.CategoryQuery{Category: r.category, From: next, Limit: r.reader.batch(), Filter: r.config.filter()}
	idle := r.window.length == 0 && r.redrives.quiet(now)
	check := r.reader.needsCheck(now)
	quiet := r.reader.quiet && !check
	r.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		p := page{idle: idle}
		if quiet {
			p.CategoryPage, p.err = r.readAfter(ctx, q, mark)
		} else {
			p.CategoryPage, p.err = r.readFrom(ctx, q, mark)
		}
		if p.err == nil {
			p.checked = check || len(p.Messages) > 0
			if check && len(p.Messages) == 0 {
				if p.err = r.checkGeneration(ctx, r.place.ledger, r.place.generation); p.err == nil {
					p.err = r.checkEpoch(ctx, r.place)
				}
			}
		}
		r.pages <- p
	})
}

// readFrom asks for q, and finds out by the same read whether the store still has the
// marked message, which q.From is right behind, or where it is not known which that is,
// whether there is anything from there on.
func (r *run) readFrom(ctx context.Context, q messagestore.CategoryQuery, mark messagestore.Mark) (messagestore.CategoryPage, error) {
	next, from := q.From, q
	if next > 0 {
		from.From, from.Limit = next-1, min(q.Limit+1, max(q.Limit, fullPage))
	}
	found, err := r.page(ctx, from)
	switch {
	case err != nil:
		return found, err
	case found.Next < next:
		return found, &PositionAheadError{Stream: r.place.stream, Position: next, Behind: mark.ID}
	case !mark.IsZero():
		err = r.judge(ctx, r.place.stream, mark, found.First)
	}
	if err == nil && found.More && found.Next == next { // what was read before is so large that it filled the page
		return r.readAfter(ctx, q, mark)
	}
	found.Messages = slices.DeleteFunc(found.Messages, func(m *messagestore.Message) bool { return m.GlobalPosition < next })
	return found, err
}

// readAfter asks for q alone, which costs less if there is nothing, and then looks for the
// marked message if there is something.
func (r *run) readAfter(ctx context.Context, q messagestore.CategoryQuery, mark messagestore.Mark) (messagestore.CategoryPage, error) {
	found, err := r.page(ctx, q)
	if err == nil && found.Next > q.From {
		err = r.checkMark(ctx, r.place.stream, mark)
	}
	return found, err
}

func (r *run) page(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page, err := r.store.ReadCategoryPage(ctx, q)
	if err == nil && (page.Next < q.From || page.More && page.Next == q.From) {
		err = fmt.Errorf("read category %s: the store answers %d with next %d", q.Category, q.From, page.Next)
	}
	return page, err
}

// readPage takes in what a read returned, and decides when to read on.
func (r *run) readPage(ctx context.Context, p page) {
	now := time.Now()
	r.reader.busy = false
	if p.err != nil {
		r.readFailed(ctx, p.err, now)
		return
	}
	r.reader.failures = 0
	r.reader.learn(p.Messages, r.config.BatchSize)
	if p.checked {
		r.reader.headAt = now
	}
	if !p.Last.IsZero() || p.Next != r.reader.next {
		r.reader.mark = keep(p.Last)
	}
	r.reader.next = p.Next
	r.reader.atEnd, r.reader.quiet = !p.More, false
	missed := r.reader.missed()
	r.takeIn(p.CategoryPage)

	switch {
	case p.More:
		r.reader.at = now
	case r.catchUp && len(p.Messages) > 0:
		r.reader.at = now
	case r.catchUp:
		r.reader.at = now
		if !r.redrives.quiet(now) {
			r.reader.at = now.Add(never) // until what is redriven is done with
		}
		if p.idle {
			r.stop()
		}
	case missed:
		r.reader.at = now
	default:
		r.rest(now, len(p.Messages) > 0)
	}
}

// rest has the reader wait for the bell. After work more is likely, so it looks by
// itself too, soon, and then less and less often, until it looks only when the store is
// to be checked.
func (r *run) rest(now time.Time, worked bool) {
	if worked {
		r.reader.pause = 0
	}
	r.reader.pause = min(max(2*r.reader.pause, r.config.PollInterval/8, time.Millisecond), r.config.PollInterval)
	r.reader.at, r.reader.quiet = now.Add(r.reader.pause), true
	check := r.reader.headAt.Add(headInterval)
	if r.reader.pause == r.config.PollInterval || r.reader.at.After(check) { // by then the bell rings if there is anything
		r.reader.at = check
	}
}

// takeIn puts a page of messages where the workers take them from.
func (r *run) takeIn(page messagestore.CategoryPage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room = r.reader.batch()
	items := r.window.add(page)
	for i := range items {
		if items[i].message.IsTombstone() {
			// There is nothing to handle, and no handler knows what it is.
			r.stats.Tombstones++
			r.window.finish(&items[i])
			continue
		}
		r.lanes.add(&items[i])
	}
	r.moved()
	if !page.More && page.Next > 0 {
		r.stats.Head = page.Next - 1
	} else if n := len(page.Messages); n > 0 {
		r.stats.Head = max(r.stats.Head, page.Messages[n-1].GlobalPosition)
	}
}

func (r *run) readFailed(ctx context.Context, err error, now time.Time) {
	switch {
	case ctx.Err() != nil: // the run stops
	case r.catchUp || !heals(err):
		r.fail(err)
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			r.reader.limit = max(1, r.reader.batch()/2) // it may have been too much to ask for
		}
		r.reader.failures++
		r.reader.at = now.Add(r.storeFailed(err, r.reader.failures))
	}
}
