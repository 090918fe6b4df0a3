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
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/intents"
)

// An intentsRun torments holders of intents.
type intentsRun struct {
	Seed       uint64        `help:"What is drawn from: another one each time if it is 0." default:"0" placeholder:"N"`
	CI         bool          `name:"ci" help:"All scenes, one after the other, the last of them until all goals are reached together, and fail if one is not."`
	Scene      string        `help:"faults: all but those of the other scenes; calm: none; clock: with a clock of the server that jumps and stands; pgbouncer: through one that is killed; failovers: to standbys." enum:"faults,calm,clock,pgbouncer,failovers" default:"faults" placeholder:"NAME"`
	Duration   time.Duration `help:"How long to torment at most, in the last scene with --ci. 1m, 8m with --ci." placeholder:"D"`
	Processes  int           `help:"Processes that work on intents." default:"5" placeholder:"N"`
	Goroutines int           `help:"Goroutines of each." default:"8" placeholder:"N"`
	Sync       int           `help:"Failovers to a standby that commits wait for." default:"5" placeholder:"N"`
	Async      int           `help:"Failovers to a standby that lacks the last acknowledged messages." default:"5" placeholder:"N"`
	Out        string        `help:"The folder for histories and findings; a new one below it each time." default:"results" placeholder:"DIR"`
	Dir        string        `help:"Where the server keeps its data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
	Check      string        `help:"Torment nothing, and check the files of a run in this folder." placeholder:"DIR"`
}

// A scene has its time, and how much is to happen in it at least. The last one of --ci has more time, and what
// the others have left of the goals of all.
type scene struct {
	name    string
	time    time.Duration
	goals   intents.Counts
	options func(o *intents.Options)
}

func (f intentsRun) scenes() []scene {
	some := intents.Short
	calm := intents.Counts{Held: 10, Done: 10, Several: 1, Work: 100}
	clock, bouncer, lost := some, some, calm
	clock.Jumps, clock.Freezes = 5, 2
	bouncer.BouncerKills = 3
	lost.SyncFailovers, lost.AsyncFailovers = f.Sync, f.Async
	return []scene{
		{"calm", 20 * time.Second, calm, func(o *intents.Options) { o.Calm = true }},
		{"clock", 40 * time.Second, clock, func(o *intents.Options) { o.Clock = true }},
		{"pgbouncer", 40 * time.Second, bouncer, func(o *intents.Options) { o.PgBouncer = true }},
		{"failovers", time.Duration(f.Sync+f.Async) * failoverTime, lost, func(o *intents.Options) { o.Failovers = intents.Failovers{Sync: f.Sync, Async: f.Async} }},
		{"faults", time.Minute, some, func(*intents.Options) {}},
	}
}

// failoverTime is the most that each may take, with the load before it.
const failoverTime = 40 * time.Second

// An intentsReport is the record of a run beside its histories.
type intentsReport struct {
	Commit     string          `json:"commit"`
	Scene      string          `json:"scene"`
	Date       time.Time       `json:"date"`
	Options    intents.Options `json:"options"`
	Goals      intents.Counts  `json:"goals"`
	Complaints []string        `json:"complaints,omitempty"`
}

// Run torments, and checks.
func (f intentsRun) Run(ctx context.Context) error {
	if f.Check != "" {
		_, err := checkIntents(f.Check)
		return err
	}
	for f.Seed == 0 {
		f.Seed = rand.Uint64()
	}
	f.Out = filepath.Join(f.Out, fmt.Sprintf("intents-%s-%d", time.Now().UTC().Format("20060102-150405"), f.Seed))
	log := zerolog.New(console()).With().Timestamp().Logger()
	scenes := f.scenes()
	if !f.CI {
		i := slices.IndexFunc(scenes, func(s scene) bool { return s.name == f.Scene })
		s := scenes[i]
		s.time = cmp.Or(f.Duration, s.time)
		n, err := f.run(ctx, s, nil, log)
		if err != nil {
			return err
		}
		return fallsShort(n, &s.goals)
	}
	sum, short := &intents.Counts{}, error(nil)
	for i, s := range scenes {
		var until *intents.Counts
		if i == len(scenes)-1 {
			s.time, s.goals = cmp.Or(f.Duration, 8*time.Minute), *sum.Left(&intents.Issue)
			until = &s.goals
		}
		n, err := f.run(ctx, s, until, log)
		if err != nil {
			return err
		}
		sum.Add(n)
		if until == nil {
			short = errors.Join(short, fallsShort(n, &s.goals))
		}
	}
	fmt.Fprintf(os.Stdout, "\nall scenes, seed %d, commit %s: 0 broken\n%s", f.Seed, commit(), sum.Table(&intents.Issue))
	return errors.Join(short, fallsShort(sum, &intents.Issue))
}

// fallsShort returns an error that names the counts that a run has missed.
func fallsShort(n, goals *intents.Counts) error {
	if names := n.Missed(goals); len(names) > 0 {
		return fmt.Errorf("%w: %s", errMissed, strings.Join(names, ", "))
	}
	return nil
}

// run has one scene, until there is so much, and checks it.
func (f intentsRun) run(ctx context.Context, s scene, until *intents.Counts, log zerolog.Logger) (*intents.Counts, error) {
	r := intentsReport{Commit: commit(), Date: time.Now().UTC(), Scene: s.name, Goals: s.goals}
	r.Options = intents.Options{Seed: f.Seed, Processes: f.Processes, Goroutines: f.Goroutines, Dir: f.Dir, Duration: s.time, Goals: until}
	s.options(&r.Options)
	o := r.Options
	o.Out = filepath.Join(f.Out, s.name)
	log.Info().Uint64("seed", o.Seed).Str("commit", r.Commit).Str("at most", o.Duration.String()).Str("out", o.Out).Msg("intents, scene " + s.name)
	var err error
	if r.Complaints, err = intents.Run(ctx, o, log); err != nil {
		return nil, err
	}
	encoded, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.Out, reportFile), encoded, 0o600); err != nil {
		return nil, err
	}
	return checkIntents(o.Out)
}

// checkIntents checks the files of one scene.
func checkIntents(dir string) (*intents.Counts, error) {
	encoded, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		return nil, err
	}
	var r intentsReport
	if err := json.Unmarshal(encoded, &r); err != nil {
		return nil, err
	}
	in, err := intents.Read(dir, r.Options.Clock)
	if err != nil {
		return nil, err
	}
	verdict := intents.Check(in)
	var b strings.Builder
	fmt.Fprintf(&b, "intents, scene %s, seed %d, commit %s: %d messages, %d calls, %d writes to the resource\n",
		r.Scene, r.Options.Seed, r.Commit, len(in.Messages), len(in.Calls), len(in.Writes))
	fmt.Fprintln(&b, verdict)
	b.WriteString(verdict.Counts.Table(&r.Goals))
	for _, complaint := range r.Complaints {
		fmt.Fprintln(&b, "harness:", complaint)
	}
	fmt.Fprint(os.Stdout, b.String())
	if err := os.WriteFile(filepath.Join(dir, "verdict.txt"), []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	if !verdict.Passed() || len(r.Complaints) > 0 {
		return nil, errViolated
	}
	return &verdict.Counts, nil
}
