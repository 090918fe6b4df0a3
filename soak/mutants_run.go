package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/mutants"
	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
)

// The errors of a run with planted bugs.
var (
	errSurvived  = errors.New("a planted bug was not found")
	errNoControl = errors.New("a run without any bug did not pass, so one with a bug says nothing")
)

// A mutantsRun plants one bug after the other.
type mutantsRun struct {
	Only    []string `help:"These, by name, with commas; list to see all." placeholder:"NAME"`
	Some    int      `help:"So many of them, others each day. All if it is 0." placeholder:"N"`
	Seconds int      `help:"For how long the store is tormented with each at least, unless it is found before." default:"60" placeholder:"N"`
	Seed    uint64   `help:"What is drawn from, and with --some which; the number of the day if it is 0." placeholder:"N"`
	Out     string   `help:"The folder for the files of runs whose bugs were not found." default:"results" placeholder:"DIR"`
	Dir     string   `help:"Where the servers keep their data: on a disk." default:"/var/tmp" placeholder:"DIR"`
}

// Run first checks that a run without a bug finds nothing, and then that each bug is found.
func (f mutantsRun) Run(ctx context.Context) error {
	if slices.Equal(f.Only, []string{"list"}) {
		for _, m := range mutants.All() {
			fmt.Fprintf(os.Stdout, "%-22s %s\n", m.Name, m.Says)
		}
		return nil
	}
	if f.Seed == 0 {
		f.Seed = uint64(time.Now().Unix() / (24 * 60 * 60)) //nolint:gosec // it is after 1970
	}
	chosen := mutants.Some(f.Some, f.Seed)
	if len(f.Only) > 0 {
		var err error
		if chosen, err = mutants.Named(f.Only...); err != nil {
			return err
		}
	}
	root, err := plant.Root(ctx)
	if err != nil {
		return err
	}
	for _, m := range chosen { // a bug that is no longer there to plant is found now, and not after an hour
		if _, err := m.Plant.Overlay(root); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	f.Out = filepath.Join(f.Out, fmt.Sprintf("mutants-%s-%d", time.Now().UTC().Format("20060102-150405"), f.Seed))
	fmt.Fprintf(os.Stdout, "seed %d, commit %s\n", f.Seed, commit())
	if err := f.control(ctx, chosen); err != nil {
		return err
	}
	return f.find(ctx, chosen)
}

// control runs all scenes of some bugs without any.
func (f mutantsRun) control(ctx context.Context, chosen []*mutants.Mutant) error {
	var seen []*mutants.Scene
	for _, m := range chosen {
		if slices.Contains(seen, m.Scene) {
			continue
		}
		seen = append(seen, m.Scene)
		if err := f.pass(ctx, m.Scene); err != nil {
			return err
		}
	}
	return nil
}

// pass runs a scene without a bug, longer each time, until enough was done: a machine may be slow.
func (f mutantsRun) pass(ctx context.Context, s *mutants.Scene) error {
	tormented := time.Duration(0)
	for round := 0; ; round++ {
		o := s.Options(nil, f.Seed, round)
		tormented += o.Duration
		dir := filepath.Join(f.Out, fmt.Sprintf("control-%s-%d", s.Name, round))
		verdict, complaints, err := f.do(ctx, s, o, "", dir)
		if err != nil {
			return err
		}
		sound := verdict.Passed() && len(complaints) == 0
		missed := verdict.Figures.Missed(s.Least)
		if sound && len(missed) == 0 {
			var did []string
			for _, key := range slices.Sorted(maps.Keys(s.Least)) {
				did = append(did, fmt.Sprintf("%s %d", key, verdict.Figures.Of(key)))
			}
			fmt.Fprintf(os.Stdout, "without a bug, %s: passed, with %s\n", s.Name, strings.Join(did, ", "))
			return os.RemoveAll(dir)
		}
		if !sound || tormented > f.limit() {
			fmt.Fprintln(os.Stdout, verdict, strings.Join(slices.Concat(complaints, missed), "\n"))
			return fmt.Errorf("%w: %s", errNoControl, dir)
		}
	}
}

func (f mutantsRun) limit() time.Duration { return time.Duration(f.Seconds) * time.Second }

func (f mutantsRun) find(ctx context.Context, chosen []*mutants.Mutant) error {
	const line = "%-22s %-26s %-36s %s\n"
	fmt.Fprintf(os.Stdout, "\n"+line, "bug", "where", "found by", "after")
	survivors := 0
	for _, m := range chosen {
		program, err := f.build(ctx, m) // which takes as long as the machine likes, and finds nothing
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		began := time.Now()
		by, err := f.hunt(ctx, m, program)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if len(by) == 0 {
			survivors++
			by = []string{"NOTHING"}
		}
		fmt.Fprintf(os.Stdout, line, m.Name, m.Where(), strings.Join(by, ", "), time.Since(began).Round(time.Second))
	}
	fmt.Fprintf(os.Stdout, "\n%d of %d were found\n", len(chosen)-survivors, len(chosen))
	if survivors > 0 {
		return fmt.Errorf("%w: the files of the runs are in %s", errSurvived, f.Out)
	}
	return nil
}

// hunt runs with a bug, longer each time, until an invariant is broken that the bug is meant to
// break. Other broken invariants do not count: a bug that is mere nonsense would break the server's
// log.
func (f mutantsRun) hunt(ctx context.Context, m *mutants.Mutant, program string) (by []string, err error) {
	tormented := time.Duration(0) // a machine that is slow has as many rounds
	for round := 0; round == 0 || tormented < f.limit(); round++ {
		dir := filepath.Join(f.Out, fmt.Sprintf("%s-%d", m.Name, round))
		o := m.Scene.Options(m, f.Seed, round)
		verdict, _, err := f.do(ctx, m.Scene, o, program, dir)
		if err != nil {
			return nil, err
		}
		tormented += o.Duration
		for _, rule := range m.Breaks {
			if verdict.Broken[rule] > 0 {
				by = append(by, string(rule))
			}
		}
		if len(by) > 0 {
			return by, os.RemoveAll(dir)
		}
	}
	return nil, nil
}

func (f mutantsRun) do(ctx context.Context, s *mutants.Scene, o crew.Options, program, dir string) (*promise.Verdict, []string, error) {
	o.Program, o.Out, o.Dir = program, dir, f.Dir
	complaints, err := s.Run(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	verdict, err := promise.Check(ctx, dir, s.Promises)
	return verdict, complaints, err
}

// build returns the program of clients that have the bug, "" for this one if the bug is not in Go.
func (f mutantsRun) build(ctx context.Context, m *mutants.Mutant) (string, error) {
	if len(m.Plant.Go) == 0 {
		return "", nil
	}
	root, err := plant.Root(ctx)
	if err != nil {
		return "", err
	}
	return m.Plant.Build(ctx, root, filepath.Join(f.Out, "program-"+m.Name))
}
