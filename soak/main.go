// Command soak torments a store with real processes that are really killed, and then checks their
// history against the promises.
//
//	make soak                        some minutes
//	make soak SOAK=--ci              until its goals are reached
//	make soak SOAK=--long            an hour, or until greater goals are
//	make soak SOAK='--seed 7'        the faults and the load of another run
//	make soak SOAK=failover          the primary is lost to standbys and to a backup
//	make soak SOAK=replicas          members of groups that join by name come and go
//	make soak SOAK=intents           holders of leases that are killed, stopped and too late
//	make soak SOAK='intents --ci'    the same until its goals are reached, and through failovers
//	make soak SOAK=queue             workers of a queue that are killed, stopped and too late, on PostgreSQL and SQLite
//	make soak SOAK='queue --servers 2'  the same, or intents, through two dibs serve, which are killed, stopped and drained
//	make soak SOAK=sagas             runners of sagas, with timers and a relay
//	make mutants                     with a bug, one of many at a time, that has to be found
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/intents"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/queues"
	"github.com/dibs-go/dibs/soak/sagas"
	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/store"
	"github.com/dibs-go/dibs/soak/work"
)

type commands struct {
	Run      run         `cmd:"" default:"withargs" help:"Torment a store, and check its history."`
	Failover failover    `cmd:"" help:"Lose the primary again and again, and check the history."`
	Check    checkRun    `cmd:"" help:"Check the files of a run."`
	Replicas replicasRun `cmd:"" help:"Have members of groups come and go, and check what they did."`
	Intents  intentsRun  `cmd:"" help:"Torment holders of intents, and check what they did."`
	Queue    queueRun    `cmd:"" help:"Torment workers of a queue, and check what they did."`
	Sagas    sagasRun    `cmd:"" help:"Torment runners of sagas, with timers and a relay, and check what they did."`

	Mutants mutantsRun `cmd:"" help:"Plant bugs, one after the other, and see that each is found."`
}

type run struct {
	common
	CI        bool          `name:"ci" xor:"goals" help:"Torment until the goals of a build are reached, for at most 20m, and fail if one is not."`
	Long      bool          `xor:"goals" help:"Torment for an hour, or until some twenty times as much is reached, and fail if it is not. Its load is its own."`
	Duration  time.Duration `help:"How long to torment at most. 3m, 20m with --ci, 1h with --long." placeholder:"D"`
	Phases    []string      `name:"phase" help:"mixed: all faults; kills: the server killed every 3s, and nothing else; calm: the server left alone. mixed, or with goals one after the other." placeholder:"NAME"`
	Writers   int           `help:"Processes that write. 4, 2 with --long." placeholder:"N"`
	Readers   int           `help:"Processes that ask for versions and read streams." default:"1" placeholder:"N"`
	Consumers int           `help:"Processes that consume events, beside a group of one to four. 4, 3 with --long." placeholder:"N"`
	Handlers  int           `help:"Processes that handle commands with idempotence keys: up to 2." default:"2" placeholder:"N"`
	Faults    []string      `help:"The faults, by name, with commas; all, none, or list to see them." default:"all" placeholder:"NAME"`
	Store     string        `help:"postgres or sqlite." enum:"postgres,sqlite" default:"postgres"`
	FullDisk  bool          `help:"On a disk in memory that fills up. Only root can mount one."`
	PgBouncer bool          `help:"With a PgBouncer in transaction mode before the server." name:"pgbouncer"`
	Clock     bool          `help:"With a clock of the server that jumps. It takes libfaketime."`
}

type checkRun struct {
	Dir string `arg:"" help:"The folder that the run has written to."`
}

// Run checks the files in the folder of any run.
func (c checkRun) Run(ctx context.Context) error {
	_, err := checkScenario(ctx, c.Dir)
	return err
}

func main() {
	server.RunKeeper()
	work.RunClient()
	intents.RunProcess()
	queues.RunProcess()
	sagas.RunProcess()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once, and the keeper the rest
	var c commands
	parsed := kong.Parse(&c, kong.Name("soak"), kong.UsageOnError(), kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Description("Torments a store with real processes that are really killed, and checks their history."))
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// reportFile is in the folder of the histories.
const reportFile = "run.json"

func (f run) Run(ctx context.Context) error {
	if slices.Equal(f.Faults, []string{"list"}) {
		fmt.Println(strings.Join(store.Faults(), "\n"))
		return nil
	}
	if f.Store == "sqlite" && (f.CI || f.Long || f.FullDisk || f.PgBouncer || f.Clock) {
		return errors.New("--ci, --long, --full-disk, --pgbouncer and --clock need PostgreSQL: on SQLite say with --duration how long to torment")
	}
	if f.Check != "" {
		_, err := checkScenario(ctx, f.Check)
		return err
	}
	o := f.options()
	if !o.SQLite {
		o.Missing = store.Missing(ctx)
	}
	return do(ctx, "run", o, goalsOf(&o))
}

// whole is how long a run is that has to have done all that the goals of package check ask for.
const whole = 3 * time.Minute

// do does the run of a store, and checks it.
func do(ctx context.Context, of string, o store.Options, goals promise.Goals) error {
	o.Least = goals
	for _, fault := range o.NotDone() {
		fmt.Fprintln(os.Stderr, "not done here:", fault)
	}
	_, err := torment(ctx, of, "", &o.Options, o, goals, store.Run)
	return err
}

// goalsOf returns how much must happen in a run of a store to make it meaningful.
func goalsOf(o *store.Options) promise.Goals {
	goals := check.Goals(min(1, o.Duration.Seconds()/whole.Seconds()))
	if o.SQLite { // a call is answered, or its process is killed
		for _, key := range []string{"done:resolve", "done:write-tx", "wereWritten", "wereNot", "rolledBack"} {
			delete(goals, key)
		}
	} else {
		goals["facts:amcheck"] = 1
	}
	lossy := o.Failovers.Lossy()
	if o.Duration >= whole || o.Failovers.Total() > 0 {
		for _, fault := range o.Chosen() {
			goals["met:"+fault] = 1
			if fault == "raise-epoch" {
				goals["epochs"] = 1
			}
		}
	}
	if o.Failovers.Total() > 0 {
		ahead := lossy - o.Failovers.PutBacks // where nobody is; and no other process has a reason to stop
		goals = goals.With(promise.Goals{"epochs": 1, "undone": lossy, "ahead": ahead, "takeovers": ahead, "overtaken": (ahead + 1) / 2, "byEpoch": o.Failovers.PutBacks})
		for way, n := range o.Failovers.Ways() {
			goals["fault:"+way] = n
		}
	}
	return goals.With(o.Goals)
}

func (f run) options() store.Options {
	o := store.Options{
		Options: f.common.options("run", f.Duration), Writers: f.Writers, Readers: f.Readers, Consumers: f.Consumers, Handlers: f.Handlers,
		SQLite: f.Store == "sqlite", PgBouncer: f.PgBouncer, Clock: f.Clock, Phases: f.Phases, FullDisk: f.FullDisk,
	}
	if !slices.Equal(f.Faults, []string{"all"}) {
		o.Faults = f.Faults
	}
	duration := whole
	switch {
	case f.CI:
		o.Goals, duration = ciGoals, 20*time.Minute
	case f.Long:
		o.Goals, duration = longGoals, time.Hour
	}
	o.Duration = cmp.Or(o.Duration, duration)
	writers, consumers := 4, 4
	if f.Long {
		writers, consumers = 2, 3
	}
	o.Writers, o.Consumers = cmp.Or(o.Writers, writers), cmp.Or(o.Consumers, consumers)
	if o.Goals != nil && len(o.Phases) == 0 {
		o.Phases = []string{store.Mixed, store.Kills, store.Calm}
	}
	o.Draw()
	o.Replicas = store.Replicas{Shares: o.Seed%2 == 0, InOrder: o.Seed%2 == 1, Most: 3}
	if f.Long {
		o.Press()
	}
	return o
}

// commit returns the commit of this program, "" if it was built outside of the repository.
func commit() (name string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			name = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			name += " and changes"
		}
	}
	return name
}

// console writes log lines for a person, without colours if stderr is not a terminal.
func console() zerolog.ConsoleWriter {
	stderr, err := os.Stderr.Stat()
	return zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.TimeOnly, NoColor: err != nil || stderr.Mode()&os.ModeCharDevice == 0}
}

// The goals of a run in a build, and of a run of an hour.
var (
	ciGoals   = promise.Goals{"serverKills": 150, "clientKills": 500, "messages": 100_000, "resolved": 1000, "checked": 200_000}
	longGoals = promise.Goals{"serverKills": 2000, "clientKills": 10_000, "messages": 2_000_000, "resolved": 20_000, "checked": 4_000_000}
)

var errViolated = errors.New("a promise was broken, or too little happened to tell")

var errMissed = errors.New("no promise was broken, but a goal was not reached")
