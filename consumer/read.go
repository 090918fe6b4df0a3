package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/messagestore"
)

// headInterval is how often a consumer checks the store when nothing else does: that its last
// message still exists (the store was not rolled back), and that its generation is current (it was
// not reset). This covers consumers that are idle or work on one message for long.
const headInterval = 10 * time.Second

const (
	// batchBytes is about how much data a batch of messages has: a batch of large messages has
	// fewer of them.
	batchBytes = 4 << 20

	// fullPage is the largest page that includes the previously read message: some drivers read
	// larger pages in a slower way.
	fullPage = 1000

	// firstBatch is the number of messages of a batch before their size is known.
	firstBatch = 16
)

// A reader reads the category for a run. It belongs to the run's loop. At most one read has
// a goroutine.
type reader struct {
	store    Store
	category messagestore.Category
	config   *Config
	place    *checkpoint.Place
	filter   messagestore.Filter
	pages    chan page

	next     messagestore.GlobalPosition
	mark     messagestore.Mark // of the last message before next, zero if not known
	limit    int               // of messages that can be read in time
	fit      int               // how many messages of the size last read are about batchBytes
	busy     bool
	woken    bool                        // a wake-up without a position came while busy
	heard    messagestore.GlobalPosition // the highest position of a wake-up that came while busy
	atEnd    bool                        // the last page reached the end of the category
	at       time.Time                   // when to read next
	quiet    bool                        // the next read is not expected to find anything
	called   bool                        // a wake-up came since the last page: the next read is expected to find something
	pause    time.Duration               // between reads that find nothing
	failures int                         // in a row
	headAt   time.Time                   // when the store was last seen to have the last message read
}

func newReader(c *Consumer, place *checkpoint.Place) *reader {
	filter := c.config.filter(c.known())
	filter.GroupSize, filter.GroupMember = place.Class()
	return &reader{
		filter: filter,
		store:  c.store, category: c.id.Category, config: &c.config, place: place, pages: make(chan page, 1),
		next: place.Position, mark: place.Mark, limit: c.config.BatchSize, fit: firstBatch,
	}
}

// wake makes the reader read at once, unless it has already passed the head in the wake-up. A
// reader that waits after a failure goes on waiting, because others may write as fast as reads
// fail.
func (r *reader) wake(head messagestore.GlobalPosition) {
	if r.failures == 0 && (head == 0 || head >= r.next) {
		r.at, r.quiet, r.called = time.Time{}, false, true
	}
	if r.busy {
		r.heard = max(r.heard, head)
		r.woken = r.woken || head == 0
	}
}

// missed reports whether a wake-up came during the read that has ended. That read may have been too
// early for the message.
func (r *reader) missed() bool {
	missed := r.woken || r.heard > 0 && r.heard >= r.next
	r.heard, r.woken = 0, false
	return missed
}

// needsCheck reports whether the next read has to check the store. A read that has more
// messages to find checks it anyway.
func (r *reader) needsCheck(now time.Time) bool {
	return r.headAt.IsZero() || r.atEnd && (r.failures > 0 || now.Sub(r.headAt) >= headInterval)
}

// batch returns how many messages to ask for.
func (r *reader) batch() int { return min(r.limit, r.fit) }

// learn adapts the size of a batch to a page.
func (r *reader) learn(messages []*messagestore.Message) {
	most := r.config.BatchSize
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

// A page is the result of a read.
type page struct {
	messagestore.CategoryPage
	idle    bool // nothing was left to handle when the read began
	checked bool // the store has the last message read before
	err     error
}

// start begins a read. If idle is true, nothing is left to handle.
func (r *reader) start(ctx context.Context, run func(func()), idle bool, now time.Time) {
	r.busy = true
	mark := r.mark
	q := messagestore.CategoryQuery{Category: r.category, From: r.next, Limit: r.batch(), Filter: r.filter}
	check := r.needsCheck(now)
	quiet := r.quiet && !check
	run(func() {
		p := r.read(ctx, q, mark, check, quiet)
		p.idle = idle
		r.pages <- p
	})
}

func (r *reader) read(ctx context.Context, q messagestore.CategoryQuery, mark messagestore.Mark, check, quiet bool) (p page) {
	ctx, cancel := context.WithTimeout(ctx, checkpoint.CallTimeout)
	defer cancel()
	if quiet {
		p.CategoryPage, p.err = r.readAfter(ctx, q, mark)
	} else {
		p.CategoryPage, p.err = r.readFrom(ctx, q, mark)
	}
	if p.err != nil {
		return p
	}
	p.checked = check || len(p.Messages) > 0
	p.Messages = slices.DeleteFunc(p.Messages, func(m *messagestore.Message) bool { return !r.place.Mine(m.Stream, m.GlobalPosition) })
	if check && len(p.Messages) == 0 {
		if p.err = r.place.CheckGeneration(ctx); p.err == nil {
			p.err = r.place.CheckEpoch(ctx)
		}
	}
	return p
}

// readFrom reads q, and checks with the same read that the store still has the marked message, the
// last one before q.From. If no message is marked, it checks that the store has any message from
// there on.
func (r *reader) readFrom(ctx context.Context, q messagestore.CategoryQuery, mark messagestore.Mark) (messagestore.CategoryPage, error) {
	next, from := q.From, q
	if next > 0 {
		from.From, from.Limit = next-1, min(q.Limit+1, max(q.Limit, fullPage))
	}
	found, err := r.page(ctx, from)
	switch {
	case err != nil:
		return found, err
	case found.Next < next:
		return found, &checkpoint.AheadError{Stream: r.place.Stream, Position: next, Behind: mark.ID}
	case !mark.IsZero():
		err = r.place.Judge(ctx, mark, found.First)
	}
	if err == nil && found.More && found.Next == next { // the message that was read before fills the page
		return r.readAfter(ctx, q, mark)
	}
	found.Messages = slices.DeleteFunc(found.Messages, func(m *messagestore.Message) bool { return m.GlobalPosition < next })
	return found, err
}

// readAfter reads q only, which is cheaper if there is nothing. If there is something, it looks for
// the marked message afterwards.
func (r *reader) readAfter(ctx context.Context, q messagestore.CategoryQuery, mark messagestore.Mark) (messagestore.CategoryPage, error) {
	found, err := r.page(ctx, q)
	if err == nil && found.Next > q.From {
		err = r.place.CheckMark(ctx, mark)
	}
	return found, err
}

func (r *reader) page(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page, err := r.store.ReadCategoryPage(ctx, q)
	if err == nil && (page.Next < q.From || page.More && page.Next == q.From) {
		err = fmt.Errorf("read category %s: the store answers %d with next %d", q.Category, q.From, page.Next)
	}
	return page, err
}

// took handles a page, and reports whether a wake-up came too early for its read.
func (r *reader) took(p page, now time.Time) (missed bool) {
	r.failures = 0
	r.learn(p.Messages)
	if p.checked {
		r.headAt = now
	}
	if !p.Last.IsZero() || p.Next != r.next {
		r.mark = checkpoint.Keep(p.Last)
	}
	r.next = p.Next
	r.atEnd, r.quiet = !p.More, false
	return r.missed()
}

// rest makes the reader wait for a wake-up. After messages more are likely, so the reader also
// reads without one, soon and then less and less often, until it only reads to check the store.
func (r *reader) rest(now time.Time, worked bool) {
	if worked {
		r.pause = 0
	}
	r.pause = min(max(2*r.pause, r.config.PollInterval/8, time.Millisecond), r.config.PollInterval)
	r.at, r.quiet = now.Add(r.pause), true
	check := r.headAt.Add(headInterval)
	if r.pause == r.config.PollInterval || r.at.After(check) { // by then a wake-up comes for any message
		r.at = check
	}
}

// failed delays the next read.
func (r *reader) failed(err error, now time.Time, wait func(failures int) time.Duration) {
	if errors.Is(err, context.DeadlineExceeded) {
		r.limit = max(1, r.batch()/2) // the batch may have been too large
	}
	r.failures++
	r.at = now.Add(wait(r.failures))
}
