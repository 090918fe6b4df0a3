package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// A step is the effect of one operation on a stream's version, or its view of it.
type step struct {
	time, end   int64
	first, last int64 // positions that it wrote; last is the version that it saw
	epoch       int32
	attempt     int32 // that wrote, -1
	op          int32 // that saw, -1
	stream      uint32
}

func (s *step) wrote() bool { return s.first >= 0 }

// rank says where the step is among the steps of its stream: the final table knows the order of
// all writes, and a version is seen between two of them.
func (s *step) rank() int64 {
	if s.wrote() {
		return 2*s.first + 1
	}
	return 2 * (s.last + 1)
}

// chunk is how many steps porcupine is given at once. It keeps a bit for each in every state that
// it remembers, and it does not know that a question goes before the next write: its vain
// attempts grow much faster than the chunk.
const chunk = 32

// checkVersions checks invariants 8 and 9: that each stream's version is linearizable, with
// unknown outcomes as the final table has them. A write of unknown outcome that is in the table
// was done, at any time after it began; a write that is not there was not done.
//
// A stream's history is cut into chunks between two ranks. Steps of different chunks need only
// not end before one of an earlier chunk begins, which is checked beside; then the chunks'
// linearizations one after the other are the stream's, and without one of them there is none.
func checkVersions(r *run) {
	r.witnessed()
	steps := r.steps()
	r.verdict.checked(Linearizable, len(steps))
	slices.SortFunc(steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.time, b.time))
	})
	for at := 0; at < len(steps); {
		end := at + 1
		for end < len(steps) && steps[end].stream == steps[at].stream {
			end++
		}
		if a, b := linearizable(steps[at:end], chunk); a != nil {
			r.tellOrder(a, b)
		}
		at = end
	}
}

// linearizable returns nil for the steps of one stream, in order of rank, that can have happened so, looking
// at so many at once, and else two that cannot: a was over before b began, and saw or wrote a later version.
func linearizable(steps []step, chunk int) (a, b *step) {
	var latest *step // of earlier chunks, that which began last
	version := int64(messagestore.NoStream)
	kept := version // at the end of the epoch before, the version that a failover left
	for at := 0; at < len(steps); {
		end := min(at+chunk, len(steps))
		for steps[end-1].epoch != steps[at].epoch {
			end--
		}
		part := steps[at:end]
		if at > 0 && steps[at-1].epoch != steps[at].epoch {
			version = kept
		}
		for i := range part {
			if latest != nil && part[i].end < latest.time {
				return &part[i], latest
			}
		}
		if is := chunkIsLinearizable(part, version); is != porcupine.Ok {
			a, b := conflicting(part, version)
			if a == nil && is == porcupine.Illegal {
				a, b = &part[0], &part[len(part)-1]
			}
			if a != nil { // and else it could not decide in time, and nothing is wrong
				return a, b
			}
		}
		for i := range part {
			s := &part[i]
			if latest == nil || s.time > latest.time {
				latest = s
			}
			if s.wrote() {
				version = s.last
				if s.op < 0 {
					kept = s.last
				}
			}
		}
		at = end
	}
	return nil, nil
}

// chunkIsLinearizable asks porcupine.
func chunkIsLinearizable(steps []step, version int64) porcupine.CheckResult {
	operations := make([]porcupine.Operation, len(steps))
	for i := range steps {
		operations[i] = porcupine.Operation{ClientId: i, Input: &steps[i], Call: steps[i].time, Return: steps[i].end}
	}
	model := porcupine.Model{
		Init: func() any { return version },
		Step: func(state, input, _ any) (bool, any) {
			at, isVersion := state.(int64)
			s, isStep := input.(*step)
			switch {
			case !isVersion || !isStep:
				return false, state
			case s.wrote():
				// A gap is invariant 4's.
				return at < s.first, s.last
			default:
				return at == s.last, at
			}
		},
	}
	return porcupine.CheckOperationsTimeout(model, operations, 10*time.Second)
}

// conflicting finds the two steps that cannot both be: in order of their beginnings, each must not be
// of a lower rank than any that is over.
func conflicting(steps []step, version int64) (a, b *step) {
	known := map[int64]bool{version: true}
	for i := range steps {
		if steps[i].wrote() {
			known[steps[i].last] = true
		}
	}
	for i := range steps {
		if !steps[i].wrote() && !known[steps[i].last] {
			return &steps[i], &steps[i] // a version that never was
		}
	}
	begins, ends := make([]*step, len(steps)), make([]*step, len(steps))
	for i := range steps {
		begins[i], ends[i] = &steps[i], &steps[i]
	}
	slices.SortFunc(begins, func(a, b *step) int { return cmp.Compare(a.time, b.time) })
	slices.SortFunc(ends, func(a, b *step) int { return cmp.Compare(a.end, b.end) })
	next := 0
	for _, b := range begins {
		for ; next < len(ends) && ends[next].end < b.time; next++ {
			if a == nil || ends[next].rank() > a.rank() {
				a = ends[next]
			}
		}
		if a != nil && a.rank() > b.rank() {
			return a, b
		}
	}
	return nil, nil
}

// witnessed is told when each message was there at the latest: when a process had read it.
func (r *run) witnessed() {
	if len(r.failovers) > 0 {
		return // it may have been another with its place
	}
	for i := range r.deliveries {
		if d := &r.deliveries[i]; d.row >= 0 {
			r.written.until[d.row] = min(r.written.until[d.row], d.time)
		}
	}
}

// steps collects the changes of the versions of the streams whose writes are recorded, and reports
// steps that are wrong by themselves.
func (r *run) steps() []step {
	var steps []step
	for k := 0; k < len(r.byStream); {
		n := r.byStream[k]
		x := &r.rows[n]
		end := k + 1
		by := r.written.attempt[n]
		for by >= 0 && end < len(r.byStream) && r.rows[r.byStream[end]].stream == x.stream && r.written.attempt[r.byStream[end]] == by {
			end++
		}
		last := &r.rows[r.byStream[end-1]]
		k = end
		if !r.recorded(x.stream) {
			continue
		}
		s := step{
			time: r.written.from[n], end: r.written.until[n], first: x.position, last: last.position,
			epoch: r.epochOfRow(x), attempt: by, op: -1, stream: x.stream,
		}
		if by >= 0 {
			a := &r.appends[by]
			begins := r.messages[a.first].row == n // and is not the rest of a torn batch
			if begins && a.expected != int64(messagestore.AnyVersion) && a.expected != s.first-1 {
				r.verdict.broken(Linearizable, subject{ids: []uuid.UUID{x.id}, ops: []history.Ref{r.refOf(by)}},
					"a write to %s that expected version %d was done at version %d", r.streamName(x.stream), a.expected, s.first-1)
			}
		}
		if s.end < s.time {
			r.verdict.broken(Linearizable, subject{ids: []uuid.UUID{x.id}}, "message %s was known to be there before anybody wrote it", x.id)
			s.end = s.time
		}
		steps = append(steps, s)
	}
	for i := range r.ops {
		o := &r.ops[i]
		stream := o.conflict
		switch {
		case o.fn == isVersion && o.kind == ok:
			stream = r.appends[o.first].stream
		case o.fn == isWrite && o.kind == fail && o.class == conflict:
			r.verdict.checked(ConflictTruth, 1)
			if !r.conflictIsTrue(o) {
				continue
			}
		default:
			continue
		}
		epoch, clear := r.epochOf(o)
		if !r.recorded(stream) || !clear {
			continue
		}
		steps = append(steps, step{time: o.time, end: o.end, first: -1, last: o.actual, epoch: epoch, attempt: -1, op: int32(i), stream: stream})
	}
	return r.lostSteps(steps)
}

// conflictIsTrue checks invariant 9.
func (r *run) conflictIsTrue(o *op) bool {
	expected := int64(messagestore.AnyVersion)
	for k := range o.n {
		if r.appends[o.first+k].stream == o.conflict {
			expected = r.appends[o.first+k].expected
		}
	}
	about := subject{ops: []history.Ref{r.ref(o)}, alone: true}
	last := r.last[o.conflict]
	switch {
	case expected == int64(messagestore.AnyVersion) || o.actual == expected:
		r.verdict.broken(ConflictTruth, about, "a write to %s that expected version %d was refused for it, at version %d",
			r.streamName(o.conflict), expected, o.actual)
	case len(r.failovers) == 0 && o.actual > last:
		r.verdict.broken(ConflictTruth, about, "a write to %s was refused at version %d, which it never had: it ends at %d",
			r.streamName(o.conflict), o.actual, last)
	default:
		return true
	}
	return false
}

// lostSteps adds the writes that a failover undid.
func (r *run) lostSteps(steps []step) []step {
	for _, n := range r.losses {
		o := &r.ops[n]
		for k := range o.n {
			a := &r.appends[o.first+k]
			if o.fn != isWrite || a.duplicate || a.n == 0 || !r.recorded(a.stream) {
				continue
			}
			epoch := int32(0)
			for i := range r.failovers {
				if r.failovers[i].end <= o.time {
					epoch++
				}
			}
			steps = append(steps, step{
				time: o.time, end: o.end, first: a.version - int64(a.n) + 1, last: a.version, epoch: epoch, attempt: o.first + k, op: n, stream: a.stream,
			})
		}
	}
	return steps
}

// epochOfRow is after how many failovers a row was written.
func (r *run) epochOfRow(x *row) (epoch int32) {
	for i := range r.failovers {
		if x.global > r.failovers[i].heads[r.category[x.stream]] {
			epoch++
		}
	}
	return epoch
}

// epochOf is after how many failovers an operation was done, which is not clear during one.
func (r *run) epochOf(o *op) (epoch int32, clear bool) {
	for i := range r.failovers {
		f := &r.failovers[i]
		switch {
		case f.end <= o.time:
			epoch++
		case f.time < o.end:
			return 0, false
		}
	}
	return epoch, true
}

func (r *run) tellOrder(a, b *step) {
	about := subject{alone: true}
	for _, s := range []*step{a, b} {
		switch {
		case s.op >= 0:
			about.ops = append(about.ops, r.ref(&r.ops[s.op]))
		case s.attempt >= 0:
			about.ops = append(about.ops, r.refOf(s.attempt))
		}
	}
	stream := r.streamName(a.stream)
	if a == b {
		r.verdict.broken(Linearizable, about, "%s was said to be at version %d, and never was", stream, a.last)
		return
	}
	r.verdict.broken(Linearizable, about, "%s was at version %d when one operation was over, and for one that began after that at %d", stream, a.last, b.before())
}

// before is the version at which a step was done.
func (s *step) before() int64 {
	if s.wrote() {
		return s.first - 1
	}
	return s.last
}
