package check

import (
	"github.com/dibs-go/dibs/soak/history"
)

// checkRewinds checks promise C6: a run of a consumer that is beyond the end that a failover
// kept, by its answers or its checkpoints, and that the store answers again after it, is told
// so, however far the store has grown meanwhile. Nobody else is.
func checkRewinds(r *run) {
	last := r.lastAnswers()
	for i := range r.failovers {
		f := &r.failovers[i]
		beyond := map[int32]int64{} // position, by life
		for _, all := range [][]put{r.fetches, r.puts} {
			for n := range all {
				if p := &all[n]; r.beyond(p, f) && r.lives[p.life].end > f.time {
					beyond[p.life] = max(beyond[p.life], p.position)
				}
			}
		}
		grown := r.grownAfter(i)
		for _, n := range sorted(beyond) {
			l := &r.lives[n]
			if last[n] <= f.end {
				continue // it ended before it could see it
			}
			r.verdict.checked(Rewind, 1)
			if grown[l.category] >= beyond[n]-1 {
				r.verdict.Overtaken++
			}
			if !l.ended || l.class != ahead {
				r.verdict.Silent++
				name := r.consumers.list[l.consumer]
				r.verdict.broken(Rewind, subject{ops: []history.Ref{l.ref, f.ref}, consumer: name},
					"%s was at position %d, a failover kept nothing after %d, and it was never told", name, beyond[n], f.heads[l.category])
			}
		}
	}
	r.checkAlarms()
	for i := range r.failovers {
		r.checkEpochs(&r.failovers[i], last)
	}
}

// checkEpochs looks at the runs that only the epoch can have told that a backup was put back: all messages that
// they had read were in it, and they had stored no checkpoint since it was taken; but the messages they handled
// since are undone. So they must not go on.
func (r *run) checkEpochs(f *failover, last []int64) {
	taken := int64(history.Never) // when the backup was
	for i := range r.faults {
		if x := &r.faults[i]; x.name == f.name && f.time < x.time && x.time < f.end {
			taken = x.time
		}
	}
	handled, otherwise := map[int32]bool{}, map[int32]bool{}
	for i := range r.deliveries {
		d := &r.deliveries[i]
		if d.kind == ok && taken < d.time && d.end < f.end && d.global <= f.heads[r.lives[d.life].category] {
			handled[d.life] = true
		}
	}
	for i := range r.fetches {
		if p := &r.fetches[i]; r.beyond(p, f) {
			otherwise[p.life] = true
		}
	}
	for i := range r.puts {
		if p := &r.puts[i]; p.kind != fail && p.end > f.time && p.time < f.end {
			otherwise[p.life] = true
		}
	}
	for _, n := range sorted(handled) {
		l := &r.lives[n]
		if otherwise[n] || last[n] <= f.end {
			continue
		}
		r.verdict.ByEpoch++
		if !l.ended || l.class != anotherEpoch {
			r.verdict.Silent++
			name := r.consumers.list[l.consumer]
			r.verdict.broken(Rewind, subject{ops: []history.Ref{l.ref, f.ref}, consumer: name},
				"messages that %s had handled since a backup was taken are undone, and it was never told that the backup was put back", name)
		}
	}
}

// beyond says that a position is of something that a failover did not keep.
func (r *run) beyond(p *put, f *failover) bool {
	l := &r.lives[p.life]
	return l.known && p.kind == ok && p.end < f.end && p.position > f.heads[l.category]+1
}

// grownAfter returns how far each category had grown after a failover, before anyone could
// read from it.
func (r *run) grownAfter(n int) map[uint32]int64 {
	for i := range r.overtakes {
		o := &r.overtakes[i]
		if o.time >= r.failovers[n].end && (n+1 == len(r.failovers) || o.time < r.failovers[n+1].time) {
			return o.heads
		}
	}
	return nil
}

// checkAlarms asks of each run that was told that it is ahead for a reason: that its consumer
// had read or recorded something that a failover undid.
func (r *run) checkAlarms() {
	of := func(n int32) uint32 { return r.lives[n].consumer }
	since := map[uint32]int64{} // when a failover first undid something of it
	for i := range r.failovers {
		f := &r.failovers[i]
		undone := func(consumer uint32) {
			if _, was := since[consumer]; !was {
				since[consumer] = f.time
			}
		}
		for n := range r.fetches {
			if p := &r.fetches[n]; r.beyond(p, f) {
				undone(of(p.life))
			}
		}
		for n := range r.deliveries {
			// It goes on with the messages in flight.
			if d := &r.deliveries[n]; r.lives[d.life].time < f.end && d.global > f.heads[r.lives[d.life].category] {
				undone(of(d.life))
			}
		}
		for n := range r.puts {
			// The record itself may have been undone.
			if p := &r.puts[n]; p.kind != fail && p.end > f.time && p.time < f.end {
				undone(of(p.life))
			}
		}
	}
	for i := range r.lives {
		l := &r.lives[i]
		if l.class != ahead {
			continue
		}
		if at, was := since[of(int32(i))]; !was || at > l.end {
			name := r.consumers.list[l.consumer]
			r.verdict.broken(Rewind, subject{ops: []history.Ref{l.ref}, consumer: name}, "%s was told that it is ahead of the store, and nothing of it was undone", name)
		}
	}
}

// lastAnswers returns when each life was last answered by a store, or ended by itself.
func (r *run) lastAnswers() []int64 {
	last := make([]int64, len(r.lives))
	for i := range r.lives {
		if l := &r.lives[i]; l.ended {
			last[i] = l.end
		}
	}
	for _, all := range [][]put{r.fetches, r.puts} {
		for i := range all {
			if p := &all[i]; p.kind != info {
				last[p.life] = max(last[p.life], p.end)
			}
		}
	}
	return last
}
