package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/harness"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/work"
)

// whole is how long a run is that has to have done all that the guards ask for.
const whole = 3 * time.Minute

// Run checks the files in the folder, of whichever run.
func (c checkRun) Run(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(c.Dir, promise.File)); err == nil {
		_, err := checkScenario(ctx, c.Dir)
		return err
	}
	encoded, err := os.ReadFile(filepath.Join(c.Dir, reportFile))
	if err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(encoded, &r); err != nil {
		return err
	}
	guards := check.DefaultGuards(min(1, r.Options.Duration.Seconds()/whole.Seconds()))
	if r.Options.SQLite { // a call is answered, or its process is killed
		delete(guards.Done, history.Resolve)
		delete(guards.Done, history.WriteTx)
		guards.Written, guards.NotWritten, guards.RolledBack = 0, 0, 0
	}
	if r.Options.Replicas.Only {
		guards = replicaGuards(r.Options.Duration)
	}
	failovers := r.Options.Failovers
	if r.Options.Duration >= whole || failovers.Total() > 0 {
		guards.Faults = r.Options.Chosen()
	}
	if lossy := failovers.Lossy(); lossy > 0 {
		ahead := lossy - failovers.PutBacks // where nobody is
		guards.Undone, guards.Ahead, guards.Overtaken, guards.ByEpoch = lossy, ahead, (ahead+1)/2, failovers.PutBacks
	}
	if failovers.Total() > 0 {
		guards.Takeovers = guards.Ahead // no other process has a reason to stop
	}
	if failovers.Total() > 0 || slices.Contains(guards.Faults, "raise-epoch") {
		guards.Epochs = 1
	}
	verdict, err := check.Run(ctx, check.Inputs{Histories: c.Dir, Rows: rows(filepath.Join(c.Dir, harness.RowsFile)), Facts: r.Result.Facts}, &check.Config{
		Guards: guards, Unrecorded: []messagestore.Category{work.Probes}, HealLimit: 5 * time.Minute,
		AllowedSQLStates: allowed(),
		// A parallel worker whose leader was cancelled before it was there.
		AllowedTexts: []string{"could not map dynamic shared memory segment", "could not attach to dynamic shared area"},
	})
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, commit %s, %s\n", r.Options.Seed, r.Commit, r.Options.Duration)
	fmt.Fprintf(&b, "%d messages; faults %v; ends of clients %v; all quiet after %s\n", r.Result.Messages, r.Result.Faults, r.Result.Ends, r.Result.Quiet.Round(time.Millisecond))
	fmt.Fprintln(&b, verdict)
	goals := harness.Goals{} // a run that is short has none
	if r.Options.Goals != nil {
		goals = *r.Options.Goals
	}
	all := figures(&goals, r.Result, verdict)
	if failovers.Total() > 0 {
		all = failoverFigures(failovers, r.Result, verdict)
	}
	if r.Options.Replicas.Only {
		all = nil
	}
	b.WriteString(table(append(all, replicaFigures(verdict)...)))
	for _, fault := range r.Options.NotDone() {
		fmt.Fprintln(&b, "not done here:", fault)
	}
	for _, complaint := range r.Result.Complaints {
		fmt.Fprintln(&b, "harness:", complaint)
	}
	fmt.Print(b.String())
	if err := os.WriteFile(filepath.Join(c.Dir, "verdict.txt"), []byte(b.String()), 0o600); err != nil {
		return err
	}
	switch {
	case !verdict.Passed() || len(r.Result.Complaints) > 0:
		return errViolated
	case (goals.Must || failovers.Total() > 0) && fails(all):
		return errMissed
	}
	return nil
}

// allowed are the errors that the log of the server may have.
func allowed() []string {
	return append(check.DefaultSQLStates(), "23505") // an id that comes again
}

// rows yields the rows that the harness found in the store.
func rows(path string) iter.Seq2[*check.Row, error] {
	return func(yield func(*check.Row, error) bool) {
		file, err := os.Open(path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer file.Close()
		decoder := json.NewDecoder(bufio.NewReader(file))
		for {
			var row harness.Row
			err := decoder.Decode(&row)
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(new(check.Row(row)), err) || err != nil {
				return
			}
		}
	}
}
