package cron

import (
	"testing"
	"time"
)

// Due returns the ticks of a schedule, which was set at a time, that a process writes at another.
func Due(t *testing.T, spec, zone string, from, now time.Time, catchUp CatchUp) []time.Time {
	t.Helper()
	p, err := parse(spec, zone)
	if err != nil {
		t.Fatal(err)
	}
	p.from = from
	return p.due(from, now, catchUp)
}

// Ticks returns all ticks of a spec after one time and up to another.
func Ticks(t *testing.T, spec, zone string, after, until time.Time) (ticks []time.Time) {
	t.Helper()
	p, err := parse(spec, zone)
	if err != nil {
		t.Fatal(err)
	}
	for at := p.next(after); !at.IsZero() && !at.After(until); at = p.next(at) {
		ticks = append(ticks, at)
	}
	return ticks
}
