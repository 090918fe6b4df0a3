package sagas

import (
	"context"
	"math/rand/v2"

	"github.com/dibs-go/dibs/soak/crew"
)

// faults are those of the time of the run, or until its goals are reached.
func (r *run) faults() crew.Phase {
	p := crew.Phase{Name: "faults", For: r.Duration, Until: r.Goals}
	if r.Quiet {
		return p
	}
	p.Faults = []crew.Fault{
		{Answers: 1500, Goal: "kills", Run: func(_ context.Context, random *rand.Rand) error {
			r.Any(random, runner).Kill()
			return nil
		}},
		{Answers: 3000, Goal: "stops", Run: func(ctx context.Context, random *rand.Rand) error { // for longer than its lease
			r.StopProcess(r.Any(random, runner), func(int64) { crew.Pause(ctx, crew.Dice{Rand: random}.Between(lease+lease/5, 3*lease+lease/5)) })
			return nil
		}},
		{Answers: 150, Goal: "cuts", Run: func(ctx context.Context, random *rand.Rand) error {
			r.CutOff(ctx, r.Any(random), random)
			return nil
		}},
	}
	if !r.Calm {
		p.Faults = append(p.Faults, crew.Fault{Answers: 8000, Goal: "serverKills", Run: func(ctx context.Context, random *rand.Rand) error { return r.KillServer(ctx, random, 6, lease) }})
	}
	if r.Clock {
		jump := func(ctx context.Context, random *rand.Rand) error { return r.JumpClock(ctx, random, lease, 4*lease) } // in which sagas go on
		p.Faults, p.Beside = append(p.Faults, crew.Fault{Answers: 1000, Goal: "jumps", Run: jump}), []func(context.Context, func()) error{r.Crashes}
	}
	return p
}
