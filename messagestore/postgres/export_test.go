package postgres

import (
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
)

// Mode returns how the driver sends statements on a connection that it has used.
func (d *Driver) Mode(conn *pgx.Conn) pgx.QueryExecMode { return d.mode(conn) }

// Busy reports whether a write to the category is under way.
func (d *Driver) Busy(category messagestore.Category) bool {
	l := d.groups.line(category)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}

// Learn tells the driver where the category's fence is.
func (d *Driver) Learn(category messagestore.Category, fence int64) {
	d.fences.raised([]answer{{outcome: "fenced", stream: string(category), version: messagestore.Version(fence)}})
}

// Waiting returns how many writes wait for their turn.
func (d *Driver) Waiting() int {
	n := 0
	for _, l := range d.groups.lines {
		l.mu.Lock()
		n += len(l.waiting)
		l.mu.Unlock()
	}
	return n
}

// Flushes returns how many transactions held more than one write, and how many
// writes they held.
func (d *Driver) Flushes() (flushes, writes int64) {
	return d.groups.flushes.Load(), d.groups.flushed.Load()
}
