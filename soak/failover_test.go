package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/soak/history"
)

// lose is a run that loses the primary, as small as one can be, and its findings.
func lose(t *testing.T, f failover) (report, string) {
	t.Helper()
	f.Seed, f.Writers, f.Consumers, f.Handlers, f.Out, f.Dir = 3, 2, 2, 2, t.TempDir(), "/var/tmp"
	dir, err := left(t, f.Out, f.Run(t.Context()))
	told(t, dir, err)
	encoded, err := os.ReadFile(filepath.Join(dir, reportFile))
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(encoded, &r))
	servers, err := filepath.Glob(filepath.Join(dir, "postgres*.log"))
	require.NoError(t, err)
	require.Len(t, servers, 1+r.Options.Failovers.Total())
	return r, dir
}

// failovers returns the failovers in the history that may lose something.
func failovers(t *testing.T, dir string) (all []*history.Operation) {
	t.Helper()
	for o, err := range history.Operations(filepath.Join(dir, "nemesis"+history.Ending)) {
		require.NoError(t, err)
		if o.Func == history.Failover {
			all = append(all, o)
		}
	}
	return all
}

func TestConsumersAreToldOfAFailoverThatLostWhatTheyHaveRead(t *testing.T) {
	tier.TakesTurns(t, 2, turns)
	r, dir := lose(t, failover{Sync: 1, Async: 1, Restores: 1, PutBacks: 1})
	require.Equal(t, map[string]int{"failover-sync": 1, "failover-async": 1, "restore": 1, "put-back": 1}, r.Result.Faults)
	found := failovers(t, dir)
	require.Len(t, found, 3) // that may lose something
	for _, f := range found {
		require.NotEmpty(t, f.Answer) // the head of each category
	}
	require.Positive(t, r.Result.Ends["ahead"], "%v", r.Result.Ends)
}

func TestARunThroughPgBouncer(t *testing.T) {
	tier.TakesTurns(t, 0, turns)
	dir, err := short(t, func(f *run) {
		f.PgBouncer, f.Duration = true, 6*time.Second
		f.Faults = []string{"kill-pgbouncer", "kill-backend", "cut"}
	})
	told(t, dir, err)
	require.FileExists(t, filepath.Join(dir, "pgbouncer.log"))
}

func TestARunWithMigrationsAndNewIndexes(t *testing.T) {
	tier.TakesTurns(t, 3, turns)
	dir, err := short(t, func(f *run) {
		f.Duration, f.Faults = 10*time.Second, []string{"migrate", "release", "reindex", "raise-epoch"}
	})
	told(t, dir, err)
	events, err := os.ReadFile(filepath.Join(dir, "nemesis"+history.Ending))
	require.NoError(t, err)
	for _, name := range []string{"migrate", "release", "raise-epoch"} {
		require.Contains(t, string(events), "class="+name)
	}
}
