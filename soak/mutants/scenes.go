package mutants

import (
	"context"
	"io/fs"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/intents"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/queues"
	"github.com/dibs-go/dibs/soak/sagas"
	"github.com/dibs-go/dibs/soak/store"
	"github.com/dibs-go/dibs/soak/work"
)

// A Scene is a load, with faults, that provokes some bugs.
type Scene struct {
	Name     string
	Time     time.Duration // of the first run
	Drain    time.Duration // in which all is to be finished then
	Least    promise.Goals // without which a run that finds nothing says nothing
	Promises fs.FS
	run      func(ctx context.Context, o crew.Options) (complaints []string, err error)
}

// Options returns the options of a run of the scene, with a bug unless m is nil. Each round is
// twice as long as the previous one, and has another seed.
func (s *Scene) Options(m *Mutant, seed uint64, round int) crew.Options {
	o := crew.Options{Seed: seed + uint64(round), Duration: s.Time << round, Drain: s.Drain << round} //nolint:gosec // a few
	if m != nil {
		o.Plant = &m.Plant
	}
	return o
}

// Run runs the scene.
func (s *Scene) Run(ctx context.Context, o crew.Options) (complaints []string, err error) {
	return s.run(ctx, o)
}

// ofStore is a scene of a store. Where the server is killed there is time to do something before it
// is killed again.
func ofStore(name string, least, gap time.Duration, faults []string, writers int, load work.Load, change func(o *store.Options)) *Scene {
	return &Scene{name, least, 0, promise.Goals{"done:write": 100, "done:handle": 100}, check.Promises, func(ctx context.Context, c crew.Options) ([]string, error) {
		o := store.Options{Options: c, Writers: writers, Consumers: 3, Handlers: 2, Faults: append([]string{"none"}, faults...)}
		o.Draw()
		load.Streams, load.Skew, load.MaxBytes, load.Lanes, load.Mix, load.Interval, load.Batch = 30, 1.1, 16<<10, 8, work.Usual, 50, 100
		o.Life, o.Gap, o.Stall, o.Load = 0, gap, 8*time.Second, load
		if change != nil {
			change(&o)
		}
		return store.Run(ctx, o, zerolog.Nop())
	}}
}

// Scenes of a store.
var (
	alone   = ofStore("alone", 4*time.Second, 0, nil, 6, work.Load{Goroutines: 1, Pause: 3, Categories: 3, Connections: 4}, nil)   // most writes go by themselves
	groups  = ofStore("groups", 4*time.Second, 0, nil, 4, work.Load{Goroutines: 10, Pause: 2, Categories: 3, Connections: 4}, nil) // most go in groups
	crashes = ofStore("crashes", 8*time.Second, 4*time.Second, []string{"kill-server", "kill-backend"}, 3, work.Load{Goroutines: 3, Pause: 5, Categories: 3, Connections: 4}, nil)
	lonely  = ofStore("lonely pauses", 10*time.Second, time.Second, []string{"past-deadline"}, 6, work.Load{Goroutines: 1, Pause: 5, Categories: 3, Connections: 4}, nil)
	cuts    = ofStore("cuts", 4*time.Second, 2*time.Second, []string{"cut"}, 4, work.Load{Goroutines: 3, Pause: 5, Categories: 3, Connections: 4}, nil)
	// A question about a write waits for a stopped writer that holds the category's lock. So there
	// are many categories, most of them without a stopped writer, and each client has connections
	// to spare.
	pauses  = ofStore("pauses", 10*time.Second, time.Second, []string{"past-deadline"}, 4, work.Load{Goroutines: 4, Pause: 5, Categories: 24, Connections: 12}, nil)
	backups = ofStore("backups", 4*time.Second, 0, nil, 3, work.Load{Goroutines: 3, Pause: 5, Categories: 3, Connections: 4}, func(o *store.Options) { o.Failovers.PutBacks = 1 })
	crowds  = ofStore("crowds", 10*time.Second, 0, []string{"join-leave", "kill-member", "stop-member"}, 2, work.Load{Goroutines: 2, Pause: 20, Categories: 1, Connections: 4}, func(o *store.Options) {
		o.Replicas = store.Replicas{Shares: true, InOrder: true, Most: 4, Only: true}
		o.Consumers, o.Handlers, o.Phases, o.Load.Interval, o.Load.Batch = 0, 0, []string{store.Crowd}, 20, 40
	})
)

// ofIntents is a scene of intents; in its first run some leases are lost.
func ofIntents(name string, o intents.Options) *Scene {
	return &Scene{name, 8 * time.Second, 0, promise.Goals{"takeovers": 5, "held": 10, "done": 10, "work": 10}, intents.Promises, func(ctx context.Context, c crew.Options) ([]string, error) {
		o := o
		o.Options = c
		return intents.Run(ctx, o, zerolog.Nop())
	}}
}

// Scenes of intents.
var (
	leased  = ofIntents("holders", intents.Options{Processes: 4, Goroutines: 6})
	jumped  = ofIntents("holders and jumps", intents.Options{Processes: 4, Goroutines: 6, Clock: true})
	crowded = ofIntents("a crowd of holders", intents.Options{Processes: 2, Goroutines: 40, Calm: true}) // most of their writes go in groups
	silent  = ofIntents("holders in silence", intents.Options{Processes: 4, Goroutines: 12, Silent: true})
	served  = ofIntents("holders of two servers", intents.Options{Processes: 4, Goroutines: 6, Servers: 2})
	slow    = ofIntents("long transactions", intents.Options{Processes: 4, Goroutines: 6, Calm: true, Long: true})
)

// ofQueues is a scene of queues. The server is not killed: each run has more deliveries so.
func ofQueues(name string, least time.Duration, goals promise.Goals, o queues.Options) *Scene {
	o.Calm = true
	return &Scene{name, least, 15 * time.Second, goals, queues.Promises, func(ctx context.Context, c crew.Options) ([]string, error) {
		o := o
		o.Options = c
		return queues.Run(ctx, o, zerolog.Nop())
	}}
}

// Scenes of queues. In some each thing takes a few seconds.
var (
	calling = promise.Goals{"items": 100, "deliveries": 100, "expiries": 3, "refused": 3, "kills": 3, "drains": 1, "hungUp": 3}
	usually = promise.Goals{"items": 100, "staged": 10, "deliveries": 100, "expiries": 3, "refused": 3, "kills": 3}
	worked  = ofQueues("workers", 8*time.Second, usually, queues.Options{Processes: 4, Workers: 6, Inserters: 2})
	filed   = ofQueues("workers over a file", 8*time.Second, usually, queues.Options{Processes: 4, Workers: 6, Inserters: 2, SQLite: true})
	called  = ofQueues("callers of two servers", 8*time.Second, calling, queues.Options{Processes: 4, Workers: 6, Inserters: 2, Servers: 2})
	asked   = ofQueues("callers of a server over a file", 8*time.Second, calling, queues.Options{Processes: 4, Workers: 6, Inserters: 2, Servers: 1, SQLite: true})
	opened  = ofQueues("workers beside open transactions", 8*time.Second, promise.Goals{"items": 100, "deliveries": 100, "undone": 10},
		queues.Options{Processes: 4, Workers: 6, Inserters: 2, Scene: queues.Overlap})

	jumping  = ofQueues("workers and jumps", 8*time.Second, queues.Clock.Goals(), queues.Options{Processes: 4, Workers: 6, Inserters: 2, Scene: queues.Clock})
	poisoned = ofQueues("workers and their killers", 25*time.Second, queues.Poison.Goals(), queues.Options{Processes: 2, Workers: 8, Inserters: 1, Scene: queues.Poison})
	heated   = ofQueues("workers of a hot key", 25*time.Second, queues.HotKey.Goals(), queues.Options{Processes: 2, Workers: 8, Inserters: 1, Scene: queues.HotKey})
	stalled  = ofQueues("workers without answers", 25*time.Second, queues.Ending.Goals(), queues.Options{Processes: 2, Workers: 8, Inserters: 1, Scene: queues.Ending})
)

// ofRunners is a scene of sagas, timers and relays. The server is not killed, so that each run has
// more sagas. Sagas meet their deadlines while it is drained.
func ofRunners(name string, least time.Duration, kills int, o sagas.Options) *Scene {
	o.Calm, o.Timers = true, 50
	goals := promise.Goals{"sagas": 20, "completed": 10, "compensated": 5, "kills": kills, "rung": 200, "letters": 50, "known": 1}
	return &Scene{name, least, 20 * time.Second, goals, sagas.Promises, func(ctx context.Context, c crew.Options) ([]string, error) {
		o := o
		o.Options = c
		return sagas.Run(ctx, o, zerolog.Nop())
	}}
}

// Scenes of sagas. Without faults none explains that something comes late.
var (
	ran     = ofRunners("runners", 10*time.Second, 2, sagas.Options{Runners: 3, Customers: 40})
	quiet   = ofRunners("runners without faults", 10*time.Second, 0, sagas.Options{Runners: 3, Customers: 40, Quiet: true})
	flooded = ofRunners("runners and a flood", 10*time.Second, 2, sagas.Options{Runners: 2, Customers: 10, Flood: true})
	shifted = ofRunners("runners and jumps", 20*time.Second, 2, sagas.Options{Runners: 2, Customers: 20, Clock: true})
)

var scenes = []*Scene{
	alone, groups, crashes, lonely, cuts, pauses, backups, crowds, leased, jumped, crowded, silent, served, slow, worked, filed, called, asked, opened, jumping, poisoned, heated, stalled, ran, quiet, flooded, shifted,
}
