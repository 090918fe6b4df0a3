package check

import (
	"bytes"
	"cmp"
	"slices"
	"sort"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// writers has the writer of each row, and the earliest and latest time of the write.
type writers struct {
	attempt []int32 // by row, -1 if none is known
	from    []int64
	until   []int64
}

// checkWrites holds the answers to writers against the final table: invariants 1, 2, 3 and 5.
// On the way it finds the writer of each row.
func checkWrites(r *run) {
	r.byID = make([]int32, len(r.messages))
	for i := range r.byID {
		r.byID[i] = int32(i)
	}
	slices.SortFunc(r.byID, func(i, j int32) int {
		return cmp.Or(bytes.Compare(r.messages[i].id[:], r.messages[j].id[:]), cmp.Compare(i, j))
	})
	r.written = writers{attempt: make([]int32, len(r.rows)), from: make([]int64, len(r.rows)), until: make([]int64, len(r.rows))}
	for i := range r.rows {
		r.written.attempt[i], r.written.from[i], r.written.until[i] = -1, 0, history.Never
	}
	for at := 0; at < len(r.byID); {
		end := at + 1
		for end < len(r.byID) && r.messages[r.byID[end]].id == r.messages[r.byID[at]].id {
			end++
		}
		checkID(r, r.byID[at:end])
		at = end
	}
	r.verdict.checked(Phantom, len(r.rows))
	for i := range r.rows {
		x := &r.rows[i]
		if r.recorded(x.stream) && len(r.sent(x.id)) == 0 {
			r.verdict.broken(Phantom, subject{ids: []uuid.UUID{x.id}}, "no writer wrote message %s, which is %s@%d", x.id, r.streamName(x.stream), x.position)
		}
	}
	checkBatches(r)
	checkTaken(r)
	checkRepeats(r)
}

// checkRepeats checks that a repeated write is answered with its first place, for any version it
// expects: not with a conflict, nor with another message that has its ids.
func checkRepeats(r *run) {
	if len(r.failovers) > 0 {
		return // which may have undone it since
	}
	for i := range r.ops {
		o := &r.ops[i]
		if o.fn != isWrite || o.kind != fail || o.class != conflict && o.class != idConflict {
			continue
		}
		r.verdict.checked(Reported, 1)
		if by := r.writtenWhole(o); by >= 0 {
			r.verdict.broken(Reported, subject{ops: []history.Ref{r.refOf(by), r.ref(o)}},
				"a repeated write was refused, and should have been told its place")
		}
	}
}

// writtenWhole returns the attempt of another operation which wrote all that o was to, the same and as one,
// and that is known to have done so before o began, or -1.
func (r *run) writtenWhole(o *op) int32 {
	by := int32(-1)
	for k := range o.n {
		a := &r.appends[o.first+k]
		for j := range a.n {
			m := &r.messages[a.first+j]
			if m.row < 0 || !r.same(m, m.row) || r.written.until[m.row] >= o.time {
				return -1
			}
			n := r.written.attempt[m.row]
			if n < 0 || r.appends[n].n != a.n || r.messages[r.appends[n].first+j].id != m.id {
				return -1
			}
			if by >= 0 && r.appends[by].op != r.appends[n].op {
				return -1
			}
			by = n
		}
	}
	if by >= 0 && r.ops[r.appends[by].op].n != o.n {
		return -1
	}
	return by
}

// checkTaken checks that an id was taken for each writer that was told so.
func checkTaken(r *run) {
	if len(r.failovers) > 0 {
		return // which may have undone it
	}
	for i := range r.ops {
		o := &r.ops[i]
		if o.fn != isWrite || o.kind != fail || o.class != idConflict {
			continue
		}
		r.verdict.checked(ConflictTruth, 1)
		taken := false
		for k := range o.n {
			a := &r.appends[o.first+k]
			for j := range a.n {
				taken = taken || r.messages[a.first+j].row >= 0
			}
		}
		if !taken {
			r.verdict.broken(ConflictTruth, subject{ops: []history.Ref{r.ref(o)}}, "a write was told that an id of it is taken, and none is there")
		}
	}
}

// sent returns the messages with the id that anybody tried to write or asked about.
func (r *run) sent(id uuid.UUID) []int32 {
	compare := func(i int) int { return bytes.Compare(r.messages[r.byID[i]].id[:], id[:]) }
	from := sort.Search(len(r.byID), func(i int) bool { return compare(i) >= 0 })
	to := from
	for to < len(r.byID) && compare(to) == 0 {
		to++
	}
	return r.byID[from:to]
}

// checkID looks at all that was done with one id.
func checkID(r *run, all []int32) {
	v := r.verdict
	n := r.messages[all[0]].row
	id := r.messages[all[0]].id
	about := subject{ids: []uuid.UUID{id}}

	var said, first int          // writers that were told that it is there, and of these that they were first
	candidate := int32(-1)       // its possible writer
	from := int64(history.Never) // since when
	until := int64(history.Never)
	sure, undone := false, false
	for _, i := range all {
		m := &r.messages[i]
		a := &r.appends[m.attempt]
		o := &r.ops[a.op]
		switch {
		case o.fn == isResolve && o.kind == ok && o.class == written, o.fn == isWrite && o.kind == ok:
			v.checked(Lost, 1)
			if n < 0 {
				undone = r.missing(o, a, id) || undone
				continue
			}
			if r.writtenAgain(o, a, n) {
				r.undo(a.op)
				undone = true
				continue
			}
			said++
			until = min(until, o.end)
			r.compare(m, a, o)
			if o.fn == isWrite && !a.duplicate {
				first++
				candidate, from, sure = m.attempt, o.time, true
			}
		case n >= 0 && o.fn == isWrite && o.kind == info && !r.refuted(all, o):
			if o.resolved == written && len(r.failovers) == 0 && !r.same(m, n) {
				v.broken(Reported, about, "message %s was reported as written, and another message is there", id)
			}
			if sure {
				continue
			}
			if candidate < 0 || fits(r, m, n) {
				candidate = m.attempt
			}
			from = min(from, o.time)
		}
	}
	if undone {
		v.LostByFailover++
	}
	if first > 1 {
		v.broken(Reported, about, "%d writes of message %s were told that they were the first", first, id)
	}
	if n < 0 {
		return
	}
	if candidate >= 0 {
		if !sure {
			m := &r.messages[r.messageOf(candidate, id)]
			if !r.same(m, n) {
				v.broken(Reported, about, "message %s is not there as it was sent", id)
			}
		}
		r.written.attempt[n], r.written.from[n], r.written.until[n] = candidate, from, until
		return
	}
	r.written.until[n] = until
	if !r.recorded(r.rows[n].stream) {
		return
	}
	switch {
	case said > 0:
		v.broken(Reported, about, "message %s was reported as a duplicate, and no writer can have written it before", id)
	default:
		v.broken(Phantom, about, "message %s is there as %s@%d, and all its writers were told that it was not written",
			id, r.streamName(r.rows[n].stream), r.rows[n].position)
	}
}

// refuted says that a later operation found that o did not happen.
func (r *run) refuted(all []int32, o *op) bool {
	if o.resolved == notWritten {
		return true
	}
	for _, i := range all {
		by := &r.ops[r.appends[r.messages[i].attempt].op]
		if by.fn == isResolve && by.kind == ok && by.class == notWritten && by.time > o.end {
			return true
		}
	}
	return false
}

// same says that a message is in row n as it was sent.
func (r *run) same(m *message, n int32) bool {
	x := &r.rows[n]
	return m.value == x.value && m.hash == x.hash && r.appends[m.attempt].stream == x.stream
}

// fits says that a message may be the one in row n: it is the same, and its expected version goes with
// where it is.
func fits(r *run, m *message, n int32) bool {
	a := &r.appends[m.attempt]
	at := r.rows[n].position
	for k := range a.n {
		if r.messages[a.first+k].row == n {
			at -= int64(k)
			break
		}
	}
	return r.same(m, n) && (a.expected == int64(messagestore.AnyVersion) || a.expected == at-1)
}

func (r *run) messageOf(attempt int32, id uuid.UUID) int32 {
	a := &r.appends[attempt]
	for k := range a.n {
		if r.messages[a.first+k].id == id {
			return a.first + k
		}
	}
	return a.first
}

// missing is told of an acknowledged message that is not in the final table. It reports whether a
// failover undid it, as it may.
func (r *run) missing(o *op, a *attempt, id uuid.UUID) bool {
	about := subject{ids: []uuid.UUID{id}}
	for i := range r.failovers {
		f := &r.failovers[i]
		if o.end <= f.time || o.time >= f.end {
			continue
		}
		about.ops = append(about.ops, f.ref)
		head := f.heads[r.category[a.stream]]
		if a.global != 0 && a.global <= head {
			r.verdict.broken(Lost, about, "message %s of %s was acknowledged at global position %d and is gone, though a failover kept all up to %d",
				id, r.streamName(a.stream), a.global, head)
			return false
		}
		r.undo(a.op)
		return true
	}
	r.verdict.broken(Lost, about, "message %s of %s was acknowledged and is not there", id, r.streamName(a.stream))
	return false
}

// undo notes that a failover undid an acknowledged write, as it may.
func (r *run) undo(op int32) {
	if o := &r.ops[op]; !o.undone {
		o.undone = true
		r.losses = append(r.losses, op)
	}
}

// writtenAgain says that a failover undid an acknowledged write, and that row n, which has the same id, was
// written after it.
func (r *run) writtenAgain(o *op, a *attempt, n int32) bool {
	for i := range r.failovers {
		f := &r.failovers[i]
		head := f.heads[r.category[a.stream]]
		if o.end <= f.time || o.time >= f.end || r.rows[n].global <= head || a.global != 0 && a.global <= head {
			continue
		}
		// An answer before the failover was over came from the old primary.
		return o.end < f.end || !r.isWhereItWasAnswered(a)
	}
	return false
}

func (r *run) isWhereItWasAnswered(a *attempt) bool {
	n := r.messages[a.first+a.n-1].row
	return n >= 0 && r.rows[n].position == a.version && (a.global == 0 || r.rows[n].global == a.global)
}

// compare holds one message of an acknowledged write against its row.
func (r *run) compare(m *message, a *attempt, o *op) {
	x := &r.rows[m.row]
	about := subject{ids: []uuid.UUID{m.id}}
	v := r.verdict
	v.checked(Reported, 1)
	switch {
	case x.stream != a.stream:
		v.broken(Reported, about, "message %s was written to %s and is in %s", m.id, r.streamName(a.stream), r.streamName(x.stream))
	case o.fn == isWrite && (m.value != x.value || m.hash != x.hash):
		v.broken(Reported, about, "message %s is not there as it was sent", m.id)
	}
	if m.id != r.messages[a.first+a.n-1].id {
		return
	}
	switch {
	case a.version != x.position:
		v.broken(Reported, about, "message %s was said to be at position %d of %s, and is at %d", m.id, a.version, r.streamName(a.stream), x.position)
	case a.global != 0 && a.global != x.global:
		v.broken(Reported, about, "message %s was said to have global position %d, and has %d", m.id, a.global, x.global)
	}
}

// checkBatches checks that an operation is there whole, in one piece and in order, or not at
// all.
func checkBatches(r *run) {
	for i := range r.ops {
		o := &r.ops[i]
		if o.fn != isWrite || o.kind == fail {
			continue
		}
		r.verdict.checked(Atomic, 1)
		about := subject{ops: []history.Ref{r.ref(o)}}
		there, all, others := 0, 0, false
		for k := range o.n {
			a := &r.appends[o.first+k]
			for j := range a.n {
				m := &r.messages[a.first+j]
				all++
				if m.row < 0 {
					about.ids = append(about.ids, m.id)
					continue
				}
				there++
				others = others || r.written.attempt[m.row] != o.first+k
			}
		}
		switch {
		case there == 0, o.kind == info && others, o.undone && r.wroteNothing(o):
			// The messages there are of another writer, and this write was refused for
			// them.
			continue
		case there < all:
			r.verdict.broken(Atomic, about, "of the %d messages of one write %d are there", all, there)
			continue
		}
		for k := range o.n {
			a := &r.appends[o.first+k]
			for j := int32(1); j < a.n; j++ {
				x, before := &r.rows[r.messages[a.first+j].row], &r.rows[r.messages[a.first+j-1].row]
				if x.stream != before.stream || x.position != before.position+1 {
					about.ids = []uuid.UUID{before.id, x.id}
					r.verdict.broken(Atomic, about, "two messages that were written one after the other are %s@%d and %s@%d",
						r.streamName(before.stream), before.position, r.streamName(x.stream), x.position)
					break
				}
			}
		}
	}
}

// wroteNothing says that nothing in the final table is by the operation.
func (r *run) wroteNothing(o *op) bool {
	for k := range o.n {
		a := &r.appends[o.first+k]
		for j := range a.n {
			if n := r.messages[a.first+j].row; n >= 0 && r.written.attempt[n] == o.first+k {
				return false
			}
		}
	}
	return true
}
