// Command bench compares Dibs with other systems, on servers that it starts and stops itself, and
// writes a table of the figures, and lines for benchstat.
//
//	make bench                        a short run
//	make bench BENCH=--long           the run that bench/RESULTS.md is made from
//	make bench BENCH='--only write/'  some cases
//
// At the end it prints each goal with the measured figure.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/bench/cases"
	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/report"
	"github.com/dibs-go/dibs/bench/server"
)

type commands struct {
	Run  run  `cmd:"" default:"withargs" help:"Measure, and write results.json, report.md and bench.txt, which benchstat reads."`
	Docs docs `cmd:"" help:"Put the figures of a run into bench/RESULTS.md."`
}

type run struct {
	Long    bool          `help:"Measure for longer, in more rounds, with more rows: some 25 minutes."`
	Only    string        `help:"Run the cases whose names match this regular expression." placeholder:"REGEXP"`
	Rounds  int           `help:"Rounds: in each, each contender of a case has its turn. 3, or 5 with --long." placeholder:"N"`
	Seconds float64       `help:"How long to measure each contender in each round. 0.5, or 2.5 with --long." placeholder:"S"`
	Out     string        `help:"The folder for the results." default:"results" placeholder:"DIR"`
	Dir     string        `help:"Where the servers keep their data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
	Seed    uint64        `help:"What random choices are made from; another one each time if it is 0." default:"0" placeholder:"N"`
	Held    time.Duration `help:"For how long a snapshot is held in the cases of that. 2s, or 30s with --long." placeholder:"D"`
	Backlog int64         `help:"How many items wait in the case of a backlog of a queue. 100,000, or 1,000,000 with --long." placeholder:"N"`
	List    bool          `help:"Print the names of the cases, and the purpose of each."`
}

type docs struct {
	From []string `help:"The folder that the run has written to. Repeated, the cases of each later folder take the place of those before." default:"results" sep:"none" placeholder:"DIR"`
	Path string   `arg:"" help:"The document." default:"RESULTS.md"`
}

func main() {
	measure.RunChild()
	server.RunService()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once, and the kernel the servers
	var c commands
	parsed := kong.Parse(&c, kong.Name("bench"), kong.UsageOnError(), kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Description("Measures Dibs beside other systems for such work, on servers of its own, and writes a table, and lines for benchstat."))
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (d docs) Run() error {
	results, err := report.Read(d.From[0])
	if err != nil {
		return err
	}
	for _, dir := range d.From[1:] {
		later, err := report.Read(dir)
		if err != nil {
			return err
		}
		results.Add(later)
	}
	return report.Docs(d.Path, results)
}

func (f run) Run(ctx context.Context) (err error) {
	selected, err := f.selected()
	if err != nil {
		return err
	}
	if f.List {
		for _, c := range selected {
			fmt.Printf("%-36s %s\n", c.Name, c.Shows)
		}
		return nil
	}
	if err := os.MkdirAll(f.Out, 0o755); err != nil {
		return err
	}
	logFile, err := os.Create(filepath.Join(f.Out, "bench.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	log := zerolog.New(zerolog.MultiLevelWriter(console(), logFile)).With().Timestamp().Logger()

	lines, err := os.Create(filepath.Join(f.Out, report.BenchstatFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	machine, err := report.Machine(f.Dir)
	if err != nil {
		return err
	}
	servers := server.NewSet(f.Dir)
	defer func() { err = errors.Join(err, servers.Stop()) }()
	options := f.options(servers, log)
	began := time.Now()
	results := report.Results{Run: report.Run{
		Date: began, Long: f.Long, Arguments: f.arguments(), Seed: options.Seed, Rounds: options.Rounds, Seconds: options.Time.Seconds(),
		Commit: report.Commit(ctx), Machine: machine,
	}}
	measure.Run(ctx, selected, options, func(c measure.Case, r measure.Result, err error) {
		if err != nil {
			log.Error().Err(err).Str("case", c.Name).Msg("failed")
			results.Failed = append(results.Failed, report.Failed{Case: c.Name, Error: err.Error()})
			return
		}
		results.Cases = append(results.Cases, report.NewCase(r))
		if _, err := lines.WriteString(report.Benchstat(r)); err != nil {
			log.Error().Err(err).Msg("write " + report.BenchstatFile)
		}
	})
	if len(results.Cases) == 0 {
		return errors.Join(ctx.Err(), errors.New("nothing was measured"))
	}
	return f.finish(ctx, results, servers, began, log)
}

// finish writes the figures, also if some are missing.
func (f run) finish(ctx context.Context, results report.Results, servers *server.Set, began time.Time, log zerolog.Logger) error {
	results.Run.Took = time.Since(began).Round(time.Second).String()
	var err error
	if results.Run.Versions, err = servers.Versions(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if err := report.Write(f.Out, results); err != nil {
		return err
	}
	fmt.Print(report.Goals(results))
	met, goals := results.Goals()
	log.Info().Int("goals", goals).Int("met", met).Str("report", filepath.Join(f.Out, "report.md")).Msg("done")
	if len(results.Failed) > 0 {
		return fmt.Errorf("%d cases failed", len(results.Failed))
	}
	return ctx.Err()
}

// console writes log lines for a person, without colours if stderr is not a terminal.
func console() zerolog.ConsoleWriter {
	stderr, err := os.Stderr.Stat()
	return zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.TimeOnly, NoColor: err != nil || stderr.Mode()&os.ModeCharDevice == 0}
}

func (f run) options(servers *server.Set, log zerolog.Logger) measure.Options {
	o := measure.Options{Servers: servers, Rounds: 3, Time: 500 * time.Millisecond, Long: f.Long, Held: f.Held, Backlog: f.Backlog, Seed: f.Seed, Log: log}
	if f.Long {
		o.Rounds, o.Time = 5, 2500*time.Millisecond
	}
	if f.Rounds > 0 {
		o.Rounds = f.Rounds
	}
	if f.Seconds > 0 {
		o.Time = time.Duration(f.Seconds * float64(time.Second))
	}
	o.Warmup = o.Time / 4
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	return o
}

// arguments are the arguments that the figures depend on, without the places of files.
func (f run) arguments() (given []string) {
	for _, flag := range []struct {
		is   bool
		text string
	}{
		{f.Long, "--long"},
		{f.Only != "", "--only=" + f.Only},
		{f.Rounds > 0, fmt.Sprintf("--rounds=%d", f.Rounds)},
		{f.Seconds > 0, fmt.Sprintf("--seconds=%g", f.Seconds)},
		{f.Held > 0, fmt.Sprintf("--held=%v", f.Held)},
		{f.Backlog > 0, fmt.Sprintf("--backlog=%d", f.Backlog)},
	} {
		if flag.is {
			given = append(given, flag.text)
		}
	}
	return given
}

func (f run) selected() ([]measure.Case, error) {
	pattern, err := regexp.Compile(f.Only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	all := cases.All()
	if err := measure.Validate(all); err != nil {
		return nil, err
	}
	var selected []measure.Case
	for _, c := range all {
		if pattern.MatchString(c.Name) && (f.Long || f.Only != "" || !c.LongOnly) {
			selected = append(selected, c)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("--only: no case has a name that matches %q", f.Only)
	}
	return selected, nil
}
