package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/queues"
)

// A queueRun torments workers of a queue.
type queueRun struct {
	common
	CI        bool          `name:"ci" xor:"goals" help:"Until the goals of make ci/long are reached, for at most 40m, and fail if one is not: 100 kills of the server, 500 of processes, 100,000 items. Over SQLite lesser ones, for at most 4m."`
	Long      bool          `xor:"goals" help:"Until ten times these goals are reached, for at most 6h. Over SQLite these, for at most 1h."`
	Duration  time.Duration `help:"How long to torment at most. 1m, 40m with --ci, 6h with --long." placeholder:"D"`
	Processes int           `help:"Processes that work." default:"4" placeholder:"N"`
	Workers   int           `help:"Goroutines of each." default:"6" placeholder:"N"`
	Inserters int           `help:"Processes that insert." default:"2" placeholder:"N"`
	Servers   int           `help:"Processes that serve the store, which the others call, in the usual scene: they are killed, stopped and drained too. A file has one. 0: all have the store." placeholder:"N"`
	Hold      string        `help:"Whether a dead item holds its key: yes, no, or seed for as the seed is even or odd." enum:"yes,no,seed" default:"seed" placeholder:"WHEN"`
	Calm      bool          `help:"Without kills of the server."`
	Store     string        `help:"postgres, sqlite, or both, one after the other." enum:"postgres,sqlite,both" default:"both"`
	Scene     string        `help:"What the run is about, on PostgreSQL: usual, clock (the server's jumps), poison (items kill their process), hot-key, ending (no answer comes while sessions end), or all of them, one after the other." enum:"usual,clock,poison,hot-key,ending,all" default:"usual"`
}

// sceneTime is how long a scene may take: each has goals for a minute.
const sceneTime = time.Minute

// Run does a run and checks its history.
func (f queueRun) Run(ctx context.Context) error {
	if f.Check != "" {
		_, err := checkScenario(ctx, f.Check)
		return err
	}
	var missed error
	for _, o := range f.runs() {
		scene := string(o.Scene)
		if o.SQLite {
			scene = "over SQLite"
		}
		_, err := torment(ctx, "queue", scene, &o.Options, o, o.Goals, queues.Run)
		if err != nil && !isMissed(err) {
			return err
		}
		missed = errors.Join(missed, err)
	}
	return missed
}

// runs are the options of the runs, one after the other.
func (f queueRun) runs() (all []queues.Options) {
	common := f.common.options("queue", time.Minute)
	usual := f.Scene == "usual" || f.Scene == "all"
	if usual && f.Store != "postgres" && f.Servers < 2 {
		all = append(all, f.options(common, true))
	}
	if usual && f.Store != "sqlite" {
		all = append(all, f.options(common, false))
	}
	for _, scene := range queues.Scenes {
		if f.Scene == string(scene) || f.Scene == "all" {
			o := f.options(common, false)
			o.Scene, o.Goals, o.Calm, o.Servers, o.Duration = scene, scene.Goals(), true, 0, cmp.Or(f.Duration, sceneTime)
			o.Out = filepath.Join(common.Out, string(scene))
			all = append(all, o)
		}
	}
	return all
}

// options returns the options of a run over a file, or on a server.
func (f queueRun) options(common crew.Options, file bool) queues.Options {
	goals, most := queues.Short, time.Minute
	switch {
	case f.CI && file:
		most = 4 * time.Minute
	case f.CI:
		goals, most = queues.Issue, 40*time.Minute
	case f.Long && file:
		goals, most = queues.Issue, time.Hour
	case f.Long:
		goals, most = queues.Issue.Times(10), 6*time.Hour
	}
	if f.Servers > 0 { // and nobody has a transaction
		goals = goals.With(queues.Served)
	}
	store := "postgres"
	if f.Calm || file {
		goals = goals.With(promise.Goals{"serverKills": 0})
	}
	if file {
		store, goals = "sqlite", goals.With(promise.Goals{"unknown": 0}) // no answer is lost
	}
	common.Duration, common.Goals, common.Out = cmp.Or(f.Duration, most), goals, filepath.Join(common.Out, store)
	return queues.Options{
		Options: common, Processes: f.Processes, Workers: f.Workers, Inserters: f.Inserters,
		Hold: f.Hold == "yes" || f.Hold == "seed" && common.Seed%2 == 0, SQLite: file, Servers: f.Servers, Calm: f.Calm,
	}
}
