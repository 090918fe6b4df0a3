package pglink

import (
	"strconv"
	"strings"
	"sync/atomic"
)

// A timeline identifies one history of a server. PostgreSQL increments it when a standby is
// promoted, and after a point-in-time restore. A primary and its standbys share the identifier of
// the system.
type timeline struct {
	system string
	number uint64
}

// timelineOf returns the timeline in an epoch, or nil.
func timelineOf(epoch string) *timeline {
	system, rest, _ := strings.Cut(epoch, "/")
	hex, _, _ := strings.Cut(rest, "/")
	number, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		return nil
	}
	return &timeline{system, number}
}

// leftFor reports whether another server of the same system was promoted after t, so that writes to
// t's server are lost.
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
