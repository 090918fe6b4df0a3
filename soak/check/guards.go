package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/dibs-go/dibs/soak/history"
)

// Guards are how much must have happened. A run in which nothing worked breaks no promise, and
// proves nothing.
type Guards struct {
	// Done is how often each operation must have succeeded.
	Done map[history.Func]int

	// HealthyOK is the part of the writes begun while no fault was on that must have been
	// OK or a conflict.
	HealthyOK float64

	// Faults names the faults that must each have hit a write in flight at least once.
	Faults []string

	// Unknown is how many writes of unknown outcome there must have been, and Written and
	// NotWritten how many must have been found out about with each answer.
	Unknown, Written, NotWritten int

	// Conflicts is how many version conflicts there must have been.
	Conflicts int

	// Batches is how many writes of several messages must have been done, and Several how many to
	// several streams; RolledBack how many transactions must have been, by their own will;
	// Duplicates and IDConflicts how many writes must have met their ids, and Parked how many
	// messages must have been given up on.
	Batches, Several, RolledBack, Duplicates, IDConflicts, Parked int

	// Takeovers is how many runs of consumers must have gone on from where another was.
	Takeovers int

	// Undone is how many acknowledged messages failovers must have undone, and Ahead how
	// many consumers must have been ahead of the store then, and Overtaken how many of
	// these must have been let read only after it had grown past them.
	Undone, Ahead, Overtaken int

	// Epochs is how many runs of consumers must have begun again in another epoch of the store, and ByEpoch
	// how many of these nothing else can have told of the rollback.
	Epochs, ByEpoch int

	// Joins, Leaves, Kills, Stops and TakenOver are how many members of groups that processes join must have
	// joined, left, been killed, been stopped beyond their lease, and been removed.
	Joins, Leaves, Kills, Stops, TakenOver int

	// Reused is how many reservations must have met their key used for something else.
	Reused int

	// Facts says that the harness must give its facts.
	Facts bool
}

// DefaultGuards returns the guards of a whole run, or of a part of one by a scale below 1. Faults is
// left for the harness, which knows its own faults.
func DefaultGuards(scale float64) *Guards {
	n := func(whole int) int { return max(1, int(float64(whole)*scale)) }
	return &Guards{
		Done: map[history.Func]int{
			history.Write: n(1000), history.WriteTx: n(100), history.Version: n(100), history.Read: n(100), history.Resolve: n(20),
			history.Handle: n(1000), history.Position: n(20), history.Reserve: n(100), history.Effect: n(50),
		},
		HealthyOK: 0.6, Unknown: n(50), Written: n(10), NotWritten: n(10), Conflicts: n(100),
		Batches: n(100), Several: n(50), RolledBack: n(20), Duplicates: n(10), IDConflicts: n(2), Parked: n(5), Takeovers: n(20), Reused: n(5), Facts: true,
	}
}

func checkGuards(r *run, f *Facts) {
	v, g := r.verdict, r.cfg.Guards
	maps.Copy(v.Done, r.counts)
	short := func(format string, args ...any) { v.Vacuous = append(v.Vacuous, fmt.Sprintf(format, args...)) }
	atLeast := func(what string, got, want int) {
		if got < want {
			short("%d %s, and there must be %d", got, what, want)
		}
	}
	for _, f := range sorted(g.Done) {
		atLeast(string(f)+" operations were done", r.counts[f], g.Done[f])
	}
	conflicts, healthy, healthyOK := 0, 0, 0
	batches, several, duplicates, idConflicts, rolledBacks, parked := 0, 0, 0, 0, 0, 0
	faulty := spans(r.faults, "")
	for i := range r.ops {
		o := &r.ops[i]
		if o.fn == isResolve && o.kind == ok {
			switch o.class {
			case written:
				v.ResolvedWritten++
			case notWritten:
				v.ResolvedNotWritten++
			}
		}
		if o.fn != isWrite {
			continue
		}
		switch {
		case o.kind == fail && o.class == idConflict:
			idConflicts++
		case o.kind == fail && o.class == rolledBack:
			rolledBacks++
		case o.kind == ok && o.n > 1:
			several++
		}
		for _, a := range r.appends[o.first : o.first+o.n] {
			if o.kind == ok && a.duplicate {
				duplicates++
			} else if o.kind == ok && a.n > 1 {
				batches++
			}
		}
		isConflict := o.kind == fail && o.class == conflict
		if isConflict {
			conflicts++
		}
		if o.kind == info {
			v.Unknown++
		}
		if !faulty.meet(o.time, o.end) {
			healthy++
			if isConflict || o.kind == ok {
				healthyOK++
			}
		}
	}
	if float64(healthyOK) < g.HealthyOK*float64(healthy) || healthy == 0 && g.HealthyOK > 0 {
		short("%d of %d writes outside faults were answered, and %.0f %% must be", healthyOK, healthy, 100*g.HealthyOK)
	}
	atLeast("writes had an unknown outcome", int(v.Unknown), g.Unknown)
	atLeast("were resolved as written", int(v.ResolvedWritten), g.Written)
	atLeast("were resolved as not written", int(v.ResolvedNotWritten), g.NotWritten)
	atLeast("version conflicts", conflicts, g.Conflicts)
	for i := range r.parks {
		if r.parks[i].kind == ok {
			parked++
		}
	}
	atLeast("batches were written", batches, g.Batches)
	atLeast("writes to several streams were done", several, g.Several)
	atLeast("transactions were rolled back", rolledBacks, g.RolledBack)
	atLeast("writes were duplicates", duplicates, g.Duplicates)
	atLeast("writes met an id that was taken", idConflicts, g.IDConflicts)
	atLeast("messages were given up on", parked, g.Parked)
	atLeast("runs of consumers took over from another", r.takeovers(), g.Takeovers)
	atLeast("messages were undone by a failover", int(v.LostByFailover), g.Undone)
	atLeast("consumers were ahead of the store", int(v.Checked[Rewind]), g.Ahead)
	atLeast("consumers were ahead of a store that had grown past them", int(v.Overtaken), g.Overtaken)
	epochs := 0
	for i := range r.lives {
		if r.lives[i].class == anotherEpoch {
			epochs++
		}
	}
	atLeast("runs of consumers began again in another epoch", epochs, g.Epochs)
	atLeast("runs of consumers were told by the epoch alone", int(v.ByEpoch), g.ByEpoch)
	reused := 0
	for i := range r.reserves {
		if r.reserves[i].kind == fail && r.reserves[i].class == keyReused {
			reused++
		}
	}
	atLeast("reservations met a key used for something else", reused, g.Reused)
	replicas := v.Replicas
	if replicas == nil {
		replicas = &Replicas{}
	}
	atLeast("members joined", replicas.Joins, g.Joins)
	atLeast("members left", replicas.Leaves, g.Leaves)
	atLeast("members were killed", replicas.Kills, g.Kills)
	atLeast("members were stopped", replicas.Stops, g.Stops)
	atLeast("members were removed", replicas.Takeovers, g.TakenOver)
	r.countStruck()
	guardFaults(r, short)
	if g.Facts {
		guardFacts(f, short)
	}
}

// takeovers counts the runs of consumers that were not the first.
func (r *run) takeovers() (n int) {
	seen := map[uint32]bool{}
	for i := range r.lives {
		l := &r.lives[i]
		if seen[l.consumer] {
			n++
		}
		seen[l.consumer] = true
	}
	return n
}

// countStruck counts by name the faults that began in the middle of a write whose process was told that
// the outcome is unknown.
func (r *run) countStruck() {
	var unknown []span
	for i := range r.ops {
		if o := &r.ops[i]; o.fn == isWrite && o.kind == info && o.end != history.Never {
			unknown = append(unknown, span{o.time, o.end})
		}
	}
	slices.SortFunc(unknown, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(unknown); i++ { // each to the latest end of the writes that began until then
		unknown[i].to = max(unknown[i].to, unknown[i-1].to)
	}
	for i := range r.faults {
		f := &r.faults[i]
		n := sort.Search(len(unknown), func(i int) bool { return unknown[i].from >= f.time })
		all := r.verdict.Struck[f.name]
		all.Faults++
		if n > 0 && unknown[n-1].to > f.time {
			all.Struck++
		}
		r.verdict.Struck[f.name] = all
	}
}

// guardFaults asks of each fault that it hit a write in flight.
func guardFaults(r *run, short func(string, ...any)) {
	for _, name := range r.cfg.Guards.Faults {
		on := spans(r.faults, name)
		hit := slices.ContainsFunc(r.ops, func(o op) bool {
			end := o.end
			if end == history.Never { // with its process, whose end was not written down
				end = o.time
			}
			return o.fn == isWrite && on.meet(o.time, end)
		})
		switch {
		case len(on) == 0:
			short("fault %s never happened", name)
		case !hit:
			short("fault %s never met a write in flight", name)
		}
	}
}

func guardFacts(f *Facts, short func(string, ...any)) {
	if f == nil {
		short("the harness handed over no facts")
		return
	}
	for what, missing := range map[string]bool{
		"the lag of no consumer was measured":         len(f.Lag) == 0,
		"no client tried whether its store is usable": len(f.Usable) <= 1, // the harness's own
		"the goroutines of no process were counted":   len(f.Goroutines) == 0,
		"no process's memory was measured":            len(f.Memory) == 0,
		"no canary was looked for":                    f.Canaries == 0,
		"pg_amcheck did not run":                      f.PostgreSQL != nil && !f.PostgreSQL.Amcheck,
	} {
		if missing {
			short("%s", what)
		}
	}
}

// A timeline is spans of time that do not touch, in order.
type timeline []span

type span struct{ from, to int64 }

// spans puts together the times of the faults of a name, or of all for "".
func spans(faults []fault, name string) (t timeline) {
	for _, f := range faults {
		if name == "" || f.name == name {
			t = append(t, span{f.time, f.end})
		}
	}
	slices.SortFunc(t, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	whole := t[:0]
	for _, s := range t {
		if n := len(whole); n > 0 && s.from <= whole[n-1].to {
			whole[n-1].to = max(whole[n-1].to, s.to)
		} else {
			whole = append(whole, s)
		}
	}
	return whole
}

// meet says that a time from one moment to another is partly in one of the spans.
func (t timeline) meet(from, to int64) bool {
	i := sort.Search(len(t), func(i int) bool { return t[i].to >= from })
	return i < len(t) && t[i].from <= to
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
