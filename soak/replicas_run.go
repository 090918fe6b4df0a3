package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/harness"
	"github.com/dibs-go/dibs/soak/history"
)

// A replicasRun has members of groups come and go.
type replicasRun struct {
	Seed     uint64        `help:"What is drawn from: another one each time if it is 0." default:"0" placeholder:"N"`
	Duration time.Duration `help:"How long members come and go." default:"3m" placeholder:"D"`
	Most     int           `help:"Members of each group at a time, at most." default:"8" placeholder:"N"`
	Writers  int           `help:"Processes that write." default:"2" placeholder:"N"`
	Out      string        `help:"The folder for histories and findings; a new one below it each time." default:"results" placeholder:"DIR"`
	Dir      string        `help:"Where the servers keep their data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
}

// Run torments, and checks.
func (f replicasRun) Run(ctx context.Context) error { return do(ctx, f.options(), f.Out) }

func (f replicasRun) options() harness.Options {
	o := harness.Options{
		Seed: f.Seed, Duration: f.Duration, Writers: f.Writers, Dir: f.Dir, Phases: []string{harness.Crowd},
		Replicas: harness.Replicas{Shares: true, InOrder: true, Most: f.Most, Only: true},
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.Draw()
	o.Crowded()
	return o
}

// replicaGuards are how much must happen in such a run, of some time.
func replicaGuards(d time.Duration) *check.Guards {
	n := func(aMinute float64) int { return max(1, int(aMinute*d.Minutes())) }
	return &check.Guards{
		Done:  map[history.Func]int{history.Write: n(300), history.Handle: n(600), history.Position: n(120)},
		Joins: n(10), Leaves: n(4), Kills: n(4), Stops: n(4), TakenOver: n(4), Facts: true,
	}
}

// gapLeases is within how many leases the slots of a member that was killed or stopped should have another holder.
const gapLeases = 2

// replicaFigures are the figures of the groups that processes join.
func replicaFigures(v *check.Verdict) []figure {
	c := v.Replicas
	if c == nil {
		return nil
	}
	plain := func(name string, got int) figure { return figure{name: name, got: thousands(got)} }
	p99, longest := harness.Quantile(c.Gaps, 0.99), harness.Quantile(c.Gaps, 1)
	goal := gapLeases * c.Lease
	return []figure{
		plain("members that joined", c.Joins),
		plain("  left in order", c.Leaves),
		plain("  were killed", c.Kills),
		plain("  were stopped for longer than their lease", c.Stops),
		plain("  were removed, their lease being over", c.Takeovers),
		plain("messages that groups of them handled", int(c.Handled)),
		plain("  that were delivered again", int(c.Again)),
		plain("  whose delivery a removed member had begun", int(c.Late)),
		{
			name: "slots of a lost member held again, p99", goal: fmt.Sprintf("< %.0f s", goal.Seconds()), time: true, missed: p99 >= goal,
			got: fmt.Sprintf("%.1f s of %d, longest %.1f s, with a lease of %v", p99.Seconds(), len(c.Gaps), longest.Seconds(), c.Lease),
		},
		{name: "  within that time", got: fmt.Sprintf("%d of %d", c.Within(gapLeases), len(c.Gaps))},
	}
}
