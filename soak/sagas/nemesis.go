package sagas

import (
	"context"
	"math/rand/v2"

	"github.com/dibs-go/dibs/soak/crew"
)

// torment has faults for the time of the run, or until its goals are reached.
func (r *run) torment(ctx context.Context) error {
	if r.Quiet {
		return r.Torment(ctx, r.Duration, nil)
	}
	faults := []crew.Fault{
		{Answers: 1500, Goal: "kills", Run: func(_ context.Context, random *rand.Rand) error {
			r.Any(random, r.Runners).Kill()
			return nil
		}},
		{Answers: 3000, Goal: "stops", Run: r.stopRunner},
		{Answers: 150, Goal: "cuts", Run: func(ctx context.Context, random *rand.Rand) error {
			r.CutOff(ctx, r.Any(random, len(r.Slots)), random)
			return nil
		}},
	}
	if !r.Calm {
		faults = append(faults, crew.Fault{Answers: 8000, Goal: "serverKills", Run: func(ctx context.Context, random *rand.Rand) error { return r.KillServer(ctx, random, 6, lease) }})
	}
	if !r.Clock {
		return r.Torment(ctx, r.Duration, faults)
	}
	jump := crew.Fault{Answers: 1000, Goal: "jumps", Run: func(ctx context.Context, random *rand.Rand) error { return r.JumpClock(ctx, random, lease, 4*lease) }} // in which sagas go on
	return r.Torment(ctx, r.Duration, append(faults, jump), r.Crashes)
}

// stopRunner stops a process for longer than its lease.
func (r *run) stopRunner(ctx context.Context, random *rand.Rand) error {
	r.StopProcess(r.Any(random, r.Runners), func(int64) { crew.Pause(ctx, lease+lease/5+crew.Dice{Rand: random}.Sooner(2*lease)) })
	return nil
}
