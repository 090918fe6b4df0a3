package mutants

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/store"
	"github.com/dibs-go/dibs/soak/work"
)

// A Scene is a load, and faults, that provoke some bugs.
type Scene struct {
	Name        string
	writers     int
	goroutines  int           // of each writer
	pause       int           // in milliseconds, about, between two writes
	gap         time.Duration // the longest between two faults
	least       time.Duration // of torment, in the first run
	faults      []string
	categories  int
	connections int32 // of each client
	failovers   store.Failovers
	replicas    store.Replicas // that come and go
	holders     *holders       // of intents, nil for another
	workers     *workers       // of a queue, nil for another
	runners     *runners       // of sagas, nil for another
}

// A Job is one run.
type Job struct {
	Duration time.Duration
	Least    promise.Goals // without which a run that finds nothing says nothing
	Check    func(ctx context.Context, dir string) (*promise.Verdict, error)
	Run      func(ctx context.Context, program, out, dir string) (complaints []string, err error)
}

// Job returns a run of the scene, with a bug unless m is nil. Each round is twice as long as the one before, and has other
// dice.
func (s *Scene) Job(m *Mutant, seed uint64, round int) *Job {
	var plant *plant.Mutant
	if m != nil {
		plant = &m.Plant
	}
	seed += uint64(round)
	switch {
	case s.holders != nil:
		return s.holders.job(plant, seed, round)
	case s.workers != nil:
		return s.workers.job(plant, seed, round)
	case s.runners != nil:
		return s.runners.job(plant, seed, round)
	}
	o := s.options(plant, seed, round)
	return &Job{o.Duration, promise.Goals{"done:write": 100, "done:handle": 100}, check.Check, func(ctx context.Context, program, out, dir string) ([]string, error) {
		o.Program, o.Out, o.Dir = program, out, dir
		return store.Run(ctx, o, zerolog.Nop())
	}}
}

var none store.Failovers

// Where the server is killed there is time to do something before it is killed again.
var (
	alone   = &Scene{"alone", 6, 1, 3, 0, 4 * time.Second, nil, 3, 4, none, store.Replicas{}, nil, nil, nil}   // most writes go by themselves
	groups  = &Scene{"groups", 4, 10, 2, 0, 4 * time.Second, nil, 3, 4, none, store.Replicas{}, nil, nil, nil} // most go in groups
	crashes = &Scene{"crashes", 3, 3, 5, 4 * time.Second, 8 * time.Second, []string{"kill-server", "kill-backend"}, 3, 4, none, store.Replicas{}, nil, nil, nil}
	lonely  = &Scene{"lonely pauses", 6, 1, 5, time.Second, 10 * time.Second, []string{"past-deadline"}, 3, 4, none, store.Replicas{}, nil, nil, nil}
	cuts    = &Scene{"cuts", 4, 3, 5, 2 * time.Second, 4 * time.Second, []string{"cut"}, 3, 4, none, store.Replicas{}, nil, nil, nil}
	// A question about a write waits for a stopped writer that holds the category's lock. So there are many
	// categories, most of them without a stopped writer, and each client has connections to spare.
	pauses  = &Scene{"pauses", 4, 4, 5, time.Second, 10 * time.Second, []string{"past-deadline"}, 24, 12, none, store.Replicas{}, nil, nil, nil}
	backups = &Scene{"backups", 3, 3, 5, 0, 4 * time.Second, nil, 3, 4, store.Failovers{PutBacks: 1}, store.Replicas{}, nil, nil, nil}
	crowds  = &Scene{
		"crowds", 2, 2, 20, 0, 10 * time.Second,
		[]string{"join-leave", "kill-member", "stop-member"},
		1, 4, none,
		store.Replicas{Shares: true, InOrder: true, Most: 4, Only: true},
		nil, nil, nil,
	}
)

// options are those of a run of the store.
func (s *Scene) options(plant *plant.Mutant, seed uint64, round int) store.Options {
	o := store.Options{Seed: seed, Plant: plant, Duration: s.least << round, Writers: s.writers, Consumers: 3, Handlers: 2, Faults: s.faults}
	if len(s.faults) == 0 {
		o.Faults = []string{"none"}
	}
	o.Draw()
	o.Life, o.Gap, o.Stall, o.Failovers = 0, s.gap, 8*time.Second, s.failovers
	o.Load = work.Load{
		Goroutines: s.goroutines, Categories: s.categories, Streams: 30, Skew: 1.1, MaxBytes: 16 << 10, Pause: s.pause, Lanes: 8, Connections: s.connections,
		Mix: work.Usual, Interval: 50, Batch: 100,
	}
	if o.Replicas = s.replicas; o.Replicas.Only {
		o.Consumers, o.Handlers, o.Phases = 0, 0, []string{store.Crowd}
		o.Load.Interval, o.Load.Batch = 20, 40
	}
	return o
}
