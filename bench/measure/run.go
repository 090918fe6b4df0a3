package measure

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/bench/server"
)

// Options configure a run of cases.
type Options struct {
	Servers      *server.Set
	Rounds       int
	Time, Warmup time.Duration
	Long, Smoke  bool
	Held         time.Duration
	Backlog      int64
	Seed         uint64
	Log          zerolog.Logger
}

// A Result has the measurements of a case.
type Result struct {
	Case       Case                            `json:"-"`
	Contenders []string                        `json:"contenders"`
	Rounds     map[string][]map[Metric]float64 `json:"rounds"` // by contender
}

// Run runs cases one after the other, and calls each with the measurements of a case, or with its
// error. Run ends when the context ends.
func Run(ctx context.Context, cases []Case, o Options, each func(Case, Result, error)) {
	began, cells, done := time.Now(), 0, 0
	for _, c := range cases {
		cells += len(c.Contenders) * o.Rounds
	}
	for i, c := range cases {
		o.Log.Info().Str("case", c.Name).Msgf("%d of %d: %s", i+1, len(cases), c.Shows)
		first := done
		progress := func() (int, time.Duration) {
			done++
			return done * 100 / cells, time.Duration(float64(time.Since(began)) / float64(done) * float64(cells-done)).Round(time.Second)
		}
		result, err := runCase(ctx, c, o, progress)
		done = first + len(c.Contenders)*o.Rounds
		each(c, result, err)
		if ctx.Err() != nil {
			return
		}
	}
}

func runCase(ctx context.Context, c Case, o Options, progress func() (percent int, left time.Duration)) (_ Result, err error) {
	hash := fnv.New64a()
	hash.Write([]byte(c.Name))
	seed := o.Seed ^ hash.Sum64()
	newCell := func(round int) *Cell {
		return &Cell{Servers: o.Servers, Time: o.Time, Warmup: o.Warmup, Long: o.Long, Smoke: o.Smoke, Held: o.Held, Backlog: o.Backlog, Seed: seed + uint64(round)} //nolint:gosec // a few
	}
	if c.Setup != nil {
		cell := newCell(0)
		defer func() { err = errors.Join(err, cell.close(context.WithoutCancel(ctx))) }()
		if err := c.Setup(ctx, cell); err != nil {
			return Result{}, fmt.Errorf("set up: %w", err)
		}
	}
	r := Result{Case: c, Rounds: map[string][]map[Metric]float64{}}
	for _, contender := range c.Contenders {
		r.Contenders = append(r.Contenders, contender.Name)
	}
	for round := range o.Rounds {
		turn := round % len(c.Contenders)
		for _, contender := range slices.Concat(c.Contenders[turn:], c.Contenders[:turn]) {
			cell := newCell(round)
			metrics, err := runCell(ctx, contender, cell)
			if err != nil {
				return r, fmt.Errorf("%s, round %d: %w", contender.Name, round+1, err)
			}
			r.Rounds[contender.Name] = append(r.Rounds[contender.Name], metrics)
			percent, left := progress()
			event := o.Log.Info().Str("case", c.Name).Int("round", round+1).Str("contender", contender.Name)
			if rate, ok := metrics[Rate]; ok {
				event.Int("rate", int(rate))
			}
			event.Int("percent", percent).Stringer("left", left).Msg("measured")
		}
	}
	return r, nil
}

func runCell(ctx context.Context, contender Contender, cell *Cell) (_ map[Metric]float64, err error) {
	defer func() { err = errors.Join(err, cell.close(context.WithoutCancel(ctx))) }()
	if err := contender.Run(ctx, cell); err != nil {
		return nil, err
	}
	if !cell.measured || cell.checks == 0 {
		return nil, errors.New("it has not measured, or not checked its work")
	}
	return cell.tally.Metrics(), nil
}
