package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/queues"
)

// A queueRun torments workers of a queue.
type queueRun struct {
	Seed      uint64        `help:"What is drawn from: another one each time if it is 0." default:"0" placeholder:"N"`
	CI        bool          `name:"ci" xor:"goals" help:"Until the goals of make ci/long are reached, for at most 40m, and fail if one is not: 100 kills of the server, 500 of processes, 100,000 items. Over SQLite lesser ones, for at most 4m."`
	Long      bool          `xor:"goals" help:"Until ten times these goals are reached, for at most 6h. Over SQLite these, for at most 1h."`
	Duration  time.Duration `help:"How long to torment at most. 1m, 40m with --ci, 6h with --long." placeholder:"D"`
	Processes int           `help:"Processes that work." default:"4" placeholder:"N"`
	Workers   int           `help:"Goroutines of each." default:"6" placeholder:"N"`
	Inserters int           `help:"Processes that insert." default:"2" placeholder:"N"`
	Hold      string        `help:"Whether a dead item holds its key: yes, no, or seed for as the seed is even or odd." enum:"yes,no,seed" default:"seed" placeholder:"WHEN"`
	Calm      bool          `help:"Without kills of the server."`
	Out       string        `help:"The folder for histories and findings; a new one below it each time." default:"results" placeholder:"DIR"`
	Dir       string        `help:"Where the server keeps its data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
	Store     string        `help:"postgres, sqlite, or both, one after the other." enum:"postgres,sqlite,both" default:"both"`
	Scene     string        `help:"What the run is about, on PostgreSQL: usual, clock (the server's jumps), poison (items kill their process), hot-key, ending (no answer comes while sessions end), or all of them, one after the other." enum:"usual,clock,poison,hot-key,ending,all" default:"usual"`
	Check     string        `help:"Torment nothing, and check the files of a run in this folder." placeholder:"DIR"`
}

// A queueReport is the record of a run beside its histories.
type queueReport struct {
	Commit     string         `json:"commit"`
	Date       time.Time      `json:"date"`
	Options    queues.Options `json:"options"`
	Complaints []string       `json:"complaints,omitempty"`
}

// sceneTime is for how long a scene goes on at most: each has goals for a minute.
const sceneTime = time.Minute

// drainTime is in how long the workers have to finish what there is when the faults are over.
const drainTime = time.Minute

// Run torments, and checks.
func (f queueRun) Run(ctx context.Context) error {
	if f.Check != "" {
		return checkQueues(f.Check)
	}
	for f.Seed == 0 {
		f.Seed = rand.Uint64()
	}
	f.Out = filepath.Join(f.Out, fmt.Sprintf("queue-%s-%d", time.Now().UTC().Format("20060102-150405"), f.Seed))
	log := zerolog.New(console()).With().Timestamp().Logger()
	var missed error
	for _, o := range f.runs() {
		err := runQueues(ctx, o, log)
		if err != nil && !errors.Is(err, errMissed) {
			return err
		}
		missed = errors.Join(missed, err)
	}
	return missed
}

// runs are the options of the runs, one after the other.
func (f queueRun) runs() (all []queues.Options) {
	usual := f.Scene == "usual" || f.Scene == "all"
	if usual && f.Store != "postgres" {
		all = append(all, f.options(true))
	}
	if usual && f.Store != "sqlite" {
		all = append(all, f.options(false))
	}
	for _, scene := range queues.Scenes {
		if f.Scene == string(scene) || f.Scene == "all" {
			goals := scene.Goals()
			o := f.options(false)
			o.Scene, o.Goals, o.Calm, o.Duration = scene, &goals, true, cmp.Or(f.Duration, sceneTime)
			o.Out = filepath.Join(f.Out, string(scene))
			all = append(all, o)
		}
	}
	return all
}

// options are those of the run over a file, or on a server.
func (f queueRun) options(file bool) queues.Options {
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
	store := "postgres"
	if f.Calm || file {
		goals.ServerKills = 0
	}
	if file {
		store, goals.Unknown = "sqlite", 0 // no answer is lost
	}
	return queues.Options{
		Seed: f.Seed, Duration: cmp.Or(f.Duration, most), Drain: drainTime, Processes: f.Processes, Workers: f.Workers, Inserters: f.Inserters,
		Hold: f.Hold == "yes" || f.Hold == "seed" && f.Seed%2 == 0, SQLite: file, Calm: f.Calm, Dir: f.Dir, Goals: &goals,
		Out: filepath.Join(f.Out, store),
	}
}

// runQueues has one run, and checks it.
func runQueues(ctx context.Context, o queues.Options, log zerolog.Logger) error {
	r := queueReport{Commit: commit(), Date: time.Now().UTC(), Options: o}
	log.Info().Uint64("seed", o.Seed).Str("commit", r.Commit).Bool("hold", o.Hold).Bool("sqlite", o.SQLite).Str("at most", o.Duration.String()).Str("out", o.Out).Msg("queue")
	var err error
	if r.Complaints, err = queues.Run(ctx, o, log); err != nil {
		return err
	}
	encoded, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.Out, reportFile), encoded, 0o600); err != nil {
		return err
	}
	return checkQueues(o.Out)
}

// checkQueues checks the files of a run.
func checkQueues(dir string) error {
	encoded, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		return err
	}
	var r queueReport
	if err := json.Unmarshal(encoded, &r); err != nil {
		return err
	}
	in, err := queues.Read(dir)
	if err != nil {
		return err
	}
	verdict := queues.Check(in)
	var b strings.Builder
	fmt.Fprintf(&b, "queue, seed %d, commit %s, scene %q, sqlite %v, hold %v: %d items, %d calls, %d lines, %d effects, %d pairs of a key, %d of a name\n",
		r.Options.Seed, r.Commit, r.Options.Scene, r.Options.SQLite, r.Options.Hold, len(in.Messages), len(in.Calls), len(in.Lines), len(in.Effects), verdict.Pairs, verdict.Again)
	fmt.Fprintln(&b, verdict)
	b.WriteString(verdict.Counts.Table(r.Options.Goals))
	for _, complaint := range r.Complaints {
		fmt.Fprintln(&b, "harness:", complaint)
	}
	fmt.Fprint(os.Stdout, b.String())
	if err := os.WriteFile(filepath.Join(dir, "verdict.txt"), []byte(b.String()), 0o600); err != nil {
		return err
	}
	if !verdict.Passed() || len(r.Complaints) > 0 {
		return errViolated
	}
	if names := verdict.Counts.Missed(r.Options.Goals); len(names) > 0 {
		return fmt.Errorf("%w: %s", errMissed, strings.Join(names, ", "))
	}
	return nil
}
