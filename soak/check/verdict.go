package check

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/soak/history"
)

// An Invariant is a rule that no run may break.
type Invariant int

// The invariants. Each is described in the documentation of the package.
const (
	Lost            Invariant = 1
	Phantom         Invariant = 2
	Atomic          Invariant = 3
	Dense           Invariant = 4
	Reported        Invariant = 5
	Unique          Invariant = 6
	Monotone        Invariant = 7
	Linearizable    Invariant = 8
	ConflictTruth   Invariant = 9
	Complete        Invariant = 10
	NoSkip          Invariant = 11
	Order           Invariant = 12
	Positions       Invariant = 13
	RedeliveryBound Invariant = 14
	ReadHonesty     Invariant = 15
	Reservation     Invariant = 16
	Liveness        Invariant = 22
	Hygiene         Invariant = 23
	Rewind          Invariant = 24 // promise C6
	Seats           Invariant = 25
)

var invariants = map[Invariant]string{
	Lost: "lost", Phantom: "phantom", Atomic: "atomic batch", Dense: "dense", Reported: "as reported", Unique: "unique", Monotone: "monotone",
	Linearizable: "linearizable", ConflictTruth: "conflict truth", Complete: "complete", NoSkip: "no skip", Order: "order",
	Positions: "position", RedeliveryBound: "redelivery bound", ReadHonesty: "read honesty", Reservation: "reservation",
	Liveness: "liveness", Hygiene: "hygiene", Rewind: "rewind", Seats: "seats",
}

// String returns the number and the name, as in "1 lost".
func (i Invariant) String() string {
	if i == Rewind {
		return "C6 " + invariants[i]
	}
	return fmt.Sprintf("%d %s", int(i), invariants[i])
}

// A Verdict has the findings of the checker.
type Verdict struct {
	// Checked is how much each invariant was held against: messages, operations, positions.
	Checked map[Invariant]int64

	// Broken is how often each invariant was broken; without a break it is not in it.
	Broken map[Invariant]int64

	// Violations are the first of each invariant, with their stories.
	Violations []Violation

	// Vacuous names the events that were too rare for the run to say anything.
	Vacuous []string

	// LostByFailover is how many acknowledged messages failovers to an asynchronous standby
	// or to a backup undid, as is allowed there, whether or not they were written again.
	LostByFailover int64

	// Overtaken is how many consumers were ahead of the store after a failover, which had
	// grown past them before they could read from it, and Silent how many of all that
	// were ahead were not told.
	Overtaken, Silent int64

	// ByEpoch is how many consumers only the epoch can have told that a backup was put back.
	ByEpoch int64

	// Struck is how many faults there were of each name, and how many of them began in the middle of a
	// write whose process was told that the outcome is unknown.
	Struck map[string]Struck

	// Done is how many operations of each kind were done.
	Done map[history.Func]int

	// Unknown is how many writes had no known outcome, and ResolvedWritten and
	// ResolvedNotWritten how many were found out about.
	Unknown, ResolvedWritten, ResolvedNotWritten int64

	// Replicas counts what happened to groups that processes join, nil for none.
	Replicas *Replicas

	stories int
}

// Struck is how many of some faults struck a write.
type Struck struct{ Faults, Struck int }

// A Violation is one break of an invariant.
type Violation struct {
	Invariant Invariant
	What      string   // in a sentence
	Story     []string // the events around the violation, in order of time, a line each

	about subject
}

// A subject has the ids, operations and keys that a story is about.
type subject struct {
	ids      []uuid.UUID
	ops      []history.Ref
	key      string
	consumer string // whose deliveries count, "" for everybody's
	alone    bool   // only the operations named, and no others on the same ids
}

func newVerdict(cfg *Config) *Verdict {
	return &Verdict{
		Checked: map[Invariant]int64{}, Broken: map[Invariant]int64{}, Done: map[history.Func]int{}, Struck: map[string]Struck{}, stories: cfg.Stories,
	}
}

// Passed says that no invariant was broken and enough happened.
func (v *Verdict) Passed() bool {
	return len(v.Broken) == 0 && len(v.Vacuous) == 0
}

// String tells the verdict in lines: the outcome, how much of each kind was checked,
// and the violations with their stories.
func (v *Verdict) String() string {
	var b strings.Builder
	switch {
	case len(v.Broken) > 0:
		b.WriteString("FAILED: a promise was broken\n")
	case len(v.Vacuous) > 0:
		b.WriteString("FAILED: too little happened\n")
	default:
		b.WriteString("PASSED\n")
	}
	b.WriteString("\ninvariant              checked     broken\n")
	for _, i := range sorted(invariants) {
		fmt.Fprintf(&b, "%-18s %11d %10d\n", i, v.Checked[i], v.Broken[i])
	}
	b.WriteString("\ndone:")
	for _, f := range sorted(v.Done) {
		fmt.Fprintf(&b, " %s %d", f, v.Done[f])
	}
	fmt.Fprintf(&b, "\nunknown outcomes: %d, resolved as written: %d, as not written: %d\n", v.Unknown, v.ResolvedWritten, v.ResolvedNotWritten)
	if len(v.Struck) > 0 {
		b.WriteString("begun in the middle of a write of unknown outcome:")
		for _, name := range sorted(v.Struck) {
			fmt.Fprintf(&b, " %s %d of %d", name, v.Struck[name].Struck, v.Struck[name].Faults)
		}
		b.WriteString("\n")
	}
	if v.LostByFailover > 0 {
		fmt.Fprintf(&b, "undone by failovers that lose the last acknowledged messages: %d; consumers ahead of the store then: %d, of a store that had grown past them: %d, silently: %d\n",
			v.LostByFailover, v.Checked[Rewind], v.Overtaken, v.Silent)
	}
	if v.Replicas != nil {
		b.WriteString(v.Replicas.String())
	}
	for _, guard := range v.Vacuous {
		fmt.Fprintf(&b, "\ntoo little: %s", guard)
	}
	for _, x := range v.Violations {
		fmt.Fprintf(&b, "\n\n%s: %s", x.Invariant, x.What)
		for _, line := range x.Story {
			fmt.Fprintf(&b, "\n    %s", line)
		}
	}
	b.WriteString("\n")
	return b.String()
}

func (v *Verdict) checked(i Invariant, n int) {
	v.Checked[i] += int64(n)
}

func (v *Verdict) broken(i Invariant, about subject, format string, args ...any) {
	v.Broken[i]++
	if v.Broken[i] <= int64(v.stories) {
		v.Violations = append(v.Violations, Violation{Invariant: i, What: fmt.Sprintf(format, args...), about: about})
	}
}
