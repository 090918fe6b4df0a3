package main

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/store"
)

// A replicasRun has members of groups come and go.
type replicasRun struct {
	common
	Duration time.Duration `help:"How long members come and go." default:"3m" placeholder:"D"`
	Most     int           `help:"Members of each group at a time, at most." default:"8" placeholder:"N"`
	Writers  int           `help:"Processes that write." default:"2" placeholder:"N"`
}

// Run does a run and checks its history.
func (f replicasRun) Run(ctx context.Context) error {
	if f.Check != "" {
		_, err := checkScenario(ctx, f.Check)
		return err
	}
	return do(ctx, "replicas", f.options(), replicaGoals(f.Duration))
}

func (f replicasRun) options() store.Options {
	o := store.Options{
		Options: f.common.options("replicas", f.Duration), Writers: f.Writers, Phases: []string{store.Crowd},
		Replicas: store.Replicas{Shares: true, InOrder: true, Most: f.Most, Only: true},
	}
	o.Draw()
	o.Crowded()
	return o
}

// replicaGoals are how much must happen in such a run, of some time.
func replicaGoals(d time.Duration) promise.Goals {
	goals := promise.Goals{"facts:lag": 1, "facts:usable": 2, "facts:goroutines": 1, "facts:memory": 1, "facts:searched": 1, "facts:amcheck": 1}
	for key, aMinute := range map[string]float64{
		"done:write": 300, "done:handle": 600, "done:position": 120, "joins": 10, "leaves": 4, "memberKills": 4, "memberStops": 4, "takenOver": 4,
	} {
		goals[key] = max(1, int(aMinute*d.Minutes()))
	}
	return goals
}
