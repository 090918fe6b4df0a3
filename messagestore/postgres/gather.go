package postgres

import (
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of a group of reads.
const (
	// maxGathered is how many reads a group has at most, and gatheredLimit how many messages each
	// gets from it. A read that needs more continues alone.
	maxGathered   = 64
	gatheredLimit = 100

	// maxGatheredBytes bounds the data and metadata in a group's answer, plus one message. The rest
	// is read alone, which is nearly everything for a page of large messages.
	maxGatheredBytes = 4 << 20

	// readPatience is how long a read waits for its group before it reads alone, and how long a
	// read keeps others waiting.
	readPatience = time.Second
)

// A gathering combines reads of streams in one statement and one round trip. While fewer than most
// reads are under way, a read goes straight through, on its caller's goroutine and context. Later
// reads wait until a read has ended. No read depends on the others: if its group fails or takes too
// long, it reads again alone.
type gathering struct {
	reader
	most     int           // flights; 0 not over a pool: each read goes alone
	patience time.Duration // readPatience, but for the tests

	mu      sync.Mutex
	under   []*flight
	waiting []*gathered
}

// A flight is a read, or a group of reads, that is under way.
type flight struct{ began time.Time }

// A gathered read waits for a group, or is in a group.
type gathered struct {
	q     messagestore.StreamQuery
	state atomic.Int32 // waiting, taken or left
	done  chan struct{}

	reading reading // once done
	cut     bool    // there may be more that did not fit into the group
	err     error
}

// newGathering leaves half of the connections for writes.
func newGathering(r reader) *gathering {
	g := &gathering{reader: r, patience: readPatience}
	if r.link.Pool() != nil {
		g.most = max(1, r.link.Connections()/2)
	}
	return g
}

// ReadStream implements [messagestore.Driver].
func (g *gathering) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	if g.gathers(ctx) {
		return g.readGathered(ctx, q)
	}
	return g.readStream(ctx, q)
}

// Last implements [messagestore.Driver]. Reads of last messages go together, too.
func (g *gathering) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	if messageType != "" || !g.gathers(ctx) {
		return g.reader.Last(ctx, stream, messageType)
	}
	last, err := g.readGathered(ctx, messagestore.StreamQuery{Stream: stream, From: messagestore.EndOfStream, Backwards: true, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(last) == 0 {
		return nil, messagestore.ErrNotFound
	}
	return last[0], nil
}

// enter returns a flight if the read goes straight through, or else the read, now waiting.
func (g *gathering) enter(q messagestore.StreamQuery) (*flight, *gathered) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.begin(&flight{}); f != nil {
		return f, nil
	}
	r := &gathered{q: q, done: make(chan struct{})}
	g.waiting = append(g.waiting, r)
	return nil, r
}

// begin adds a flight, unless there are enough. A flight that hangs does not count. The caller
// holds mu.
func (g *gathering) begin(f *flight) *flight {
	now := time.Now()
	if len(g.under) >= g.most {
		g.under = slices.DeleteFunc(g.under, func(f *flight) bool { return now.Sub(f.began) > g.patience })
	}
	if len(g.under) >= g.most {
		return nil
	}
	f.began = now
	g.under = append(g.under, f)
	return f
}

// next ends a flight, and returns the group that goes next, or nil.
func (g *gathering) next(f *flight) []*gathered {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.under = slices.DeleteFunc(g.under, func(other *flight) bool { return other == f })
	g.waiting = slices.DeleteFunc(g.waiting, func(r *gathered) bool { return r.state.Load() == left })
	if len(g.waiting) == 0 || g.begin(f) == nil {
		return nil
	}
	n := min(len(g.waiting), maxGathered)
	group := those(g.waiting[:n], func(r *gathered) bool { return r.state.CompareAndSwap(waiting, taken) })
	g.waiting = slices.Delete(g.waiting, 0, n)
	return group
}

// gathers reports whether a read may be combined with others: not in a transaction, and not for
// upkeep.
func (g *gathering) gathers(ctx context.Context) bool {
	return g.most > 0 && ctx != nil && !calling.CallerOf(ctx).Upkeep && ctx.Value(heldKey{g.database}) == nil
}

func (g *gathering) readGathered(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	f, r := g.enter(q)
	if f != nil {
		defer g.landed(f)
		return g.readStream(ctx, q)
	}
	patience := time.NewTimer(g.patience)
	defer patience.Stop()
	select {
	case <-r.done:
	case <-patience.C:
	case <-ctx.Done():
	}
	if !r.answered() {
		return g.readStream(ctx, q)
	}
	return g.readOn(ctx, q, r)
}

// answered reports whether the group has answered the read. If not, it never will.
func (r *gathered) answered() bool {
	select {
	case <-r.done:
		return r.err == nil
	default:
		r.state.Store(left)
		return false
	}
}

// readOn reads the rest of a page after the group's part.
func (g *gathering) readOn(ctx context.Context, q messagestore.StreamQuery, r *gathered) ([]*messagestore.Message, error) {
	messages := r.reading.found.Messages
	switch {
	case len(messages) >= q.Limit, len(messages) < gatheredLimit && !r.cut:
		return messages, nil
	case len(messages) == 0:
		return g.readStream(ctx, q)
	}
	q.Limit -= len(messages)
	if last := messages[len(messages)-1].Position; !q.Backwards {
		q.From = last + 1
	} else if q.From = last - 1; q.From < 0 {
		return messages, nil
	}
	rest, err := g.readStream(ctx, q)
	return append(messages, rest...), err
}

// landed ends the flight of a read, and starts the reads that wait.
func (g *gathering) landed(f *flight) {
	if group := g.next(f); group != nil {
		go g.fly(f, group)
	}
}

// fly reads groups until no read waits.
func (g *gathering) fly(f *flight, group []*gathered) {
	for ; group != nil; group = g.next(f) {
		if len(group) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
		err := calling.Call(func() error { return g.readGroup(ctx, group) })
		cancel()
		for _, r := range group {
			r.err = err
			close(r.done)
		}
		runtime.Gosched() // callers that were answered may read again, and go with the next group
	}
}

func (g *gathering) readGroup(ctx context.Context, group []*gathered) error {
	var e pglink.Encoder
	e.Array(pgtype.TextOID, len(group))
	for _, r := range group {
		pglink.Element(&e, r.q.Stream)
	}
	e.Array(pgtype.Int8OID, len(group))
	for _, r := range group {
		e.Int8Element(int64(r.q.From))
	}
	e.Array(pgtype.Int4OID, len(group))
	for _, r := range group {
		e.Int4Element(min(r.q.Limit, gatheredLimit))
	}
	e.Array(pgtype.BoolOID, len(group))
	for _, r := range group {
		e.BoolElement(r.q.Backwards)
	}
	e.Next()
	e.Int8(maxGatheredBytes)
	at, held, full := 0, 0, false
	err := g.with(ctx, func(db DB) error {
		return failed(g.link.Exec(ctx, pglink.Conn(db), g.queries.readStreams, nil, e.Parameters(), func(columns [][]byte) error {
			if len(columns) < 2+len(messageColumns)-1 || len(columns[0]) != 4 || len(columns[1]) != 1 {
				return errNoMessage
			}
			if full { // full: the database counts compressed data by its compressed size
				return nil
			}
			i := int(binary.BigEndian.Uint32(columns[0])) - 1
			if i < at || i >= len(group) { // the answers come in the order of the reads
				return errNoMessage
			}
			at, held = i, held+len(columns[7])+len(columns[8])
			full = columns[1][0] == 1 || held >= maxGatheredBytes
			return group[i].reading.take(columns[2:])
		}))
	})
	for i, r := range group {
		r.cut = full && i >= at
	}
	return err
}
