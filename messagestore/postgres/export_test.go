package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
)

// Mode returns how the driver sends statements on a connection that it has used.
func (d *Driver) Mode(conn *pgx.Conn) pgx.QueryExecMode { return d.link.Mode(conn) }

// Busy reports whether a write to the category is under way.
func (d *Driver) Busy(category messagestore.Category) bool {
	l := d.shard(category)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}

// Within bounds the time that a shard waits for a write.
func (d *Driver) Within(limit time.Duration) *Driver {
	d.timeout = limit
	return d
}

// Learn tells the driver where the category's fence is.
func (d *Driver) Learn(category messagestore.Category, fence int64) {
	d.fences.raised([]answer{{outcome: "fenced", stream: string(category), version: messagestore.Version(fence)}})
}

// Waiting returns how many writes wait for their turn.
func (d *Driver) Waiting() int {
	n := 0
	for _, l := range d.shards {
		l.mu.Lock()
		n += len(l.waiting)
		l.mu.Unlock()
	}
	return n
}

// Patient has reads wait for others for as long as it takes.
func (d *Driver) Patient() { d.patience = time.Hour }

// WaitingReads counts the reads that wait for others.
func (d *Driver) WaitingReads() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)
}

// Flushes returns how many transactions held more than one write, and how many
// writes they held.
func (d *Driver) Flushes() (flushes, writes int64) {
	return d.flushes.Load(), d.flushed.Load()
}

// TogetherWith returns a category in the same shard as another, so that writes to both may be in
// one group.
func (d *Driver) TogetherWith(category messagestore.Category) messagestore.Category {
	for n := 0; ; n++ {
		other := messagestore.Category(fmt.Sprintf("%s%d", category, n))
		if d.shard(other) == d.shard(category) {
			return other
		}
	}
}

// ReadTogether reads streams as a group, and returns the group's result.
func (d *Driver) ReadTogether(ctx context.Context, queries ...messagestore.StreamQuery) ([][]*messagestore.Message, error) {
	group := make([]*gathered, len(queries))
	for i, q := range queries {
		group[i] = &gathered{q: q}
	}
	err := d.readGroup(ctx, group)
	pages := make([][]*messagestore.Message, len(queries))
	for i, r := range group {
		pages[i] = r.reading.found.Messages
	}
	return pages, err
}

// InOneShard reports whether writes to two categories may be in one group.
func (d *Driver) InOneShard(a, b messagestore.Category) bool {
	return d.shard(a) == d.shard(b)
}

// An Answer is the outcome of a write in a group.
type Answer struct {
	Written messagestore.Written // to its first stream
	All     []messagestore.Written
	Met     *messagestore.Conflict
	Err     error
}

// AppendEach writes a group.
func (d *Driver) AppendEach(ctx context.Context, appends []messagestore.Append) []Answer {
	return d.AppendOrMeetEach(ctx, appends)
}

// AppendOrMeetEach writes a group, in which the writes with these numbers are TryAppends.
func (d *Driver) AppendOrMeetEach(ctx context.Context, appends []messagestore.Append, meets ...int) []Answer {
	writes := make([][]messagestore.Append, len(appends))
	for i, a := range appends {
		writes[i] = []messagestore.Append{a}
	}
	return d.AppendAllEach(ctx, writes, meets...)
}

// AppendAllEach writes a group of writes to several streams.
func (d *Driver) AppendAllEach(ctx context.Context, writes [][]messagestore.Append, meets ...int) []Answer {
	group := make([]*ticket, len(writes))
	for i, w := range writes {
		group[i] = newTicket(w, slices.Contains(meets, i), d.fences.of(w))
		group[i].state.Store(taken)
	}
	l := d.shards[0]
	d.commit(ctx, l, group)
	d.flush(l) // what was put back
	answers := make([]Answer, len(group))
	for i, t := range group {
		<-t.done
		answers[i] = Answer{All: t.written, Met: t.met, Err: t.err}
		if t.err == nil && t.met == nil {
			answers[i].Written = t.written[0]
		}
	}
	return answers
}
