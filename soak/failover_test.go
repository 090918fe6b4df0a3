package main

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/promise"
)

// lose is a run that loses the primary, as small as one can be, and its findings.
func lose(t *testing.T, f failover) (dir string) {
	t.Helper()
	f.Seed, f.Writers, f.Consumers, f.Handlers, f.Out, f.Dir = 3, 2, 2, 2, t.TempDir(), "/var/tmp"
	dir, err := left(t, f.Out, f.Run(t.Context()))
	told(t, dir, err)
	servers, err := filepath.Glob(filepath.Join(dir, "postgres*.log"))
	require.NoError(t, err)
	require.Len(t, servers, 1+f.Sync+f.Async+f.Restores+f.PutBacks)
	return dir
}

func TestConsumersAreToldOfAFailoverThatLostWhatTheyHaveRead(t *testing.T) {
	testkit.TakesTurns(t, 2, turns)
	dir := lose(t, failover{Sync: 1, Async: 1, Restores: 1, PutBacks: 1})
	for _, way := range []string{"failover-sync", "failover-async", "restore", "put-back"} {
		require.Equal(t, 1, counted(t, dir, "fault:"+way))
	}
	h, err := promise.Open(t.Context(), dir, check.Promises)
	require.NoError(t, err)
	found := 0
	err = h.Each(t.Context(), "select count(*) from failovers f where exists (select 1 from kept k where k.f = f.f and k.head > 0)", func(scan func(...any) error) error { return scan(&found) })
	require.NoError(t, errors.Join(err, h.Close()))
	require.Equal(t, 3, found, "that may lose something, with the end of each category")
	require.Positive(t, counted(t, dir, "ahead"))
}

func TestARunThroughPgBouncer(t *testing.T) {
	testkit.TakesTurns(t, 0, turns)
	dir, err := short(t, func(f *run) {
		f.PgBouncer, f.Duration = true, 6*time.Second
		f.Faults = []string{"kill-pgbouncer", "kill-backend", "cut"}
	})
	told(t, dir, err)
	require.FileExists(t, filepath.Join(dir, "pgbouncer.log"))
}

func TestARunWithMigrationsAndNewIndexes(t *testing.T) {
	testkit.TakesTurns(t, 3, turns)
	dir, err := short(t, func(f *run) {
		f.Duration, f.Faults = 10*time.Second, []string{"migrate", "release", "reindex", "raise-epoch"}
	})
	told(t, dir, err)
	for _, name := range []string{"migrate", "release", "raise-epoch"} {
		require.Positive(t, counted(t, dir, "fault:"+name), name)
	}
}
