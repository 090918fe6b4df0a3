// Command bench measures Dibs beside what else does such work, on servers that it
// starts and stops itself, and writes a table and charts of what it found.
//
//	make bench                        a short run
//	make bench BENCH=--long           the run that docs/performance.md is made from
//	make bench BENCH='--only write/'  some cases
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
	"github.com/dibs-go/dibs/bench/server"
)

type flags struct {
	Long    bool    `help:"Measure for longer, in more rounds, with more rows: at most half an hour."`
	Only    string  `help:"Run the cases whose names match this regular expression." placeholder:"REGEXP"`
	Rounds  int     `help:"Rounds: in each, each contender of a case has its turn. 3, or 5 with --long." placeholder:"N"`
	Seconds float64 `help:"How long to measure each contender in each round. 0.6, or 3 with --long." placeholder:"S"`
	Out     string  `help:"The folder for what was found." default:"results"`
	Dir     string  `help:"Where the servers keep their data: on a disk, or syncs cost nothing." default:"/var/tmp" placeholder:"DIR"`
	Seed    uint64  `help:"What random choices are made from; 0 for another one each time." default:"0" placeholder:"N"`
	List    bool    `help:"Print the names of the cases, and what each shows."`
}

func main() {
	measure.RunChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once, and the kernel the servers
	var f flags
	kong.Parse(&f, kong.Name("bench"), kong.Description("Measures Dibs beside what else does such work, and writes a table and charts."), kong.UsageOnError())
	if err := f.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (f flags) run(ctx context.Context) (err error) {
	selected, err := f.selected()
	if err != nil {
		return err
	}
	if f.List {
		for _, c := range selected {
			fmt.Printf("%-40s %s\n", c.Name, c.Shows)
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
	log := zerolog.New(zerolog.MultiLevelWriter(zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.TimeOnly}, logFile)).With().Timestamp().Logger()

	servers := server.NewSet(f.Dir)
	defer func() { err = errors.Join(err, servers.Stop()) }()
	return measure.Run(ctx, selected, f.options(servers, log), func(r measure.Result) error {
		fmt.Println(r.Case.Name)
		for _, c := range r.Contenders {
			fmt.Println(" ", c, r.Rounds[c])
		}
		return nil
	})
}

func (f flags) options(servers *server.Set, log zerolog.Logger) measure.Options {
	o := measure.Options{Servers: servers, Rounds: 3, Seconds: 600 * time.Millisecond, Long: f.Long, Seed: f.Seed, Log: log}
	if f.Long {
		o.Rounds, o.Seconds = 5, 3*time.Second
	}
	if f.Rounds > 0 {
		o.Rounds = f.Rounds
	}
	if f.Seconds > 0 {
		o.Seconds = time.Duration(f.Seconds * float64(time.Second))
	}
	o.Warmup = o.Seconds / 4
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	return o
}

func (f flags) selected() ([]measure.Case, error) {
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
