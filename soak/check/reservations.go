package check

import (
	"cmp"
	"slices"

	"github.com/google/uuid"
)

// checkReservations checks invariant 16.
func checkReservations(r *run) {
	v := r.verdict
	slices.SortFunc(r.reserves, func(a, b reserve) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.time, b.time)) })
	slices.SortFunc(r.acked, func(a, b ack) int { return cmp.Compare(a.key, b.key) })
	inStore := make([]int32, len(r.keys.list))
	for i := range r.rows {
		inStore[r.rows[i].effect]++
	}
	rowsOf := map[uint32][]int32{}
	for i := range r.reserves {
		rowsOf[r.reserves[i].stream] = nil
	}
	for _, n := range r.byStream {
		if _, wanted := rowsOf[r.rows[n].stream]; wanted {
			rowsOf[r.rows[n].stream] = append(rowsOf[r.rows[n].stream], n)
		}
	}
	inHand := r.inHand()
	nextAck := 0
	for at := 0; at < len(r.reserves); {
		end := at + 1
		for end < len(r.reserves) && r.reserves[end].key == r.reserves[at].key {
			end++
		}
		key := r.reserves[at].key
		for nextAck < len(r.acked) && r.acked[nextAck].key < key {
			nextAck++
		}
		acks := nextAck
		for acks < len(r.acked) && r.acked[acks].key == key {
			acks++
		}
		v.checked(Reservation, 1)
		checkKey(r, r.reserves[at:end], r.acked[nextAck:acks], rowsOf[r.reserves[at].stream], int(inStore[key]), inHand[key])
		at = end
	}
	reserved := map[uint32]bool{}
	for i := range r.reserves {
		reserved[r.reserves[i].key] = true
	}
	for key, n := range inStore {
		if key != 0 && n > 0 && !reserved[uint32(key)] {
			v.broken(Reservation, r.effectsOf(uint32(key)), "key %q has an effect, and no command tried to reserve it", r.keys.list[key])
		}
	}
}

// effectsOf makes a subject of a key's effects in the store.
func (r *run) effectsOf(key uint32) subject {
	about := subject{key: r.keys.list[key]}
	for i := range r.rows {
		if r.rows[i].effect == key {
			about.ids = append(about.ids, r.rows[i].id)
		}
	}
	return about
}

// inHand counts the commands of each key that a failover undid while they were in flight: their
// handler goes on until it is told, so their effects are in the store that there is since, and no
// reservation.
func (r *run) inHand() map[uint32]int {
	type command struct {
		key    uint32
		global int64
	}
	counted, counts := map[command]bool{}, map[uint32]int{}
	for i := range r.deliveries {
		d := &r.deliveries[i]
		c := command{d.key, d.global}
		if d.key == 0 || counted[c] {
			continue
		}
		l := &r.lives[d.life]
		for k := range r.failovers {
			if f := &r.failovers[k]; l.time < f.end && d.end > f.time && d.global > f.heads[l.category] {
				counted[c] = true
				counts[d.key]++
				break
			}
		}
	}
	return counts
}

// checkKey looks at all that was done with one key. Of its effects in the store so many may be of
// commands that were undone in flight.
func checkKey(r *run, attempts []reserve, acked []ack, rows []int32, effects, inHand int) {
	v := r.verdict
	number := attempts[0].key
	key := r.keys.list[number]
	outside := int(r.effects[number])
	about := subject{key: key}
	attempts, acked = r.notUndone(attempts, acked, rows)
	for _, n := range rows {
		about.ids = append(about.ids, r.rows[n].id)
	}
	told := slices.ContainsFunc(attempts, func(a reserve) bool { return a.kind == ok })
	switch {
	case len(rows) > 1:
		v.broken(Reservation, about, "key %q was reserved %d times", key, len(rows))
		return
	case len(rows) == 0 && (told || len(acked) > 0):
		v.broken(Reservation, about, "key %q was acknowledged, and nothing is reserved", key)
		return
	case len(rows) == 0 && effects > inHand:
		v.broken(Reservation, r.effectsOf(number), "key %q has an effect in the store, and nothing is reserved", key)
		return
	case len(rows) == 0:
		return
	}
	winner := r.rows[rows[0]].value
	if !slices.ContainsFunc(attempts, func(a reserve) bool { return a.value == winner }) {
		v.broken(Reservation, about, "key %q was reserved by a command that was never sent", key)
		return
	}
	// In the store once, and outside it at least once, if the winner was handled.
	switch {
	case effects > 1+inHand:
		v.broken(Reservation, about, "key %q has its effect in the store %d times", key, effects)
	case effects == 0 && len(acked) > 0:
		v.broken(Reservation, about, "key %q was acknowledged, and has no effect in the store", key)
	case outside == 0 && len(acked) > 0 && r.counts["effect"] > 0:
		v.broken(Reservation, about, "key %q was acknowledged, and has no effect outside the store", key)
	}
	// A sender that wanted the key for something else is told so, and never
	// acknowledged.
	others := map[uuid.UUID]bool{} // by source: whether it was told
	for _, a := range attempts {
		if a.value == winner {
			if a.kind == fail && a.class == keyReused {
				v.broken(Reservation, about, "key %q was reserved by an equal command, which was told that it was used for something else", key)
			}
			continue
		}
		others[a.source] = others[a.source] || a.kind == fail && a.class == keyReused
		if a.kind == ok {
			v.broken(Reservation, about, "key %q was reserved by one command, and a different one was told that it was a duplicate", key)
			return
		}
	}
	for source, toldSo := range others {
		if !toldSo && !r.undone(source) {
			about.ids = append(about.ids, source)
			v.broken(Reservation, about, "key %q was reserved by one command, and a different one was never told so", key)
		}
	}
	for _, a := range acked {
		if _, other := others[a.source]; other {
			about.ids = append(about.ids, a.source)
			v.broken(Reservation, about, "key %q was reserved by one command, and a different one was acknowledged", key)
		}
	}
}

// undone says that a failover undid a command. Whether that was right is invariant 1's.
func (r *run) undone(source uuid.UUID) bool { return len(r.failovers) > 0 && r.find(source) < 0 }

// notUndone leaves away the answers about a key before a failover that undid its
// reservation.
func (r *run) notUndone(attempts []reserve, acked []ack, rows []int32) ([]reserve, []ack) {
	for i := range r.failovers {
		f := &r.failovers[i]
		if len(rows) > 0 && r.rows[rows[0]].global <= f.heads[r.category[r.rows[rows[0]].stream]] {
			continue // it kept the reservation
		}
		// An answer before the failover was over came from the old primary. Of operations under way then the
		// outcome is not known.
		attempts = slices.DeleteFunc(slices.Clone(attempts), func(a reserve) bool { return a.end > f.time && a.end < f.end })
		for k := range attempts {
			if a := &attempts[k]; a.kind == ok && a.end > f.time && a.time < f.end {
				a.kind = info
			}
		}
		// A message that was undone while it was in flight may be handled after the failover.
		inHand := func(a ack) bool {
			l := &r.lives[a.life]
			return l.time < f.end && a.global > f.heads[l.category]
		}
		acked = slices.DeleteFunc(slices.Clone(acked), func(a ack) bool { return a.end > f.time && (a.time < f.end || inHand(a)) })
	}
	return attempts, acked
}
