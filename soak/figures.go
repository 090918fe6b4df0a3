package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/harness"
)

// A figure is a number that a run reached, beside its goal.
type figure struct {
	name, goal, got string
	missed          bool
	time            bool // it hangs on the machine, and fails no run
}

// figures are the figures of a run, in the order of soak/RESULTS.md.
func figures(goals *harness.Goals, r *harness.Result, v *check.Verdict) []figure {
	least := func(name string, goal, got int) figure {
		f := figure{name: name, got: thousands(got)}
		if goal > 0 {
			f.goal, f.missed = thousands(goal), got < goal
		}
		return f
	}
	broken := func(invariants ...check.Invariant) (n int64) {
		for _, i := range invariants {
			n += v.Broken[i]
		}
		return n
	}
	wrong := []int64{
		broken(check.Lost), broken(check.Phantom), broken(check.Unique, check.Reservation),
		broken(check.Complete, check.NoSkip), broken(check.Order, check.Monotone),
	}
	kinds := make([]string, len(wrong))
	anyWrong := false
	for i, n := range wrong {
		kinds[i] = strconv.FormatInt(n, 10)
		anyWrong = anyWrong || n > 0
	}
	return []figure{
		least("kill -9 of PostgreSQL under load", goals.ServerKills, r.Crashes),
		least("kill -9 of clients at failpoints", goals.ClientKills, r.ClientKills()),
		least("messages through faults", goals.Messages, int(r.Messages)),
		{name: "  lost / phantom / done twice / skipped / out of order", goal: "0 / 0 / 0 / 0 / 0", got: strings.Join(kinds, " / "), missed: anyWrong},
		least("unknown outcomes, resolved right", goals.Resolved, int(v.ResolvedWritten+v.ResolvedNotWritten)),
		least("operations checked for linearizability", goals.Checked, int(v.Checked[check.Linearizable])),
		recovered("handling again after a kill, p99", goals.Recovery, r.Recovery.First),
		recovered("  each of the consumers", 0, r.Recovery.Each),
		recovered("  after one among other faults", 0, r.Recovery.FirstOfMany),
		recovered("  after such a one, each of the consumers", 0, r.Recovery.EachOfMany),
	}
}

// recovered is a figure of times. It has a goal if that is not 0.
func recovered(name string, goal time.Duration, times []time.Duration) figure {
	p99 := harness.Quantile(times, 0.99)
	f := figure{name: name, time: len(times) > 0, got: fmt.Sprintf("%.1f s of %d, median %.1f s", p99.Seconds(), len(times), harness.Quantile(times, 0.5).Seconds())}
	if goal > 0 {
		f.goal, f.missed = fmt.Sprintf("< %.0f s", goal.Seconds()), p99 >= goal || len(times) == 0
	}
	return f
}

// fails says that one was missed that hangs on more than the machine.
func fails(all []figure) bool {
	return slices.ContainsFunc(all, func(f figure) bool { return f.missed && !f.time })
}

func table(all []figure) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-54s %17s   %s\n", "figure", "goal", "this run")
	for _, f := range all {
		missed := ""
		if f.missed {
			missed = "   missed"
		}
		fmt.Fprintf(&b, "%-54s %17s   %s%s\n", f.name, f.goal, f.got, missed)
	}
	return b.String()
}

// thousands writes a number with commas.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
