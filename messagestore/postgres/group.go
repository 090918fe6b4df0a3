package postgres

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of group commit.
const (
	// maxGroup bounds the writes of a group, and so how long the last write waits for the others.
	// maxGroupMessages bounds their messages, unless a single write has more.
	maxGroup         = 512
	maxGroupMessages = 1000

	// maxGroupBytes bounds their data, unless a single write has more.
	maxGroupBytes = 4 << 20

	// maxWaiting bounds the writes that wait in a shard; further writes wait to enter it.
	maxWaiting = 1024

	// outcomeGrace is how long a caller waits for a flush under way after its context has ended. So
	// a call returns within a second after its deadline.
	outcomeGrace = 500 * time.Millisecond
)

// groups commit writes to one database together. If a shard is idle, a write goes straight through,
// on its caller's goroutine and context: by append_one if it has one message, else as a group of
// one write, which costs the server half as much as append. Writes that come meanwhile wait and
// then go in one transaction, in one round trip: the category is locked once, and the log is synced
// once.
type groups struct {
	writer
	seed    maphash.Seed
	shards  []*shard      // none if not over a pool: each write goes alone
	timeout time.Duration // groupTimeout, but for the tests

	flushes, flushed atomic.Int64 // for the tests: the transactions with several writes, and their writes
}

// A shard is a queue of the writes to some categories. All writes to one category alone are in one
// shard, so a process seldom waits for its own locks.
type shard struct {
	room chan struct{} // a token for each waiting write

	mu      sync.Mutex
	busy    bool // a write or a flush is under way
	waiting []*ticket
}

func newGroups(w writer) *groups {
	g := &groups{writer: w, timeout: groupTimeout}
	if w.link.Pool() != nil {
		g.seed = maphash.MakeSeed()
		for range min(runtime.GOMAXPROCS(0), 4) {
			g.shards = append(g.shards, &shard{room: make(chan struct{}, maxWaiting)})
		}
	}
	return g
}

func (g *groups) shard(category messagestore.Category) *shard {
	return g.shards[maphash.String(g.seed, string(category))%uint64(len(g.shards))]
}

// shardOf returns the shard of a write. Writes to the same categories are in one shard, in any
// order of the categories.
func (g *groups) shardOf(appends []messagestore.Append) *shard {
	first := appends[0].Stream.Category()
	for _, a := range appends[1:] {
		first = min(first, a.Stream.Category())
	}
	return g.shard(first)
}

// Append implements [messagestore.Driver].
func (g *groups) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := g.AppendAll(ctx, []messagestore.Append{a})
	if err != nil {
		return messagestore.Written{}, err
	}
	return written[0], nil
}

// AppendAll implements [messagestore.Driver].
func (g *groups) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	written, _, err := g.appendEither(ctx, appends, false)
	return written, err
}

// appendEither writes appends, together with other writes if possible. With meet, which TryAppend
// sets, a version conflict is an answer; else it is an error.
func (g *groups) appendEither(ctx context.Context, appends []messagestore.Append, meet bool) ([]messagestore.Written, *messagestore.Conflict, error) {
	if g.inGroup(ctx, appends) {
		return g.appendInGroup(ctx, appends, meet)
	}
	return g.appendAll(ctx, appends, g.fences.of(appends), meet, always)
}

// inGroup reports whether a write may go together with others. Upkeep may not: the writes before it
// may be waiting for a connection.
func (g *groups) inGroup(ctx context.Context, appends []messagestore.Append) bool {
	return len(g.shards) > 0 && !calling.CallerOf(ctx).Upkeep && len(appends) > 0 && !slices.ContainsFunc(appends, func(a messagestore.Append) bool {
		return len(a.Records) == 0 || a.Conditional()
	})
}

// appendInGroup writes appends, together with other writes if there are any.
func (g *groups) appendInGroup(ctx context.Context, appends []messagestore.Append, meet bool) ([]messagestore.Written, *messagestore.Conflict, error) {
	if g.onlyConnection(ctx) {
		return nil, nil, errOnlyConnection
	}
	l := g.shardOf(appends)
	l.mu.Lock()
	idle := !l.busy
	l.busy = true
	l.mu.Unlock()
	stop := queuing.StopOf(ctx)
	if idle && isOneStream(appends) && !stop.Waits() {
		defer g.next(l)
		limited, cancel := context.WithTimeout(ctx, g.timeout)
		defer cancel()
		return g.appendAll(limited, appends, g.fences.of(appends), meet, always)
	}
	t := newTicket(appends, meet, g.fences.of(appends))
	t.stop = stop
	if idle {
		g.commit(ctx, l, []*ticket{t})
		g.next(l)
		return g.answered(ctx, t)
	}

	select {
	case l.room <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, g.link.Exhausted(ctx.Err())
	}
	t.token = true
	l.mu.Lock()
	l.waiting = append(l.waiting, t)
	if !l.busy {
		l.busy = true
		go g.flush(l)
	}
	l.mu.Unlock()
	return g.answered(ctx, t)
}

// answered waits for a ticket's answer.
func (g *groups) answered(ctx context.Context, t *ticket) ([]messagestore.Written, *messagestore.Conflict, error) {
	select {
	case <-t.done:
		return t.written, t.met, t.err
	case <-ctx.Done():
	}
	if t.state.CompareAndSwap(waiting, left) {
		return nil, nil, g.link.Exhausted(ctx.Err()) // perhaps the write before it waits for a connection
	}
	grace := time.NewTimer(outcomeGrace)
	defer grace.Stop()
	select {
	case <-t.done:
		return t.written, t.met, t.err
	case <-grace.C:
		t.state.Store(left)
		return nil, nil, unknownOutcome(ctx.Err(), t.appends)
	}
}

// next flushes the writes that have entered the shard meanwhile, if any.
func (g *groups) next(l *shard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy = len(l.waiting) > 0; l.busy {
		go g.flush(l)
	}
}

// flush commits the writes that wait in a shard, group by group, until none waits.
func (g *groups) flush(l *shard) {
	for {
		// Callers that were just answered may write again. Let them run before taking the next
		// group: otherwise it would hold only the writes that came meanwhile, and every other group
		// would be small.
		runtime.Gosched()
		group := l.take()
		if group == nil {
			return
		}
		if len(group) > 0 {
			g.commit(context.Background(), l, group)
		}
	}
}

// take returns the next group, in order of arrival: empty if all its callers have left, and nil if
// no write waits.
func (l *shard) take() []*ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.busy = false
		return nil
	}
	group := []*ticket{}
	size, messages, writes, n := 0, 0, 0, 0
	for _, t := range l.waiting {
		size, messages, writes = size+t.size, messages+t.messages, writes+len(t.appends)
		if n > 0 && (writes > maxGroup || messages > maxGroupMessages || size > maxGroupBytes) {
			break
		}
		n++
		if t.token {
			t.token = false
			<-l.room
		}
		if t.state.Load() == waiting {
			group = append(group, t)
		}
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
	return group
}

// putBack makes tickets wait again, before all others. It drops tickets if their callers have left.
func (l *shard) putBack(tickets []*ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.Concat(waitAgain(tickets), l.waiting)
}

// putLast is putBack, but behind all others.
func (l *shard) putLast(tickets []*ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, waitAgain(tickets)...)
}

func waitAgain(tickets []*ticket) []*ticket {
	return those(tickets, func(t *ticket) bool { return t.state.CompareAndSwap(taken, waiting) })
}

// commit writes a group, and answers each write or puts it back. If a write brings a worker's take
// along, the take goes with it. A panic, for example of a hook or a tracer of the pool, becomes the
// error of the writes without an answer.
func (g *groups) commit(ctx context.Context, l *shard, group []*ticket) {
	err := calling.Call(func() error {
		i := slices.IndexFunc(group, func(t *ticket) bool { return t.stop != nil })
		if i < 0 || !g.commitWith(ctx, l, group, group[i].stop) {
			g.commitWith(ctx, l, group, nil)
		}
		return nil
	})
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range group {
		switch {
		case t.isAnswered() || slices.Contains(l.waiting, t):
		case t.state.CompareAndSwap(waiting, left):
			t.answer(nil, err) // it was not sent
		default:
			t.answer(nil, unknownOutcome(err, t.appends))
		}
	}
}

// commitWith is commit with the take of a waiting worker. It returns false if nothing was done
// because the server has refused the take.
func (g *groups) commitWith(ctx context.Context, l *shard, group []*ticket, stop *queuing.Stop) bool {
	if len(group) == 1 && isOneStream(group[0].appends) && !stop.Waits() {
		_ = g.alone(ctx, group[0])
		return true
	}
	var answers eachAnswer
	sent, refused := false, false
	limited, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	err := g.with(limited, func(db DB) error {
		group = those(group, (*ticket).begin)
		if len(group) == 0 {
			return nil
		}
		sent = true
		return pglink.Replicated(db, func() (err error) {
			if along := stop.Call(); along != nil {
				answers, refused, err = g.callEachAndTake(limited, pglink.Conn(db), group, along)
			} else {
				answers, err = g.callEach(limited, pglink.Conn(db), group)
			}
			return err
		})
	})
	switch {
	case refused:
		return false
	case err == nil && !sent: // all have left
	case err == nil:
		g.flushes.Add(1)
		g.answer(ctx, l, group, answers)
	case !sent:
		for _, t := range group {
			t.answer(nil, err)
		}
	case pglink.IsLockTimeout(err):
		// These have waited for the longest time allowed. The others have not.
		waited, others := partWaited(group)
		for _, t := range waited {
			t.answer(nil, writeFailed(err, t.appends))
		}
		l.putBack(others)
	case pglink.IsCancelled(err) && len(group) == 1:
		group[0].answer(nil, writeFailed(err, group[0].appends))
	case pglink.Definite(err) && len(group) == 1:
		_ = g.alone(ctx, group[0]) // alone finds out its error, or tries again
	case pglink.Definite(err):
		// Everything was rolled back, perhaps because of a single write. Alone, that write does not
		// harm the others.
		g.log.Warn().Str("error", text.Log(failed(err))).Int("writes", len(group)).Msg("write one by one")
		g.oneByOne(ctx, l, group)
	default:
		for _, t := range group {
			t.answer(nil, unknownOutcome(pglink.Safe(err), t.appends))
		}
	}
	return true
}

// partWaited separates the writes to all categories of the first, whose locks a group waits for,
// from the others.
func partWaited(group []*ticket) (waited, others []*ticket) {
	first := categories(group[0].appends)
	for _, t := range group {
		all := categories(t.appends)
		if slices.ContainsFunc(first, func(c messagestore.Category) bool { return !slices.Contains(all, c) }) {
			others = append(others, t)
		} else {
			waited = append(waited, t)
		}
	}
	return waited, others
}

// answer passes each caller of a committed group its outcome.
func (g *groups) answer(ctx context.Context, l *shard, group []*ticket, a eachAnswer) {
	var apart, again []*ticket
	for _, t := range group {
		outcome, versions := a.next(t)
		switch {
		case outcome == 'w':
			g.flushed.Add(1)
			t.answer(a.written(t, versions), nil)
		case outcome == 'c' && t.meet:
			t.answerConflict(a.conflict(t))
		case outcome == 'c':
			t.answer(nil, conflictOf(t.appends, versions))
		case outcome == 'b': // the next group waits for the locks of the first write's categories
			again = append(again, t)
		case outcome == 'f':
			for i, w := range t.appends {
				g.fences.learn(w.Stream.Category(), versions[i])
			}
			t.fences = g.fences.of(t.appends) // taken before putBack asks whether the caller still waits
			again = append(again, t)
		default:
			apart = append(apart, t)
		}
	}
	l.putBack(again)
	g.oneByOne(ctx, l, apart)
}

// conflictOf returns the version conflict of the first stream that is not at its expected version.
func conflictOf(appends []messagestore.Append, versions []int64) error {
	for i, a := range appends {
		if at := messagestore.Version(versions[i]); a.Expected != messagestore.AnyVersion && a.Expected != at {
			return &messagestore.VersionConflictError{Stream: a.Stream, Expected: a.Expected, Actual: at}
		}
	}
	return errNoAnswer
}

// oneByOne writes each ticket alone. It waits once for a locked category. If a write was cancelled,
// it may have waited for a lock or be slow itself, so the next write to its category is tried too,
// but behind all others.
func (g *groups) oneByOne(ctx context.Context, l *shard, tickets []*ticket) {
	kept := map[string]error{} // by the categories
	var later []*ticket
	for _, t := range tickets {
		categories := fmt.Sprint(categories(t.appends))
		switch err := kept[categories]; {
		case pglink.IsCancelled(err):
			later = append(later, t)
			continue
		case err != nil:
			t.answer(nil, err)
			continue
		}
		if err := g.alone(ctx, t); pglink.IsLockTimeout(err) || pglink.IsCancelled(err) {
			kept[categories] = err
		}
	}
	l.putLast(later)
}

// alone writes a single ticket, with its own timeout.
func (g *groups) alone(ctx context.Context, t *ticket) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	written, met, err := g.appendAll(ctx, t.appends, t.fences, t.meet, t.begin)
	switch {
	case err != nil:
		t.answer(nil, err)
	case met != nil:
		t.answerConflict(met)
	default:
		t.answer(written, nil)
	}
	return err
}
