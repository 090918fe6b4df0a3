package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/sagas"
)

// A sagasRun torments runners of sagas, with timers and a relay.
type sagasRun struct {
	Seed      uint64        `help:"What is drawn from: another one each time if it is 0." default:"0" placeholder:"N"`
	CI        bool          `name:"ci" xor:"goals" help:"Until the goals of make ci/long are reached, for at most 30m, and fail if one is not: 100 kills of runners, 1,000 cuts, 20 kills of the server, 10,000 sagas, 100,000 timers."`
	Duration  time.Duration `help:"How long to torment at most. 1m, 30m with --ci." placeholder:"D"`
	Runners   int           `help:"Processes that run sagas, ring timers and send letters." default:"3" placeholder:"N"`
	Customers int           `help:"Sagas at a time, of each of two processes." default:"60" placeholder:"N"`
	Timers    int           `help:"That are set a second, by each of these." default:"100" placeholder:"N"`
	Calm      bool          `help:"Without kills of the server."`
	Clock     bool          `xor:"goals" help:"With a clock of the server that jumps, and without kills of it."`
	Out       string        `help:"The folder for histories and findings; a new one below it each time." default:"results" placeholder:"DIR"`
	Dir       string        `help:"Where the server keeps its data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
	Check     string        `help:"Torment nothing, and check the files of a run in this folder." placeholder:"DIR"`
}

// A sagasReport is the record of a run beside its histories.
type sagasReport struct {
	Commit     string        `json:"commit"`
	Date       time.Time     `json:"date"`
	Options    sagas.Options `json:"options"`
	Complaints []string      `json:"complaints,omitempty"`
}

// Run torments, and checks.
func (f sagasRun) Run(ctx context.Context) error {
	if f.Check != "" {
		return checkSagas(f.Check)
	}
	for f.Seed == 0 {
		f.Seed = rand.Uint64()
	}
	goals, most := sagas.Short, time.Minute
	if f.CI {
		goals, most = sagas.Issue, 30*time.Minute
	}
	if f.Clock {
		goals, f.Customers = sagas.Jumpy, f.Customers/4 // each jump has all sessions end at once
	}
	if f.Calm {
		goals.ServerKills = 0
	}
	o := sagas.Options{
		Seed: f.Seed, Duration: cmp.Or(f.Duration, most), Drain: drainTime, Runners: f.Runners, Customers: f.Customers, Timers: f.Timers, Calm: f.Calm || f.Clock, Clock: f.Clock, Flood: !f.Clock,
		Dir: f.Dir, Goals: &goals, Out: filepath.Join(f.Out, fmt.Sprintf("sagas-%s-%d", time.Now().UTC().Format("20060102-150405"), f.Seed)),
	}
	log := zerolog.New(console()).With().Timestamp().Logger()
	r := sagasReport{Commit: commit(), Date: time.Now().UTC(), Options: o}
	log.Info().Uint64("seed", o.Seed).Str("commit", r.Commit).Str("at most", o.Duration.String()).Str("out", o.Out).Msg("sagas")
	var err error
	if r.Complaints, err = sagas.Run(ctx, o, log); err != nil {
		return err
	}
	encoded, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.Out, reportFile), encoded, 0o600); err != nil {
		return err
	}
	return checkSagas(o.Out)
}

// checkSagas checks the files of a run.
func checkSagas(dir string) error {
	encoded, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		return err
	}
	var r sagasReport
	if err := json.Unmarshal(encoded, &r); err != nil {
		return err
	}
	in, err := sagas.Read(dir)
	if err != nil {
		return err
	}
	verdict := sagas.Check(in)
	var b strings.Builder
	fmt.Fprintf(&b, "sagas, seed %d, commit %s: %d messages, %d of them by known runners, %d calls, %d rows\n",
		r.Options.Seed, r.Commit, len(in.Messages), verdict.Known, len(in.Calls), len(in.Rows))
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
