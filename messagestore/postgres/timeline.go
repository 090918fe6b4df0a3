package postgres

import (
	"strconv"
	"strings"
	"sync/atomic"
)

// A timeline is how often the server behind a connection was promoted, or put back to a
// moment, and the identifier of the system, which a server's standbys share.
type timeline struct {
	system string
	number uint64
}

// timelineOf returns the timeline of an epoch, nil for one that has none.
func timelineOf(epoch string) *timeline {
	system, rest, _ := strings.Cut(epoch, "/")
	hex, _, _ := strings.Cut(rest, "/")
	number, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		return nil
	}
	return &timeline{system, number}
}

// leftFor reports whether t is a server's that another was promoted in place of: what is
// written to it nobody will see. Of another system nothing is known.
func (t *timeline) leftFor(latest *timeline) bool {
	return t != nil && latest != nil && t.system == latest.system && t.number < latest.number
}

// A latest is the latest timeline that a driver was on. It only goes back to be of another
// system.
type latest struct{ seen atomic.Pointer[timeline] }

// see takes t in, and returns which is the latest.
func (l *latest) see(t *timeline) *timeline {
	for {
		was := l.seen.Load()
		if t == nil || t.leftFor(was) || was != nil && *t == *was {
			return was
		}
		if l.seen.CompareAndSwap(was, t) {
			return t
		}
	}
}
