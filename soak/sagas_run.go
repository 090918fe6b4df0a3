package main

import (
	"cmp"
	"context"
	"time"

	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/sagas"
)

// A sagasRun torments runners of sagas, with timers and a relay.
type sagasRun struct {
	common
	CI        bool          `name:"ci" xor:"goals" help:"Until the goals of make ci/long are reached, for at most 30m, and fail if one is not: 100 kills of runners, 1,000 cuts, 20 kills of the server, 10,000 sagas, 100,000 timers."`
	Duration  time.Duration `help:"How long to torment at most. 1m, 30m with --ci." placeholder:"D"`
	Runners   int           `help:"Processes that run sagas, ring timers and send letters." default:"3" placeholder:"N"`
	Customers int           `help:"Sagas at a time, of each of two processes." default:"60" placeholder:"N"`
	Timers    int           `help:"That are set a second, by each of these." default:"100" placeholder:"N"`
	Calm      bool          `help:"Without kills of the server."`
	Clock     bool          `xor:"goals" help:"With a clock of the server that jumps, and without kills of it."`
}

// Run does a run and checks its history.
func (f sagasRun) Run(ctx context.Context) error {
	if f.Check != "" {
		_, err := checkScenario(ctx, f.Check)
		return err
	}
	goals, most, scene := sagas.Short, time.Minute, ""
	if f.CI {
		goals, most = sagas.Issue, 30*time.Minute
	}
	if f.Clock {
		goals, scene, f.Customers = sagas.Jumpy, "clock", f.Customers/4 // each jump has all sessions end at once
	}
	if f.Calm {
		goals = goals.With(promise.Goals{"serverKills": 0})
	}
	o := sagas.Options{
		Options: f.options("sagas", cmp.Or(f.Duration, most)), Runners: f.Runners, Customers: f.Customers, Timers: f.Timers, Calm: f.Calm || f.Clock, Clock: f.Clock, Flood: !f.Clock,
	}
	o.Goals = goals
	_, err := torment(ctx, "sagas", scene, &o.Options, o, goals, sagas.Run)
	return err
}
