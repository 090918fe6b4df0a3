package main

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/soak/store"
)

// A failover is the run that loses the primary again and again, and then checks the history.
type failover struct {
	common
	Sync      int `help:"How often to a standby that commits wait for." default:"3" placeholder:"N"`
	Async     int `help:"How often to a standby that lacks the last acknowledged messages." default:"3" placeholder:"N"`
	Restores  int `help:"How often to a backup that was taken meanwhile." default:"1" placeholder:"N"`
	PutBacks  int `help:"How often to the files of such a backup, as they are: nothing but the epoch that is raised tells of it." default:"1" placeholder:"N"`
	Writers   int `help:"Processes that write." default:"2" placeholder:"N"`
	Consumers int `help:"Processes that consume events." default:"4" placeholder:"N"`
	Handlers  int `help:"Processes that handle commands with idempotence keys: up to 2." default:"2" placeholder:"N"`
}

// each is about how long one failover takes, with the load before it.
const each = 8 * time.Second

// Run does a run and checks its history.
func (f failover) Run(ctx context.Context) error {
	if f.Check != "" {
		_, err := checkScenario(ctx, f.Check)
		return err
	}
	o := f.options()
	return do(ctx, "failover", o, goalsOf(&o))
}

func (f failover) options() store.Options {
	o := store.Options{
		Options: f.common.options("failover", time.Duration(f.Sync+f.Async+f.Restores+f.PutBacks)*each), Writers: f.Writers, Consumers: f.Consumers, Handlers: f.Handlers,
		Faults: []string{"none"}, Failovers: store.Failovers{Sync: f.Sync, Async: f.Async, Restores: f.Restores, PutBacks: f.PutBacks},
	}
	o.Draw()
	o.Life = 0                                      // a client that is killed cannot be told that it is ahead
	o.Load.MaxBytes = 64 << 10                      // the same rows are copied again and again
	o.Load.Goroutines = (o.Load.Goroutines + 1) / 3 // and consumers have to keep up
	return o
}
