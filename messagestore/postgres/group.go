package postgres

import (
	"context"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
)

const (
	// maxGroup bounds how many writes are committed together, and so how long the
	// last of them waits for the others.
	maxGroup = 128

	// maxGroupBytes bounds what they carry, unless one alone carries more.
	maxGroupBytes = 4 << 20

	// maxWaiting bounds the writes that wait in a line; more wait to be let in.
	maxWaiting = 1024

	// groupTimeout bounds a flush, which has no caller whose context could.
	groupTimeout = 30 * time.Second

	// outcomeGrace is how long a caller whose context has ended waits for a flush
	// that is under way. It keeps a call within a second of its deadline.
	outcomeGrace = 500 * time.Millisecond
)

// groups commit writes to one database together. A write that finds its line empty
// goes straight through, on its caller's goroutine and context. What comes while it
// is under way waits, and then goes in one transaction, in one round trip: the
// category is locked once, and the log is synced once.
type groups struct {
	seed  maphash.Seed
	lines []*line

	flushes, flushed atomic.Int64 // for the tests: transactions of more than one write, and the writes in them
}

// A line is where the writes to some categories wait for each other. All writes to
// a category are in one line, so that one process does not hold up itself.
type line struct {
	room chan struct{} // a token for each write that waits

	mu      sync.Mutex
	busy    bool // a write or a flush is under way
	waiting []*ticket
}

func newGroups() *groups {
	g := &groups{seed: maphash.MakeSeed(), lines: make([]*line, min(runtime.GOMAXPROCS(0), 4))}
	for i := range g.lines {
		g.lines[i] = &line{room: make(chan struct{}, maxWaiting)}
	}
	return g
}

func (g *groups) line(category messagestore.Category) *line {
	return g.lines[maphash.String(g.seed, string(category))%uint64(len(g.lines))]
}

// A ticket is a write in a line. Until it is taken its caller may leave, and then it
// never happens; after that nobody can say that it did not, but for the fence that
// asking raises.
type ticket struct {
	append messagestore.Append
	fences []int64 // as they were when the caller came
	size   int
	state  atomic.Int32
	done   chan struct{}

	written messagestore.Written // once done
	err     error
}

const (
	waiting int32 = iota
	taken
	left
)

func (d *Driver) newTicket(a messagestore.Append) *ticket {
	t := &ticket{append: a, fences: d.fences.of([]messagestore.Append{a}), done: make(chan struct{})}
	for _, r := range a.Records {
		t.size += len(r.Data) + len(r.Metadata)
	}
	return t
}

// wanted reports whether the caller waits.
func (t *ticket) wanted() bool { return t.state.Load() != left }

func (t *ticket) answer(written messagestore.Written, err error) {
	t.written, t.err = written, err
	close(t.done)
}

// appendInGroup writes a, together with others if there are any.
func (d *Driver) appendInGroup(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	l := d.groups.line(a.Stream.Category())
	l.mu.Lock()
	if !l.busy {
		l.busy = true
		l.mu.Unlock()
		defer d.next(l)
		return d.appendAlone(ctx, a)
	}
	l.mu.Unlock()

	select {
	case l.room <- struct{}{}:
	case <-ctx.Done():
		return messagestore.Written{}, ctx.Err()
	}
	t := d.newTicket(a)
	l.mu.Lock()
	l.waiting = append(l.waiting, t)
	if !l.busy {
		l.busy = true
		go d.flush(l)
	}
	l.mu.Unlock()

	select {
	case <-t.done:
		return t.written, t.err
	case <-ctx.Done():
	}
	if t.state.CompareAndSwap(waiting, left) {
		return messagestore.Written{}, ctx.Err()
	}
	grace := time.NewTimer(outcomeGrace)
	defer grace.Stop()
	select {
	case <-t.done:
		return t.written, t.err
	case <-grace.C:
		t.state.Store(left)
		return messagestore.Written{}, unknownOutcome(ctx.Err(), []messagestore.Append{a})
	}
}

// next lets those go on who came to the line in the meantime.
func (d *Driver) next(l *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy = len(l.waiting) > 0; l.busy {
		go d.flush(l)
	}
}

// flush commits what waits in a line, group by group, until nothing does.
func (d *Driver) flush(l *line) {
	for {
		group := l.take()
		if group == nil {
			return
		}
		if len(group) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
			d.commit(ctx, group)
			cancel()
		}
	}
}

// take returns the next group, all of one category and in the order in which they
// came; empty if they have left, or nil if none waits. Of one category, because to
// lock several the order has to be that of every other process.
func (l *line) take() []*ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.busy = false
		return nil
	}
	group := []*ticket{}
	size, full := 0, false
	category := l.waiting[0].append.Stream.Category()
	l.waiting = slices.DeleteFunc(l.waiting, func(t *ticket) bool {
		full = full || len(group) == maxGroup || len(group) > 0 && size+t.size > maxGroupBytes
		if full || t.append.Stream.Category() != category {
			return false
		}
		<-l.room
		if t.state.CompareAndSwap(waiting, taken) {
			group = append(group, t)
			size += t.size
		}
		return true
	})
	return group
}

// commit writes a group and answers all of it.
func (d *Driver) commit(ctx context.Context, group []*ticket) {
	if len(group) == 1 {
		d.alone(ctx, group[0])
		return
	}
	answers, sent, err := d.callEach(ctx, group)
	if err == nil {
		d.groups.flushes.Add(1)
		d.groups.flushed.Add(int64(len(group)))
		for i, t := range group {
			if d.fences.raised(answers[i]) {
				d.alone(ctx, t)
				continue
			}
			written, err := outcome(answers[i], []messagestore.Append{t.append})
			if err != nil {
				t.answer(messagestore.Written{}, err)
				continue
			}
			t.answer(written[0], nil)
		}
		return
	}
	if !sent {
		for _, t := range group {
			t.answer(messagestore.Written{}, err)
		}
		return
	}
	if definite(err) {
		// All of it was rolled back, for the sake of one perhaps. Each on its own, it
		// harms no other.
		d.log.Warn().Err(d.failed(err)).Int("writes", len(group)).Msg("write one by one")
		for _, t := range group {
			d.alone(ctx, t)
		}
		return
	}
	for _, t := range group {
		t.answer(messagestore.Written{}, unknownOutcome(safe(err), []messagestore.Append{t.append}))
	}
}

// alone writes what was in a group, or would have been, by itself.
func (d *Driver) alone(ctx context.Context, t *ticket) {
	written, err := d.appendAll(ctx, []messagestore.Append{t.append}, t.fences, t.wanted)
	if err != nil {
		t.answer(messagestore.Written{}, err)
		return
	}
	t.answer(written[0], nil)
}

// callEach calls the function for each write of a group, in one round trip and one
// transaction. If it did not send anything, no write was written.
func (d *Driver) callEach(ctx context.Context, group []*ticket) (answers [][]answer, sent bool, err error) {
	answers = make([][]answer, len(group))
	calls := batch{sql: d.queries.append}
	for _, t := range group {
		calls.args = append(calls.args, append(appendArguments([]messagestore.Append{t.append}), t.fences))
	}
	err = d.with(ctx, func(db DB) error {
		sent = true
		return replicated(db, func() error {
			return d.send(ctx, connOf(db), calls, func(i int, rows pgx.Rows) (err error) {
				answers[i], err = scanAnswers(rows)
				return err
			})
		})
	})
	return answers, sent, err
}
