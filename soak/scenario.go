package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/intents"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/queues"
	"github.com/dibs-go/dibs/soak/sagas"
)

// A scenario is one run.
type scenario struct {
	Of      string        `json:"of"`
	Scene   string        `json:"scene,omitempty"`
	Seed    uint64        `json:"seed"`
	Commit  string        `json:"commit"`
	Date    time.Time     `json:"date"`
	Options any           `json:"options"`
	Goals   promise.Goals `json:"goals"` // how much is to be done

	Complaints []string `json:"complaints,omitempty"`
}

// promises are the promises of each kind of run.
var promises = map[string]fs.FS{
	"run": check.Promises, "failover": check.Promises, "replicas": check.Promises, "queue": queues.Promises, "sagas": sagas.Promises, "intents": intents.Promises,
}

// common are the flags of all.
type common struct {
	Seed  uint64 `help:"What is drawn from: another one each time if it is 0." default:"0" placeholder:"N"`
	Out   string `help:"The folder for histories and findings; a new one below it each time." default:"results" placeholder:"DIR"`
	Dir   string `help:"Where the server keeps its data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
	Check string `help:"Torment nothing, and check the files of a run in this folder." placeholder:"DIR"`
}

// options returns the options of a run. It draws a seed if the seed is 0, and names a new folder.
func (c *common) options(of string, most time.Duration) crew.Options {
	o := crew.Options{Seed: c.Seed, Dir: c.Dir, Duration: most, Drain: drainTime}
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.Out = filepath.Join(c.Out, fmt.Sprintf("%s-%s-%d", of, time.Now().UTC().Format("20060102-150405"), o.Seed))
	return o
}

// drainTime is how long a run may take to finish its work after the faults.
const drainTime = time.Minute

// torment does a run with some options, and checks it.
func torment[O any](ctx context.Context, of, scene string, common *crew.Options, o O, goals promise.Goals, run func(context.Context, O, zerolog.Logger) ([]string, error)) (promise.Figures, error) {
	s := scenario{Of: of, Scene: scene, Seed: common.Seed, Commit: commit(), Date: time.Now().UTC(), Options: o, Goals: goals}
	log := zerolog.New(console()).With().Timestamp().Logger()
	log.Info().Uint64("seed", s.Seed).Str("commit", s.Commit).Str("at most", common.Duration.String()).Str("out", common.Out).Msg(strings.TrimSpace(of + " " + scene))
	var err error
	if s.Complaints, err = run(ctx, o, log); err != nil {
		return nil, err
	}
	encoded, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(common.Out, reportFile), encoded, 0o600); err != nil {
		return nil, err
	}
	return checkScenario(context.WithoutCancel(ctx), common.Out)
}

// checkScenario checks the files of a run.
func checkScenario(ctx context.Context, dir string) (promise.Figures, error) {
	encoded, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		return nil, err
	}
	var s scenario
	if err := json.Unmarshal(encoded, &s); err != nil {
		return nil, err
	}
	if promises[s.Of] == nil {
		return nil, fmt.Errorf("%s is of no run", dir)
	}
	verdict, err := promise.Check(ctx, dir, promises[s.Of])
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, seed %d, commit %s\n%s\n%s", strings.TrimSpace(s.Of+" "+s.Scene), s.Seed, s.Commit, verdict, verdict.Figures.Table(s.Goals))
	for _, complaint := range s.Complaints {
		fmt.Fprintln(&b, "harness:", complaint)
	}
	fmt.Fprint(os.Stdout, b.String())
	if err := os.WriteFile(filepath.Join(dir, "verdict.txt"), []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	if !verdict.Passed() || len(s.Complaints) > 0 {
		return nil, errViolated
	}
	return verdict.Figures, fallsShort(verdict.Figures, s.Goals)
}

// fallsShort returns an error that names the goals that a run has missed.
func fallsShort(n promise.Figures, goals promise.Goals) error {
	if names := n.Missed(goals); len(names) > 0 {
		return fmt.Errorf("%w: %s", errMissed, strings.Join(names, ", "))
	}
	return nil
}

// isMissed reports whether an error is only about missed goals.
func isMissed(err error) bool { return errors.Is(err, errMissed) }
