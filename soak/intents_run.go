package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/intents"
	"github.com/dibs-go/dibs/soak/promise"
)

// An intentsRun torments holders of intents.
type intentsRun struct {
	common
	CI         bool          `name:"ci" help:"All scenes, one after the other, the last of them until all goals are reached together, and fail if one is not."`
	Scene      string        `help:"faults: all but those of the other scenes; calm: none; clock: with a clock of the server that jumps and stands; pgbouncer: through one that is killed; failovers: to standbys." enum:"faults,calm,clock,pgbouncer,failovers" default:"faults" placeholder:"NAME"`
	Duration   time.Duration `help:"How long to torment at most, in the last scene with --ci. 1m, 8m with --ci." placeholder:"D"`
	Processes  int           `help:"Processes that work on intents." default:"5" placeholder:"N"`
	Goroutines int           `help:"Goroutines of each." default:"8" placeholder:"N"`
	Servers    int           `help:"Processes that serve the store, which the others call, in the scene faults: they are killed, stopped and drained too. 0: all have the store." placeholder:"N"`
	Sync       int           `help:"Failovers to a standby that commits wait for." default:"5" placeholder:"N"`
	Async      int           `help:"Failovers to a standby that lacks the last acknowledged messages." default:"5" placeholder:"N"`
}

// A scene has its time, and the least that must happen in it. The last scene of --ci has more time,
// and must reach the rest of the goals of all scenes.
type scene struct {
	name    string
	time    time.Duration
	goals   promise.Goals
	options intents.Options
}

func (f intentsRun) scenes() []scene {
	calm, goals := promise.Goals{"held": 10, "done": 10, "several": 1, "work": 100}, intents.Short
	if f.Servers > 0 {
		goals = goals.With(promise.Goals{"several": 0, "dibsKills": 3, "drains": 3})
	}
	return []scene{
		{"calm", 20 * time.Second, calm, intents.Options{Calm: true}},
		{"clock", 40 * time.Second, intents.Short.With(promise.Goals{"jumps": 5, "freezes": 2}), intents.Options{Clock: true}},
		{"pgbouncer", 40 * time.Second, intents.Short.With(promise.Goals{"bouncerKills": 3}), intents.Options{PgBouncer: true}},
		{
			"failovers", time.Duration(f.Sync+f.Async) * failoverTime, calm.With(promise.Goals{"syncFailovers": f.Sync, "asyncFailovers": f.Async}),
			intents.Options{Failovers: intents.Failovers{Sync: f.Sync, Async: f.Async}},
		},
		{"faults", time.Minute, goals, intents.Options{Servers: f.Servers}},
	}
}

// failoverTime is the most that each may take, with the load before it.
const failoverTime = 40 * time.Second

// Run does a run and checks its history.
func (f intentsRun) Run(ctx context.Context) error {
	if f.Check != "" {
		_, err := checkScenario(ctx, f.Check)
		return err
	}
	common := f.options("intents", 0)
	scenes := f.scenes()
	if !f.CI {
		s := scenes[slices.IndexFunc(scenes, func(s scene) bool { return s.name == f.Scene })]
		s.time = cmp.Or(f.Duration, s.time)
		_, err := f.run(ctx, common, s, nil)
		return err
	}
	var sum promise.Figures
	var short error
	for i, s := range scenes {
		var until promise.Goals
		if i == len(scenes)-1 {
			s.time, s.goals = cmp.Or(f.Duration, 8*time.Minute), sum.Left(intents.Issue)
			until = s.goals
		}
		n, err := f.run(ctx, common, s, until)
		if err != nil && !isMissed(err) {
			return err
		}
		if sum = sum.Plus(n); until == nil {
			short = errors.Join(short, err)
		}
	}
	fmt.Fprintf(os.Stdout, "\nall scenes, seed %d, commit %s: 0 broken\n%s", common.Seed, commit(), sum.Table(intents.Issue))
	return errors.Join(short, fallsShort(sum, intents.Issue))
}

// run runs one scene until its goals are reached, and checks it.
func (f intentsRun) run(ctx context.Context, common crew.Options, s scene, until promise.Goals) (promise.Figures, error) {
	common.Duration, common.Goals, common.Out = s.time, until, filepath.Join(common.Out, s.name)
	o := s.options
	o.Options, o.Processes, o.Goroutines = common, f.Processes, f.Goroutines
	return torment(ctx, "intents", s.name, &o.Options, o, s.goals, intents.Run)
}
