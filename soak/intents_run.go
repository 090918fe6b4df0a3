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

	"github.com/dibs-go/dibs/soak/intents"
)

// An intentsRun torments holders of intents.
type intentsRun struct {
	Seed       uint64        `help:"What is drawn from: another one each time if it is 0." default:"0" placeholder:"N"`
	CI         bool          `name:"ci" xor:"goals" help:"Torment until the goals are reached, for at most 20m, and fail if one is not."`
	Long       bool          `xor:"goals" help:"Torment for an hour, and fail if a goal is not reached."`
	Duration   time.Duration `help:"How long to torment at most. 1m, 20m with --ci, 1h with --long." placeholder:"D"`
	Processes  int           `help:"Processes that work on intents." default:"5" placeholder:"N"`
	Goroutines int           `help:"Goroutines of each." default:"6" placeholder:"N"`
	Clock      bool          `help:"With a clock of the server that jumps, so that nothing is told by its time. It takes libfaketime."`
	Out        string        `help:"The folder for histories and findings; a new one below it each time." default:"results" placeholder:"DIR"`
	Dir        string        `help:"Where the server keeps its data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
	Check      string        `help:"Torment nothing, and check the files of a run in this folder." placeholder:"DIR"`
}

func (f intentsRun) options() intents.Options {
	o := intents.Options{Seed: f.Seed, Processes: f.Processes, Goroutines: f.Goroutines, Clock: f.Clock, Dir: f.Dir}
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	duration := time.Minute
	switch {
	case f.CI:
		duration, o.Goals = 20*time.Minute, &intents.Issue
	case f.Long:
		duration = time.Hour
	}
	o.Duration = cmp.Or(f.Duration, duration)
	return o
}

// An intentsReport is the record of a run beside its histories.
type intentsReport struct {
	Commit     string          `json:"commit"`
	Date       time.Time       `json:"date"`
	Options    intents.Options `json:"options"`
	Goals      intents.Counts  `json:"goals"`
	Complaints []string        `json:"complaints,omitempty"`
}

// Run torments, and checks.
func (f intentsRun) Run(ctx context.Context) error {
	if f.Check != "" {
		return checkIntents(f.Check)
	}
	log := zerolog.New(console()).With().Timestamp().Logger()
	r := intentsReport{Commit: commit(), Date: time.Now().UTC(), Options: f.options(), Goals: intents.Short}
	if f.CI || f.Long {
		r.Goals = intents.Issue
	}
	if f.Clock {
		r.Goals.Jumps = 1
	}
	o := r.Options
	o.Out = filepath.Join(f.Out, fmt.Sprintf("intents-%s-%d", r.Date.Format("20060102-150405"), o.Seed))
	log.Info().Uint64("seed", o.Seed).Str("commit", r.Commit).Dur("at most", o.Duration).Str("out", o.Out).Msg("intents")
	var err error
	if r.Complaints, err = intents.Run(ctx, o, log); err != nil {
		return err
	}
	encoded, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.Out, reportFile), encoded, 0o600); err != nil {
		return err
	}
	return checkIntents(o.Out)
}

// checkIntents checks the files in a folder.
func checkIntents(dir string) error {
	encoded, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		return err
	}
	var r intentsReport
	if err := json.Unmarshal(encoded, &r); err != nil {
		return err
	}
	in, err := intents.Read(dir, r.Options.Clock)
	if err != nil {
		return err
	}
	verdict := intents.Check(in)
	var b strings.Builder
	fmt.Fprintf(&b, "intents, seed %d, commit %s: %d messages, %d calls, %d writes to the resource\n", r.Options.Seed, r.Commit, len(in.Messages), len(in.Calls), len(in.Writes))
	fmt.Fprintln(&b, verdict)
	b.WriteString(verdict.Counts.Table(&r.Goals))
	for _, complaint := range r.Complaints {
		fmt.Fprintln(&b, "harness:", complaint)
	}
	fmt.Fprint(os.Stdout, b.String())
	if err := os.WriteFile(filepath.Join(dir, "verdict.txt"), []byte(b.String()), 0o600); err != nil {
		return err
	}
	switch {
	case !verdict.Passed() || len(r.Complaints) > 0:
		return errViolated
	case len(verdict.Counts.Missed(&r.Goals)) > 0:
		return errMissed
	}
	return nil
}
