package sagas

import (
	"cmp"
	"slices"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
)

// timers looks at what rang.
func (c *checker) timers() {
	set, rung := map[string]*Message{}, map[string][]*Call{}
	for _, m := range c.Messages {
		if m.Category == string(rings) {
			if set[m.ID] != nil {
				c.Broke(Once, "timer %s is set twice", m.ID)
			}
			set[m.ID] = m
		}
	}
	for _, call := range c.Calls {
		switch call.Call {
		case Set:
			for _, id := range call.IDs {
				if call.Answer.Answer == OK && set[id] == nil {
					c.Broke(Rung, "timer %s was set by %s, and is not there", id, call.Process)
				}
			}
		case Ring:
			rung[call.IDs[0]] = append(rung[call.IDs[0]], call)
		}
	}
	for id, m := range set {
		calls := rung[id]
		if len(calls) == 0 {
			c.Broke(Rung, "timer %s of %s did not ring", id, clock(m.Due))
			continue
		}
		c.Late = append(c.Late, time.Duration(calls[0].At-max(m.Due, m.At))*time.Microsecond)
		for i, call := range calls {
			if call.At < m.Due && !c.jumpedIn(call.At-leaseTime, call.At) || call.Due != m.Due {
				c.Broke(Early, "timer %s rang at %s, %v before its time", id, clock(call.At), time.Duration(m.Due-call.At)*time.Microsecond)
			}
			stood := i > 0 && i <= c.lost[m.Stream] && call.At > calls[i-1].At+leaseTime/2 // the machine, for longer than a lease
			if i > 0 && !stood && !c.faulty([]string{calls[i-1].Process, call.Process}, calls[i-1].At, call.At) {
				c.Broke(Once, "timer %s rang in %s at %s, and again in %s after %v, and no fault fell", id, calls[i-1].Process, clock(calls[i-1].At), call.Process,
					time.Duration(call.At-calls[i-1].At)*time.Microsecond)
			}
			c.Again += min(i, 1)
		}
	}
	for id := range rung {
		if set[id] == nil {
			c.Broke(Rung, "timer %s rang, and is not there", id)
		}
	}
}

// faulty reports whether a fault fell on a process of some, or on the server, between two moments or shortly before.
func (c *checker) faulty(processes []string, from, to int64) bool {
	from -= 2 * leaseTime
	for _, o := range c.outages {
		if o.from < to && o.to > from {
			return true
		}
	}
	if c.jumpedIn(from, to) { // which ends sessions
		return true
	}
	for _, f := range slices.Concat(c.kills, c.stops, c.cuts) {
		if slices.Contains(processes, f.process) && f.from < to && f.to > from {
			return true
		}
	}
	return false
}

// letters looks at what the sink took.
func (c *checker) letters() {
	posted := map[string][]*Message{}
	for _, m := range c.Messages {
		if m.Category == string(posts) {
			posted[m.Stream] = append(posted[m.Stream], m)
		}
	}
	var sent []*Call
	for _, call := range c.Calls {
		if call.Call == Send && (call.Answer.Answer == OK || call.End == crew.Never) {
			sent = append(sent, call)
		}
	}
	// The sink has a letter at the end of the call, at the latest when its process died.
	slices.SortStableFunc(sent, func(a, b *Call) int { return cmp.Compare(a.End, b.End) })
	next := map[string]int64{}
	for _, call := range sent {
		switch {
		case call.End == crew.Never: // nobody knows
		case call.Position < next[call.Stream]:
			c.Twice++
		case call.Position > next[call.Stream]:
			c.Broke(InOrder, "%s was given %d of %s, and had %d next", call.Process, call.Position, call.Stream, next[call.Stream])
			next[call.Stream] = call.Position + 1
		default:
			next[call.Stream]++
		}
		if all := posted[call.Stream]; call.Position >= int64(len(all)) || all[call.Position].ID != call.IDs[0] {
			c.Broke(Arrived, "%s was given %s at %d of %s, which is not there", call.Process, call.IDs[0], call.Position, call.Stream)
		}
	}
	for stream, all := range posted {
		if n := next[stream]; n < int64(len(all)) {
			c.Broke(Arrived, "%d letters of %s did not arrive, the first of them at %d", int64(len(all))-n, stream, n)
		}
	}
}
