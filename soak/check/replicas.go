package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// slots is how many parts a category has for a group that processes join.
const slots = 32

// A State is what a checkpoint says of a group that processes join. One without parts says that all slots are
// free, at its position.
type State struct {
	Time     time.Time                   `json:"time"` // by the store's clock
	Position messagestore.GlobalPosition `json:"position"`
	By       string                      `json:"by,omitempty"`
	Members  []Member                    `json:"members,omitempty"`
	Parts    []Part                      `json:"parts,omitempty"`
}

// A Member is one of a [State].
type Member struct {
	ID      string `json:"id"`
	Lease   int64  `json:"lease"` // in milliseconds
	Resting bool   `json:"resting,omitempty"`
	Whole   bool   `json:"whole,omitempty"` // it handles the category in order
}

// A Part is slots, as bits, of one holder at one position.
type Part struct {
	Holder   string                      `json:"holder,omitempty"`
	Slots    uint32                      `json:"slots"`
	Position messagestore.GlobalPosition `json:"position"`
}

// Replicas counts what happened to groups that processes join.
type Replicas struct {
	States    int // that were stored
	Joins     int
	Leaves    int // that a member itself stored
	Takeovers int // of members whose lease was over
	Kills     int // of members that the nemesis aimed at
	Stops     int // of members, for longer than their lease
	Handled   int64
	Again     int64         // deliveries of a message that had been delivered
	Late      int64         // deliveries by a member that had been removed
	Latest    time.Duration // after its removal, or after its process went on
	Lease     time.Duration // the longest

	// Gaps are the times from the kill or the stop of a member that had slots to the state in which
	// others have them all, where another was there to take them.
	Gaps []time.Duration
}

// Within is how many gaps were at most so many leases.
func (c *Replicas) Within(leases int) (n int) {
	for _, gap := range c.Gaps {
		if gap <= time.Duration(leases)*c.Lease {
			n++
		}
	}
	return n
}

// stored is a state as it is in the final table.
type stored struct {
	State
	id     uuid.UUID
	stream uint32
	at     int64 // its position in the stream
}

// A seatWrite is a process's write of a state.
type seatWrite struct {
	put
	id   uuid.UUID
	by   string
	proc string
}

func (r *run) addSeatWrite(o *history.Operation, p *put) {
	if len(o.Appends) == 1 && len(o.Appends[0].Messages) == 1 {
		r.seatWrites = append(r.seatWrites, seatWrite{put: *p, id: o.Appends[0].Messages[0].ID, by: o.Target, proc: o.Proc})
	}
}

// A seatStep is a state of one group, from the one before on.
type seatStep struct {
	*stored
	by      string // the member that wrote it
	write   *seatWrite
	ran     int32 // the run of the member that wrote before it, -1 for none
	end     int64 // when it was there at the latest
	holder  [slots]string
	at      [slots]int64
	members map[string]Member
}

// A seat is what is known of a member.
type seat struct {
	proc    string
	life    int32     // that wrote for it last
	counts  time.Time // when its lease began to count
	resting bool
	removed *seatStep // that removed it, nil for none
	gone    bool      // it left, or was removed
}

// replicas is the check of one group that processes join.
type replicas struct {
	*group
	chain    []*seatStep
	seats    map[string]*seat
	bySlot   [slots][]int32 // of the group's rows
	latest   [slots][]int32 // for each of them, of those up to it, that which was done last
	memberOf map[int32]string
	answered func(*put) int64
	doneBy   map[int32]map[int32]int64 // by life: when it had handled each row
	first    map[int32]*seatStep       // of each life: the state with which it begins
	counts   *Replicas
}

// checkReplicas checks invariants 11, 13, 14 and 25 for a group that processes join: each state that was
// stored beside the one before it, and each run beside the state with which it began.
func (g *group) checkReplicas() {
	r := g.r
	if r.verdict.Replicas == nil {
		r.verdict.Replicas = &Replicas{}
	}
	c := &replicas{group: g, seats: map[string]*seat{}, memberOf: map[int32]string{}, doneBy: map[int32]map[int32]int64{}, first: map[int32]*seatStep{}, counts: r.verdict.Replicas}
	c.answered = g.answered()
	c.index()
	c.load()
	before := c.start()
	allowed := map[int32]int64{}
	var owners [slots][]string // the holders of each slot since its position moved
	for _, s := range c.chain {
		c.checkState(s)
		c.checkMembers(before, s)
		c.checkSlots(before, s)
		c.checkDone(before, s)
		if s.write != nil && c.first[s.write.life] == s {
			allowed[s.write.life] = c.allowance(s, &owners)
		}
		for i := range slots {
			if s.at[i] != before.at[i] {
				owners[i] = nil
			}
			if h := s.holder[i]; h != "" && !slices.Contains(owners[i], h) {
				owners[i] = append(owners[i], h)
			}
		}
		before = s
	}
	c.checkDeliveries(allowed)
	c.measureGaps()
}

// index finds the rows of each slot.
func (c *replicas) index() {
	for i, n := range c.rows {
		s := c.r.streamName(c.r.rows[n].stream).GroupMember(slots)
		last := int32(i)
		if all := c.latest[s]; len(all) > 0 && c.done[all[len(all)-1]] >= c.done[i] {
			last = all[len(all)-1]
		}
		c.bySlot[s], c.latest[s] = append(c.bySlot[s], int32(i)), append(c.latest[s], last)
	}
}

// load finds the states of the group, in their order, with their writers.
func (c *replicas) load() {
	r := c.r
	writes, ends := map[uuid.UUID]*seatWrite{}, map[uuid.UUID]int64{}
	for i := range r.seatWrites {
		w := &r.seatWrites[i]
		if r.lives[w.life].consumer != r.lives[c.lives[0]].consumer {
			continue
		}
		if w.by != "" {
			c.memberOf[w.life] = w.by
		}
		if old := writes[w.id]; old == nil || w.time < old.time {
			writes[w.id] = w
		}
		if w.kind == ok {
			if end, known := ends[w.id]; !known || w.end < end {
				ends[w.id] = w.end
			}
		}
	}
	streams := map[uint32]bool{}
	for i := range r.states {
		if writes[r.states[i].id] != nil {
			streams[r.states[i].stream] = true
		}
	}
	for i := range r.states {
		if s := &r.states[i]; streams[s.stream] {
			c.chain = append(c.chain, &seatStep{stored: s, write: writes[s.id], by: s.By, end: history.Never})
		}
	}
	slices.SortFunc(c.chain, func(a, b *seatStep) int {
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.stored.at, b.stored.at))
	})
	next := int64(history.Never)
	for _, s := range slices.Backward(c.chain) {
		if end, known := ends[s.id]; known { // a state is there before the next is written
			next = min(next, end)
		} else if s.write != nil && next == history.Never {
			next = s.write.end
		}
		s.end = next
		if w := s.write; w != nil {
			if s.by == "" {
				s.by = c.memberOf[w.life]
			}
			next = min(next, w.end)
		}
	}
	for _, s := range c.chain {
		if w := s.write; w != nil && c.first[w.life] == nil {
			c.first[w.life] = s
		}
		s.members = map[string]Member{}
		for _, m := range s.Members {
			s.members[m.ID] = m
			c.counts.Lease = max(c.counts.Lease, time.Duration(m.Lease)*time.Millisecond)
		}
	}
	for _, n := range c.deliveries {
		d := &r.deliveries[n]
		if i := c.group.index(d.row); i >= 0 && d.kind == ok {
			if c.doneBy[d.life] == nil {
				c.doneBy[d.life] = map[int32]int64{}
			}
			c.doneBy[d.life][int32(i)] = d.end
		}
	}
	c.counts.States += len(c.chain)
	r.verdict.checked(Seats, len(c.chain))
}

// start is the state before the first.
func (c *replicas) start() *seatStep {
	s := &seatStep{members: map[string]Member{}}
	for i := range slots {
		s.at[i] = c.group.start
	}
	return s
}

func (c *replicas) about(s *seatStep) subject {
	about := subject{consumer: c.name}
	if s.write != nil {
		about.ops = append(about.ops, history.Ref{Proc: s.write.proc, Op: s.write.number})
	}
	return about
}

func (c *replicas) broken(i Invariant, s *seatStep, format string, args ...any) {
	c.r.verdict.broken(i, c.about(s), "%s, state %d: %s", c.name, s.stored.at, fmt.Sprintf(format, args...))
}

// checkState fills in the slots of a state, and checks that it has each once, of a member.
func (c *replicas) checkState(s *seatStep) {
	if len(s.Parts) == 0 {
		for i := range slots {
			s.at[i] = int64(s.Position)
		}
		return
	}
	var all uint32
	lowest := int64(history.Never)
	for _, p := range s.Parts {
		if all&p.Slots != 0 {
			c.broken(Seats, s, "a slot is there twice")
		}
		all |= p.Slots
		if _, is := s.members[holderOf(p)]; holderOf(p) != "" && !is {
			c.broken(Seats, s, "%s holds slots and is no member", p.Holder)
		}
		for i := range slots {
			if p.Slots&(1<<i) != 0 {
				s.holder[i], s.at[i] = holderOf(p), int64(p.Position)
			}
		}
		lowest = min(lowest, int64(p.Position))
	}
	if all != ^uint32(0) {
		c.broken(Seats, s, "a slot is missing")
	}
	if lowest != int64(s.Position) {
		c.broken(Positions, s, "its position is %d, and the lowest of its slots is %d", s.Position, lowest)
	}
}

func holderOf(p Part) string {
	if p.Holder == uuid.Nil.String() {
		return ""
	}
	return p.Holder
}

// checkMembers checks the members that came and went, and that a member that was removed had been silent for its lease.
func (c *replicas) checkMembers(before, s *seatStep) {
	me := c.seats[s.by]
	switch {
	case s.by == "":
		return // its writer is invariant 2's
	case me == nil, me.gone && s.write != nil && s.write.life != me.life: // with no slots, as any newcomer
		me = &seat{life: -1}
		c.seats[s.by] = me
		if s.write != nil {
			me.proc = s.write.proc
		}
		c.counts.Joins++
	case me.gone:
		c.broken(Seats, s, "%s wrote it, which was in the group no more", s.by)
	case s.write != nil && s.write.proc != me.proc:
		c.broken(Seats, s, "%s and %s write as one member", me.proc, s.write.proc)
	}
	s.ran = me.life
	if s.write != nil {
		me.life = s.write.life
	}
	for _, id := range sorted(s.members) {
		if _, was := before.members[id]; !was && id != s.by {
			c.broken(Seats, s, "%s adds another member, %s", s.by, id)
		}
	}
	for _, id := range sorted(before.members) {
		if _, is := s.members[id]; is {
			continue
		}
		x := c.seats[id]
		if x == nil {
			continue // it was told above that another has added it
		}
		x.gone = true
		if id == s.by {
			c.counts.Leaves++
			continue
		}
		x.removed = s
		c.counts.Takeovers++
		lease := time.Duration(before.members[id].Lease) * time.Millisecond
		silent := s.Time.Sub(x.counts)
		if !c.jumped() && (x.resting || silent < lease-clockStep) {
			c.broken(Seats, s, "%s removed %s, whose lease of %v was not over: it had counted for %v", s.by, id, lease, silent.Round(time.Millisecond))
		}
	}
	for id, m := range s.members {
		x := c.seats[id]
		if x == nil {
			continue
		}
		if id == s.by || x.resting && !m.Resting {
			x.counts = s.Time
		}
		x.resting = m.Resting
	}
}

// clockStep is how much the clocks of a store and of its clients may drift apart in a lease.
const clockStep = 5 * time.Millisecond

// jumped says that the clock of the store did not go as time does.
func (c *replicas) jumped() bool {
	return slices.ContainsFunc(c.r.faults, func(f fault) bool { return f.name == "clock" })
}

// checkSlots checks that a member moved only what is its own, took only what is free, and had handled what
// is before a position.
func (c *replicas) checkSlots(before, s *seatStep) {
	skipped := false
	answered := int64(-1)
	for i := range slots {
		from, to := before.holder[i], s.holder[i]
		_, stays := s.members[from]
		switch {
		case from == to:
		case to != "" && to != s.by:
			c.broken(Seats, s, "%s gave slot %d to %s", s.by, i, to)
		case from != "" && from != s.by && stays:
			c.broken(Seats, s, "%s took slot %d from %s, which is still a member", s.by, i, from)
		}
		switch {
		case s.at[i] == before.at[i]:
			continue
		case s.at[i] < before.at[i]:
			c.broken(Positions, s, "slot %d is at %d, after %d", i, s.at[i], before.at[i])
			continue
		case from != s.by && s.by != "":
			c.broken(Positions, s, "%s moved slot %d, which %q holds, to %d", s.by, i, from, s.at[i])
		}
		c.r.verdict.checked(NoSkip, 1)
		c.r.verdict.checked(Positions, 1)
		if s.write == nil || skipped {
			continue
		}
		if answered < 0 {
			answered = c.answeredTo(s, before)
		}
		if s.at[i] > answered {
			c.broken(Positions, s, "slot %d is at %d, and its member had been answered nothing beyond %d", i, s.at[i], answered)
		}
		rows := c.bySlot[i]
		n := sort.Search(len(rows), func(k int) bool { return c.r.rows[c.rows[rows[k]]].global >= s.at[i] })
		if n == 0 {
			continue
		}
		if last := c.latest[i][n-1]; c.done[last] >= s.write.time {
			x := &c.r.rows[c.rows[last]]
			about := c.about(s)
			about.ids = []uuid.UUID{x.id}
			c.r.verdict.broken(NoSkip, about, "%s recorded position %d for slot %d before it had handled %s@%d at %d",
				c.name, s.at[i], i, c.r.streamName(x.stream), x.position, x.global)
			skipped = true
		}
	}
}

// answeredTo returns how far a run had read, or the slots that it took were, when it wrote a state.
func (c *replicas) answeredTo(s, before *seatStep) (most int64) {
	for i := range slots {
		if before.holder[i] == s.by {
			most = max(most, before.at[i])
		}
	}
	return max(most, c.answered(&s.write.put))
}

// checkDone checks that a member that frees slots in order, or leaves, has stored how far it was: where all
// messages of its slots up to one were handled in its last run, they are not given to the next again.
func (c *replicas) checkDone(before, s *seatStep) {
	frees := false
	for i := range slots {
		frees = frees || before.holder[i] == s.by && s.holder[i] == ""
	}
	if s.write == nil || s.by == "" || !frees || c.failing(s.write) {
		return
	}
	mine := c.doneBy[s.ran]
	var all []int32
	for slot := range slots {
		if before.holder[slot] != s.by {
			continue
		}
		rows := c.bySlot[slot]
		n := sort.Search(len(rows), func(k int) bool { return c.r.rows[c.rows[rows[k]]].global >= s.at[slot] })
		all = append(all, rows[n:]...)
	}
	slices.Sort(all)
	forgotten := 0
	for _, i := range all {
		if at, did := mine[i]; !did || at >= s.write.time {
			break
		}
		forgotten++
	}
	if forgotten > 0 {
		c.broken(RedeliveryBound, s, "%s gave up its slots without a position for the %d messages behind it that it had handled, so they come again", s.by, forgotten)
	}
}

// failing says that the store of a process, or the process, did not work for a time before it wrote, so that
// it may have failed to store its position.
func (c *replicas) failing(w *seatWrite) bool {
	return slices.ContainsFunc(c.r.faults, func(f fault) bool {
		switch {
		case f.time >= w.time || f.end < w.time-int64(10*time.Second):
			return false
		case f.name == JoinLeave || f.name == KillMember:
			return false // and this one leaves by it
		}
		return f.name != StopMember || f.target == w.proc
	})
}

// allowance returns how many messages may be delivered again in a run that begins with a state: as many as its
// own limit, and as many of each member that held one of its slots since the position of that moved.
func (c *replicas) allowance(s *seatStep, owners *[slots][]string) int64 {
	from := map[string]bool{}
	for i := range slots {
		if s.holder[i] == s.by {
			for _, id := range owners[i] {
				from[id] = true
			}
		}
	}
	return c.r.lives[s.write.life].allowance * int64(1+len(from))
}

// checkDeliveries checks that each run is delivered only messages of slots that it holds, from where they were
// left, and few of them again.
func (c *replicas) checkDeliveries(allowed map[int32]int64) {
	r := c.r
	seen := map[int32]bool{}
	again := map[int32]int64{}
	told := map[int32]bool{}
	last := map[int32]int64{} // the message that was delivered last to a run
	for _, n := range c.deliveries {
		d := &r.deliveries[n]
		if d.kind == ok {
			c.counts.Handled++
		}
		i := c.group.index(d.row)
		if i < 0 {
			continue
		}
		x := &r.rows[d.row]
		s := c.first[d.life]
		about := subject{consumer: c.name, ids: []uuid.UUID{x.id}, ops: []history.Ref{r.lives[d.life].ref}}
		slot := r.streamName(x.stream).GroupMember(slots)
		r.verdict.checked(Seats, 1)
		switch {
		case told[d.life]: // one is enough
		case s == nil:
			told[d.life] = true
			r.verdict.broken(Seats, about, "a run of %s was delivered %s@%d and had joined no group", c.name, r.streamName(x.stream), x.position)
		case s.holder[slot] != s.by || x.global < s.at[slot]:
			told[d.life] = true
			r.verdict.broken(Seats, about, "a run of %s was delivered %s@%d at %d; of slot %d, which %q held at %d when it began in state %d",
				c.name, r.streamName(x.stream), x.position, x.global, slot, s.holder[slot], s.at[slot], s.stored.at)
		}
		if s != nil && s.members[s.by].Whole && !d.again {
			if x.global <= last[d.life] {
				r.verdict.broken(Order, about, "in one run %s was delivered the message at %d after %d, and handles the category in order", c.name, x.global, last[d.life])
			}
			last[d.life] = x.global
		}
		if me := c.seats[c.memberOf[d.life]]; me != nil && me.removed != nil && d.time > me.removed.end {
			c.counts.Late++
			c.counts.Latest = max(c.counts.Latest, time.Duration(d.time-c.knew(me, d.time)))
		}
		if !d.again && seen[d.row] {
			again[d.life]++
			c.counts.Again++
		}
		seen[d.row] = true
	}
	r.verdict.checked(RedeliveryBound, len(c.deliveries))
	for _, life := range sorted(again) {
		if most, joined := allowed[life]; joined && again[life] > most {
			r.verdict.broken(RedeliveryBound, subject{consumer: c.name, ops: []history.Ref{r.lives[life].ref}},
				"a run of %s was handed %d messages again, and may be %d", c.name, again[life], most)
		}
	}
}

// knew returns when a member could know at a time that it was removed: when it was, or, if its process was
// stopped, when that went on.
func (c *replicas) knew(x *seat, now int64) int64 {
	at := x.removed.end
	for _, f := range c.r.faults {
		if f.name == StopMember && f.target == x.proc && f.time < now {
			at = max(at, min(f.end, now))
		}
	}
	return at
}

// The faults of members. Each has the process as its target.
const (
	JoinLeave  = "join-leave"
	KillMember = "kill-member"
	StopMember = "stop-member"
)

// measureGaps measures how long the slots of members that were killed, or stopped until they were removed, had no
// holder that is alive.
func (c *replicas) measureGaps() {
	alive := map[string]span{} // from the first to the last that is known of each process
	sign := func(life int32, at int64) {
		proc := c.r.lives[life].ref.Proc
		s, known := alive[proc]
		if !known {
			s = span{at, at}
		}
		alive[proc] = span{min(s.from, at), max(s.to, at)}
	}
	for _, n := range c.lives {
		l := &c.r.lives[n]
		sign(n, l.time)
		if l.ended {
			sign(n, l.end)
		}
	}
	for i := range c.r.seatWrites {
		if w := &c.r.seatWrites[i]; c.r.lives[w.life].consumer == c.r.lives[c.lives[0]].consumer {
			sign(w.life, w.time)
		}
	}
	lost := map[string][]span{} // when each was stopped, or killed
	for _, f := range c.r.faults {
		if _, is := alive[f.target]; !is {
			continue
		}
		switch f.name {
		case KillMember:
			c.counts.Kills++
			lost[f.target] = append(lost[f.target], span{f.time, history.Never})
		case StopMember:
			c.counts.Stops++
			lost[f.target] = append(lost[f.target], span{f.time, f.end})
		}
	}
	for _, proc := range sorted(lost) {
		for _, f := range lost[proc] {
			c.measureGap(proc, f, alive, lost)
		}
	}
	slices.Sort(c.counts.Gaps)
}

// measureGap measures the longest gap of the slots of a process from the time on that it was lost.
func (c *replicas) measureGap(proc string, f span, alive map[string]span, lost map[string][]span) {
	at := sort.Search(len(c.chain), func(i int) bool { return c.chain[i].end > f.from })
	if at == 0 {
		return
	}
	var held, gap int64
	for i := range slots {
		id := c.chain[at-1].holder[i]
		if id == "" || c.seats[id] == nil || c.seats[id].proc != proc {
			continue
		}
		for _, s := range c.chain[at:] {
			if s.holder[i] != id && s.holder[i] != "" {
				held++
				gap = max(gap, s.end-f.from)
				break
			}
			if f.to < s.end && s.by == id && s.write != nil && s.write.time > f.to {
				return // it was not removed while it was stopped
			}
		}
	}
	until := f.from + 2*int64(c.counts.Lease)
	if held == 0 || !slices.ContainsFunc(slices.Collect(maps.Keys(alive)), func(other string) bool {
		s := alive[other]
		return other != proc && s.from < f.from && s.to > until && !slices.ContainsFunc(lost[other], func(x span) bool { return x.from < until && x.to > f.from })
	}) {
		return
	}
	c.counts.Gaps = append(c.counts.Gaps, time.Duration(gap))
}

// String tells the counts in lines.
func (c *Replicas) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "replicas: %d joins, %d leaves, %d kills, %d stops beyond the lease, %d takeovers, in %d states\n",
		c.Joins, c.Leaves, c.Kills, c.Stops, c.Takeovers, c.States)
	fmt.Fprintf(&b, "  handled %d, delivered again %d; begun by a member that had been removed: %d, the last %v after it was, or went on\n",
		c.Handled, c.Again, c.Late, c.Latest.Round(time.Millisecond))
	return b.String()
}
