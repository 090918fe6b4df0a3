package check

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/soak/history"
)

// placed is a write that is in the final table, and its global positions there.
type placed struct {
	time, end int64
	low, high int64
	category  uint32
	row       int32
	attempt   int32
}

// checkOrder checks the second half of invariant 7: within a category, a write that began after a
// caller had been told of another has the higher global position. For a failover it checks that the
// lost messages are the end of the category.
func checkOrder(r *run) {
	var all []placed
	for i := range r.appends {
		a := &r.appends[i]
		o := &r.ops[a.op]
		if o.fn != isWrite || a.n == 0 {
			continue
		}
		first, last := r.messages[a.first].row, r.messages[a.first+a.n-1].row
		if first < 0 || last < 0 || r.written.attempt[first] != int32(i) {
			continue
		}
		p := placed{
			time: r.written.from[first], end: max(r.written.until[first], r.written.from[first]), low: r.rows[first].global, high: r.rows[last].global,
			category: r.category[a.stream], row: first, attempt: int32(i),
		}
		all = append(all, p)
	}
	r.verdict.checked(Monotone, len(all))
	slices.SortFunc(all, func(a, b placed) int { return cmp.Or(cmp.Compare(a.category, b.category), cmp.Compare(a.time, b.time)) })
	ends := slices.Clone(all)
	slices.SortFunc(ends, func(a, b placed) int { return cmp.Or(cmp.Compare(a.category, b.category), cmp.Compare(a.end, b.end)) })
	var highest *placed
	next := 0
	for i := range all {
		b := &all[i]
		if i > 0 && all[i-1].category != b.category {
			highest, next = nil, i
		}
		for next < len(ends) && ends[next].category == b.category && ends[next].end < b.time {
			if highest == nil || ends[next].high > highest.high {
				highest = &ends[next]
			}
			next++
		}
		if highest != nil && highest.high >= b.low {
			r.verdict.broken(Monotone, subject{
				ids: []uuid.UUID{r.rows[highest.row].id, r.rows[b.row].id}, ops: []history.Ref{r.refOf(highest.attempt), r.refOf(b.attempt)}, alone: true,
			}, "a write to %s has global position %d, and one that began after it was acknowledged has %d",
				r.categories.list[b.category], highest.high, b.low)
		}
	}
	r.checkLosses(all)
}

func (r *run) refOf(attempt int32) history.Ref {
	return r.ref(&r.ops[r.appends[attempt].op])
}

// checkLosses checks, across categories, that nothing survived a failover that was begun after
// something was acknowledged that did not.
func (r *run) checkLosses(all []placed) {
	for i := range r.failovers {
		f := &r.failovers[i]
		var lost *op
		for _, n := range r.losses {
			o := &r.ops[n]
			if o.end > f.time && o.time < f.end && (lost == nil || o.end < lost.end) {
				lost = o
			}
		}
		if lost == nil {
			continue
		}
		for k := range all {
			p := &all[k]
			if p.time > lost.end && p.time < f.end && p.high <= f.heads[p.category] {
				r.verdict.broken(Lost, subject{ops: []history.Ref{r.ref(lost), r.refOf(p.attempt), f.ref}, alone: true},
					"a failover undid a write that was acknowledged, and kept one that began after it")
				break
			}
		}
	}
}
