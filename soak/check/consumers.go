package check

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// A group is one consumer of one category, all its members and lives together.
type group struct {
	r          *run
	name       string
	category   uint32
	start      int64
	lives      []int32
	deliveries []int32 // by time
	parks      []int32
	puts       []int32 // by time

	rows   []int32 // of the category from the start position on, by global position
	began  []int64 // for each of them: when it was first delivered
	done   []int64 // and when it was first handled, or given up on
	parked []int64 // and when that was begun
}

// checkConsumers checks invariants 10 to 14 for each consumer.
func checkConsumers(r *run) {
	groups := make([]group, len(r.consumers.list))
	for i := range groups {
		groups[i] = group{r: r, name: r.consumers.list[i], start: history.Never}
	}
	for i := range r.lives {
		l := &r.lives[i]
		if !l.known {
			r.verdict.broken(Complete, subject{ops: []history.Ref{l.ref}}, "a consumer's events name the run %v, of which there is nothing", l.ref)
			return
		}
		g := &groups[l.consumer]
		g.category, g.start = l.category, min(g.start, l.start)
		g.lives = append(g.lives, int32(i))
	}
	for i := range r.deliveries {
		g := &groups[r.lives[r.deliveries[i].life].consumer]
		g.deliveries = append(g.deliveries, int32(i))
	}
	for i := range r.parks {
		g := &groups[r.lives[r.parks[i].life].consumer]
		g.parks = append(g.parks, int32(i))
	}
	for i := range r.puts {
		g := &groups[r.lives[r.puts[i].life].consumer]
		g.puts = append(g.puts, int32(i))
	}
	for i := range groups {
		groups[i].fill()
		groups[i].checkComplete()
		groups[i].checkOrder()
		if !groups[i].alone() {
			groups[i].checkReplicas()
			continue
		}
		groups[i].checkSkips()
		groups[i].checkPuts()
		groups[i].checkRedeliveries()
	}
}

// alone reports whether the group has one process at a time, and is checked by the positions that it recorded: a failover
// may undo its states.
func (g *group) alone() bool {
	return len(g.lives) == 0 || g.r.lives[g.lives[0]].alone
}

// index returns which of the group's rows a row is, or -1.
func (g *group) index(n int32) int {
	if n < 0 {
		return -1
	}
	x := &g.r.rows[n]
	if g.r.category[x.stream] != g.category {
		return -1
	}
	i, found := sort.Find(len(g.rows), func(i int) int { return cmp.Compare(x.global, g.r.rows[g.rows[i]].global) })
	if !found {
		return -1
	}
	return i
}

func (g *group) fill() {
	r := g.r
	from := sort.Search(len(r.byGlobal), func(k int) bool {
		x := &r.rows[r.byGlobal[k]]
		c := r.category[x.stream]
		return c > g.category || c == g.category && x.global >= g.start
	})
	to := from
	for to < len(r.byGlobal) && r.category[r.rows[r.byGlobal[to]].stream] == g.category {
		to++
	}
	g.rows = r.byGlobal[from:to]
	g.began, g.done, g.parked = never(len(g.rows)), never(len(g.rows)), never(len(g.rows))
	for _, n := range g.deliveries {
		d := &r.deliveries[n]
		if i := g.index(d.row); i >= 0 {
			g.began[i] = min(g.began[i], d.time)
			if d.kind == ok {
				g.done[i] = min(g.done[i], d.end)
			}
		}
	}
	for _, n := range g.parks {
		d := &r.parks[n]
		if i := g.index(d.row); i >= 0 && (d.kind == ok || d.kind == info && g.hasLetter(r.rows[d.row].id)) {
			// Its outcome may be unknown in the record, and known to the consumer.
			g.parked[i] = min(g.parked[i], d.time)
			at := d.end
			if d.kind == info {
				at = d.time
			}
			g.done[i] = min(g.done[i], at)
		}
	}
	for _, n := range g.parks { // a consumer that meets a conflict learns that another has parked it
		d := &r.parks[n]
		if i := g.index(d.row); i >= 0 && d.kind == fail && d.class == conflict && g.parked[i] < d.end {
			g.done[i] = min(g.done[i], d.end)
		}
	}
}

// hasLetter reports whether the dead letter of a message is in the final table. A failover may
// have undone it.
func (g *group) hasLetter(id uuid.UUID) bool {
	if len(g.r.failovers) > 0 {
		return true
	}
	at := strings.LastIndex(g.name, " of ")
	category := messagestore.Category(g.name[at+len(" of "):])
	n, known := g.r.streams.numbers[string(category.WithType("deadLetter").Stream(g.name[:at]).With(id.String()))]
	return known && g.r.last[n] >= 0
}

func never(n int) []int64 {
	times := make([]int64, n)
	for i := range times {
		times[i] = history.Never
	}
	return times
}

// about makes a subject of messages, as this consumer met them.
func (g *group) about(rows ...int32) subject {
	s := subject{consumer: g.name}
	for _, n := range rows {
		s.ids = append(s.ids, g.r.rows[n].id)
	}
	return s
}

// checkComplete checks invariant 10.
func (g *group) checkComplete() {
	g.r.verdict.checked(Complete, len(g.rows))
	for i, n := range g.rows {
		if g.done[i] == history.Never {
			x := &g.r.rows[n]
			g.r.verdict.broken(Complete, g.about(n), "%s never handled %s@%d", g.name, g.r.streamName(x.stream), x.position)
		}
	}
}

// checkSkips checks invariant 11: every message before a checkpoint was done with before it was
// stored.
func (g *group) checkSkips() {
	latest := make([]int32, len(g.rows)) // for each row, of those up to it, the index of that which was done last
	for i := range g.rows {
		latest[i] = int32(i)
		if i > 0 && g.done[latest[i-1]] >= g.done[i] {
			latest[i] = latest[i-1]
		}
	}
	for _, n := range g.puts {
		p := &g.r.puts[n]
		if p.kind == fail {
			continue
		}
		g.r.verdict.checked(NoSkip, 1)
		limit := p.position
		for k := range g.r.failovers {
			if f := &g.r.failovers[k]; f.end > p.time {
				// Beyond its head the positions are others now.
				limit = min(limit, f.heads[g.category]+1)
			}
		}
		before := sort.Search(len(g.rows), func(i int) bool { return g.r.rows[g.rows[i]].global >= limit })
		if before == 0 {
			continue
		}
		i := latest[before-1]
		// A message that was never done is invariant 10's too: the first put beyond it
		// tells how.
		if g.done[i] >= p.time {
			x := &g.r.rows[g.rows[i]]
			about := g.about(g.rows[i])
			about.ops = append(about.ops, g.putRef(n))
			g.r.verdict.broken(NoSkip, about, "%s recorded position %d before it had handled %s@%d at %d",
				g.name, p.position, g.r.streamName(x.stream), x.position, x.global)
			break
		}
	}
}

func (g *group) putRef(n int32) history.Ref {
	p := &g.r.puts[n]
	return history.Ref{Proc: g.r.lives[p.life].ref.Proc, Op: p.number}
}

// checkOrder checks invariant 12.
func (g *group) checkOrder() {
	r := g.r
	byStream := make([]int32, len(g.rows))
	for i := range byStream {
		byStream[i] = int32(i)
	}
	slices.SortFunc(byStream, func(i, j int32) int {
		a, b := &r.rows[g.rows[i]], &r.rows[g.rows[j]]
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.position, b.position))
	})
	before := make([]int32, len(g.rows)) // the one before in its stream, -1
	for k, i := range byStream {
		before[i] = -1
		if k > 0 && r.rows[g.rows[byStream[k-1]]].stream == r.rows[g.rows[i]].stream {
			before[i] = byStream[k-1]
		}
	}
	for i, b := range before {
		if b < 0 || g.began[i] == history.Never {
			continue
		}
		if g.began[b] > g.began[i] && g.parked[b] > g.began[i] {
			x := &r.rows[g.rows[i]]
			r.verdict.broken(Order, g.about(g.rows[b], g.rows[i]), "%s was first handed %s@%d, and %s@%d only after it or never", g.name,
				r.streamName(x.stream), x.position, r.streamName(x.stream), r.rows[g.rows[b]].position)
		}
	}

	// Within one life, each stream goes on from the message before. Where a life begins with a stream,
	// the messages before were done.
	type place struct {
		life   int32
		stream uint32
	}
	at := map[place]int64{}
	for _, n := range g.deliveries {
		d := &r.deliveries[n]
		i := g.index(d.row)
		if i < 0 || d.again || g.parked[i] < d.time {
			continue
		}
		r.verdict.checked(Order, 1)
		x := &r.rows[d.row]
		key := place{d.life, x.stream}
		last, known := at[key]
		at[key] = x.position
		if known && x.position <= last {
			r.verdict.broken(Order, g.about(d.row), "in one run %s was handed %s@%d after %d", g.name, r.streamName(x.stream), x.position, last)
			continue
		}
		for b := before[i]; b >= 0 && (!known || r.rows[g.rows[b]].position >= last); b = before[b] {
			if g.done[b] >= d.time {
				y := &r.rows[g.rows[b]]
				// Two that were never delivered in order are told above.
				if g.began[b] <= d.time {
					r.verdict.broken(Order, g.about(g.rows[b], d.row), "%s was handed %s@%d, and had not done %d",
						g.name, r.streamName(x.stream), x.position, y.position)
				}
				break
			}
			if !known {
				// Messages before the last handled one were looked at when that was
				// delivered.
				break
			}
		}
	}
}

// checkPuts checks invariant 13.
func (g *group) checkPuts() {
	r := g.r
	r.verdict.checked(Positions, len(g.puts))
	type holder struct {
		put     int32          // the last that was recorded
		over    map[int32]bool // lives that another has taken over from
		open    []int32        // lives that had not ended when the last one began
		highest *put           // the highest put of the lives that had ended, nil for none
		of      int32          // the number of the highest put
	}
	holders := map[int]*holder{} // by the failovers before
	answered := g.answered()
	recorded := int64(0) // the highest so far, from where another run goes on
	for _, n := range g.puts {
		p := &r.puts[n]
		if p.kind != fail {
			if limit := max(recorded, answered(p)); p.position > limit {
				r.verdict.broken(Positions, subject{consumer: g.name, ops: []history.Ref{g.putRef(n)}},
					"%s recorded position %d, and had been answered nothing beyond %d", g.name, p.position, limit)
			}
			recorded = max(recorded, p.position)
		}
		if p.kind != ok {
			continue
		}
		epoch := 0
		for i := range r.failovers {
			if r.failovers[i].end <= p.time {
				epoch++
			}
		}
		h := holders[epoch]
		if h == nil {
			h = &holder{put: n, over: map[int32]bool{}}
			holders[epoch] = h
		}
		h.open = append(slices.DeleteFunc(h.open, func(m int32) bool {
			q := &r.puts[m]
			if q.end >= p.time {
				return false // at the same time: which was first is not known
			}
			if h.highest == nil || q.position > h.highest.position {
				h.highest, h.of = q, m
			}
			return true
		}), n)
		if h.highest != nil && p.position < h.highest.position {
			r.verdict.broken(Positions, subject{consumer: g.name, ops: []history.Ref{g.putRef(h.of), g.putRef(n)}},
				"%s recorded position %d after %d", g.name, p.position, h.highest.position)
		}
		last := &r.puts[h.put]
		if last.end >= p.time {
			continue
		}
		if last.life != p.life {
			h.over[last.life] = true
			if h.over[p.life] {
				r.verdict.broken(Positions, subject{consumer: g.name, ops: []history.Ref{g.putRef(h.put), g.putRef(n)}},
					"two runs of %s recorded positions in turn, and neither was fenced", g.name)
			}
		}
		h.put = n
	}
}

// answered returns how far a consumer had read when it stored a checkpoint: by its own pages,
// or, where they are not in the history, by the messages that there are.
func (g *group) answered() func(*put) int64 {
	r := g.r
	most := map[int32][]put{}
	for i := range r.fetches {
		f := r.fetches[i]
		if r.lives[f.life].consumer != r.lives[g.lives[0]].consumer {
			continue
		}
		if all := most[f.life]; len(all) > 0 {
			f.position = max(f.position, all[len(all)-1].position)
		}
		most[f.life] = append(most[f.life], f)
	}
	end := int64(0)
	if len(g.rows) > 0 {
		end = r.rows[g.rows[len(g.rows)-1]].global + 1
	}
	if len(r.failovers) > 0 {
		end = history.Never // lost messages are not in the table
	}
	return func(p *put) int64 {
		if len(most) == 0 {
			return max(end, g.start)
		}
		pages := most[p.life]
		n := sort.Search(len(pages), func(i int) bool { return pages[i].time >= p.time })
		if n == 0 {
			return r.lives[p.life].start
		}
		return pages[n-1].position
	}
}

// checkRedeliveries checks invariant 14: each run redelivers at most an interval and a batch of the
// messages of those before it, and as much of each that was at work beside it.
func (g *group) checkRedeliveries() {
	r := g.r
	allowed := g.allowances()
	seen := map[int32]int64{} // when a row was last delivered
	kept := g.kept()
	again := map[int32]int64{}
	first := map[int32]uuid.UUID{}
	for _, n := range g.deliveries {
		d := &r.deliveries[n]
		i := g.index(d.row)
		if i < 0 || d.again || g.parked[i] < d.time {
			continue
		}
		before, was := seen[d.row]
		seen[d.row] = d.time
		if !was || g.rewound(d, before, kept) {
			continue
		}
		if again[d.life]++; again[d.life] == 1 {
			first[d.life] = r.rows[d.row].id
		}
	}
	r.verdict.checked(RedeliveryBound, len(g.deliveries))
	for _, life := range sorted(again) {
		if times := again[life]; times > allowed[life] {
			r.verdict.broken(RedeliveryBound, subject{consumer: g.name, ids: []uuid.UUID{first[life]}, ops: []history.Ref{r.lives[life].ref}},
				"a run of %s was handed %d messages again, and may be %d; the first of them", g.name, times, allowed[life])
		}
	}
}

// allowances returns how many messages may be redelivered to each life.
func (g *group) allowances() map[int32]int64 {
	r := g.r
	active := map[int32]span{} // from the begin of each life to the last that is known of it
	for _, n := range g.lives {
		active[n] = span{r.lives[n].time, r.lives[n].time}
	}
	sign := func(life int32, at int64) {
		s := active[life]
		active[life] = span{s.from, max(s.to, at)}
	}
	for _, n := range g.deliveries {
		sign(r.deliveries[n].life, r.deliveries[n].time)
	}
	for _, n := range g.puts {
		sign(r.puts[n].life, r.puts[n].time)
	}
	most := int64(0)
	for _, n := range g.lives {
		most = max(most, r.lives[n].allowance)
	}
	all := slices.Clone(g.lives)
	slices.SortFunc(all, func(i, j int32) int { return cmp.Compare(active[i].from, active[j].from) })
	allowed := map[int32]int64{}
	for k, n := range all {
		allowed[n] += most
		for _, other := range all[k+1:] {
			if active[other].from > active[n].to {
				break
			}
			allowed[n] += most
			allowed[other] += most
		}
	}
	return allowed
}

// kept returns, for each failover, from where on messages may be redelivered: the highest position that was recorded
// before the copy stopped to follow, and that no failover before has undone.
func (g *group) kept() []int64 {
	all := make([]int64, len(g.r.failovers))
	for i := range all {
		undone := func(p *put) bool {
			return slices.ContainsFunc(g.r.failovers[:i], func(f failover) bool { return p.end >= f.time && p.time < f.end })
		}
		for _, n := range g.puts {
			if p := &g.r.puts[n]; p.kind == ok && p.end < g.r.failovers[i].time && !undone(p) {
				all[i] = max(all[i], p.position)
			}
		}
	}
	return all
}

// rewound says that a failover since the time before took away the position with which d would not have been
// redelivered.
func (g *group) rewound(d *delivery, before int64, kept []int64) bool {
	for i, position := range kept {
		f := &g.r.failovers[i]
		if before < f.end && f.end <= d.time && g.r.rows[d.row].global >= position {
			return true
		}
	}
	return false
}

// checkReads checks invariant 15. Most of it was done when the histories were read.
func checkReads(r *run) {
	for _, x := range r.reads {
		if r.mayBeLost(&x) {
			continue
		}
		r.verdict.broken(ReadHonesty, subject{ids: []uuid.UUID{x.id}, ops: []history.Ref{x.ref}}, "a reader saw message %s, but %s", x.id, x.what)
	}
}

// mayBeLost says that a message that was read was written before a failover, and undone by it. If there is
// one with its id, it was written after that.
func (r *run) mayBeLost(x *reading) bool {
	n := r.find(x.id)
	if n >= 0 && r.rows[n].global == x.global && r.rows[n].position == x.position {
		return false
	}
	began := x.time
	if x.life >= 0 {
		began = r.lives[x.life].time // it goes on with messages in flight, until it is told
	}
	for i := range r.failovers {
		f := &r.failovers[i]
		head := f.heads[x.category]
		if x.global <= head || began >= f.end || n >= 0 && r.rows[n].global <= head {
			continue
		}
		for _, n := range r.sent(x.id) {
			if o := &r.ops[r.appends[r.messages[n].attempt].op]; o.kind != fail && o.time < f.end {
				return true
			}
		}
		if r.unrecorded[x.category] {
			return true
		}
	}
	return false
}
