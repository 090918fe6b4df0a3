package queues

import (
	"slices"

	"github.com/dibs-go/dibs/soak/crew"
)

// unique holds the items of unique names against the times in which another had the name.
func (c *checker) unique() {
	for _, call := range c.Calls {
		if call.Call != Unique {
			continue
		}
		n, a := call.New[0], &call.Answer
		if m := c.there[n.ID]; m != nil && m.Place > 0 {
			c.named(call, c.byStream[m.Stream][m.Place-1], c.items[m.Position])
		}
		if a.Had == 0 {
			continue
		}
		had := c.items[a.Had]
		switch {
		case had == nil || had.Stream != n.Stream:
			c.Broke(Named, "%s was told that item %d has the name of %s", call.Process, a.Had, n.Stream)
		case (a.Answer == Reused) == (had.N == n.N):
			c.Broke(Named, "%s sent %d to %s, was told %s, and item %d has %d", call.Process, n.N, n.Stream, a.Answer, had.Position, had.N)
		case c.surelyFree(had, n.Until, call):
			c.Broke(Named, "%s was told that item %d has the name of %s, which was free (%s)", call.Process, had.Position, had.Stream, n.Until)
		}
	}
}

// named looks at an item whose name another had before. It was inserted at a moment of its call, and before it was given.
func (c *checker) named(call *Call, had, it *item) {
	if had == nil {
		return // it was removed
	}
	c.Again++
	until := call.End
	for _, g := range it.given {
		until = min(until, g.call.End)
	}
	if !c.maybeFree(had, call.New[0].Until, call.At-slack, until+slack) {
		c.Broke(Named, "item %d of %s was inserted while item %d had the name (%s)", it.Position, it.Stream, had.Position, call.New[0].Until)
	}
}

// maybeFree reports whether the name of an item may have been free at a moment of a span.
func (c *checker) maybeFree(it *item, until string, from, to int64) bool {
	switch {
	case until == forgotten:
		return false
	case c.closed(it, func(l *Line) int64 { return l.At }) <= to:
		return true
	case until == finished:
		return false
	}
	for version := range len(it.lines) + 1 {
		if out := c.out(it, version); out.from <= to && out.to >= from {
			return true
		}
	}
	return false
}

// out is a span beyond which a delivery was not out. One that was never heard of may have been out as soon as the one
// before had ended.
func (c *checker) out(it *item, version int) span {
	s := span{it.inserted, crew.Never}
	if version > 0 {
		s.from = it.lines[version-1].At
	}
	heard := false
	for _, g := range it.given {
		if g.Version == version {
			s.from, heard = g.call.At, true
		}
	}
	switch {
	case version < len(it.lines):
		s.to = c.seen(it, version)
	case !heard && it.row != nil && it.row.State != "o":
		return span{crew.Never, 0}
	}
	return s
}

// seen is a moment by which all saw that a delivery had ended: its line has the time before its transaction was
// committed.
func (c *checker) seen(it *item, version int) int64 {
	for _, e := range it.ends {
		if e.Version == version && e.Told == "d" && e.call.End != crew.Never {
			return e.call.End
		}
	}
	return it.lines[version].At + endOfSession.Microseconds()
}

// surelyFree reports whether the name of an item was free all the time of a call.
func (c *checker) surelyFree(it *item, until string, call *Call) bool {
	if until == forgotten {
		return false
	}
	over := crew.Never
	dead := it.row != nil && (it.row.State == "d" || it.row.State == "k") && !slices.ContainsFunc(it.lines, func(l *Line) bool { return l.What == "R" })
	for _, e := range it.ends {
		if e.Kind == "c" && e.isTold() || dead && e.Told == "d" && e.call.Answer.Answer == OK && e.Version == len(it.lines)-1 {
			over = min(over, e.call.End)
		}
	}
	for _, f := range it.finishes {
		if f.call.Answer.Answer == OK {
			over = min(over, f.call.End)
		}
	}
	if over+slack < call.At {
		return true
	}
	if until == finished {
		return false
	}
	return slices.ContainsFunc(it.given, func(g *given) bool { return g.call.End+slack < call.At && c.ends(it, g.Version) > call.End+slack })
}

// ends is the earliest moment at which a delivery may have ended.
func (c *checker) ends(it *item, version int) int64 {
	at := crew.Never
	if version < len(it.lines) {
		at = it.lines[version].At
	}
	for _, e := range slices.Concat(it.ends, it.finishes) {
		if e.Version == version {
			at = min(at, e.call.At)
		}
	}
	return at
}
