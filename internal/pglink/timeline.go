package pglink

import (
	"strconv"
	"strings"
	"sync/atomic"
)

// A timeline tells one history of a server from another. PostgreSQL counts it up when a
// standby is promoted, or a backup is restored to a moment. A primary and its standbys
// share the identifier of the system.
type timeline struct {
	system string
	number uint64
}

// timelineOf returns the timeline in an epoch, nil if there is none.
func timelineOf(epoch string) *timeline {
	system, rest, _ := strings.Cut(epoch, "/")
	hex, _, _ := strings.Cut(rest, "/")
	number, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		return nil
	}
	return &timeline{system, number}
}

// leftFor reports whether another server was promoted in place of t's, so that writes to it
// are lost. It is false for servers of different systems.
func (t *timeline) leftFor(latest *timeline) bool {
	return t != nil && latest != nil && t.system == latest.system && t.number < latest.number
}

// A latest is the latest timeline that a link has seen. It only decreases when the system
// changes.
type latest struct{ seen atomic.Pointer[timeline] }

// see records t and returns the latest.
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
