package check

import "github.com/google/uuid"

// checkTable checks the final table by itself, without its writers: invariants 4, 6 and
// the first half of 7.
func checkTable(r *run) {
	v := r.verdict
	for i := range r.rows {
		if i > 0 && r.rows[i].id == r.rows[i-1].id {
			v.broken(Unique, subject{ids: []uuid.UUID{r.rows[i].id}}, "two messages have id %s, in %s and %s",
				r.rows[i].id, r.streamName(r.rows[i-1].stream), r.streamName(r.rows[i].stream))
		}
	}
	v.checked(Unique, len(r.rows))
	at := make(map[int64]int32, len(r.rows))
	for n := range r.rows {
		x := &r.rows[n]
		if other, taken := at[x.global]; taken {
			v.broken(Unique, subject{ids: []uuid.UUID{r.rows[other].id, x.id}}, "two messages have global position %d, in %s and %s",
				x.global, r.streamName(r.rows[other].stream), r.streamName(x.stream))
		}
		at[x.global] = int32(n) //nolint:gosec // so many rows are not kept
	}
	for k, n := range r.byStream {
		x := &r.rows[n]
		if k == 0 || r.rows[r.byStream[k-1]].stream != x.stream {
			if x.position != 0 {
				v.broken(Dense, subject{ids: []uuid.UUID{x.id}}, "%s begins at position %d", r.streamName(x.stream), x.position)
			}
			continue
		}
		before := &r.rows[r.byStream[k-1]]
		pair := subject{ids: []uuid.UUID{before.id, x.id}}
		switch {
		case x.position == before.position:
			v.broken(Unique, pair, "two messages of %s have position %d", r.streamName(x.stream), x.position)
			continue
		case x.position != before.position+1:
			v.broken(Dense, pair, "after position %d of %s comes %d", before.position, r.streamName(x.stream), x.position)
		}
		if x.global <= before.global && x.id != before.id {
			v.broken(Monotone, pair, "positions %d and %d of %s have global positions %d and %d",
				before.position, x.position, r.streamName(x.stream), before.global, x.global)
		}
	}
	v.checked(Dense, len(r.rows))
	v.checked(Monotone, len(r.rows))
}
