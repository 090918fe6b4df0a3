package main

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/harness"
)

func reached() (*harness.Result, *check.Verdict) {
	g := harness.CI
	r := &harness.Result{
		Crashes: g.ServerKills, Ends: map[string]int{"killed at postgres/sent": g.ClientKills - 1, "killed at consumer/handle": 1, "killed": 7},
		Messages: int64(g.Messages), Recovery: harness.Recovery{First: []time.Duration{time.Second, g.Recovery - 1}},
	}
	return r, &check.Verdict{
		Checked: map[check.Invariant]int64{check.Linearizable: int64(g.Checked)}, Broken: map[check.Invariant]int64{},
		ResolvedWritten: int64(g.Resolved) - 1, ResolvedNotWritten: 1,
	}
}

// A slow machine fails no run, and one in which nothing recovered is no fast one.
func TestATimeFailsNoRun(t *testing.T) {
	t.Parallel()
	for _, times := range [][]time.Duration{nil, {harness.CI.Recovery}} {
		f := recovered("p99", harness.CI.Recovery, times)
		require.True(t, f.missed)
		require.Equal(t, times == nil, fails([]figure{f}))
	}
}

func missed(r *harness.Result, v *check.Verdict) (names []string) {
	for _, f := range figures(&harness.CI, r, v) {
		if f.missed {
			names = append(names, f.name)
		}
	}
	return names
}

func TestEachGoalIsReachedOrMissed(t *testing.T) {
	t.Parallel()
	require.Empty(t, missed(reached()))
	for name, spoil := range map[string]func(*harness.Result, *check.Verdict){
		"kill -9 of PostgreSQL under load":                       func(r *harness.Result, _ *check.Verdict) { r.Crashes-- },
		"kill -9 of clients at failpoints":                       func(r *harness.Result, _ *check.Verdict) { r.Ends["killed at consumer/handle"]-- },
		"messages through faults":                                func(r *harness.Result, _ *check.Verdict) { r.Messages-- },
		"unknown outcomes, resolved right":                       func(_ *harness.Result, v *check.Verdict) { v.ResolvedNotWritten-- },
		"operations checked for linearizability":                 func(_ *harness.Result, v *check.Verdict) { v.Checked[check.Linearizable]-- },
		"handling again after a kill, p99":                       func(r *harness.Result, _ *check.Verdict) { r.Recovery.First[1]++ },
		"  lost / phantom / done twice / skipped / out of order": func(_ *harness.Result, v *check.Verdict) { v.Broken[check.NoSkip]++ },
	} {
		r, v := reached()
		spoil(r, v)
		require.Equal(t, []string{name}, missed(r, v))
	}
}

func TestARunWithoutItsFailoversFails(t *testing.T) {
	t.Parallel()
	want := harness.Failovers{Sync: 2, Async: 1, Restores: 1, PutBacks: 1}
	done := map[string]int{harness.SyncLoss: 2, harness.AsyncLoss: 1, harness.RestoreLoss: 1, harness.PutBackLoss: 1}
	v := &check.Verdict{Checked: map[check.Invariant]int64{}, Broken: map[check.Invariant]int64{}}
	require.False(t, fails(failoverFigures(want, &harness.Result{Faults: done}, v)))
	for name := range done {
		fewer := maps.Clone(done)
		fewer[name]--
		require.True(t, fails(failoverFigures(want, &harness.Result{Faults: fewer}, v)), name)
	}
}

func TestNoRecoveryIsNoFastOne(t *testing.T) {
	t.Parallel()
	r, v := reached()
	r.Recovery.First = nil
	require.Equal(t, []string{"handling again after a kill, p99"}, missed(r, v))
}

func TestTableHasGoalBesideFigure(t *testing.T) {
	t.Parallel()
	r, v := reached()
	v.Broken[check.Order] = 2
	told := table(figures(&harness.CI, r, v))
	require.Regexp(t, `(?m)^messages through faults +100,000   100,000$`, told)
	require.Regexp(t, `(?m)^  lost / phantom / done twice / skipped / out of order +0 / 0 / 0 / 0 / 0   0 / 0 / 0 / 0 / 2   missed$`, told)
	require.Regexp(t, `(?m)^handling again after a kill, p99 +< 2 s   2\.0 s of 2, median 1\.0 s$`, told)
	require.Equal(t, "1,234,567", thousands(1_234_567))
	require.Equal(t, "999", thousands(999))
}

func TestARunThatIsPartOfABuildHasGoals(t *testing.T) {
	t.Parallel()
	ci, long := run{Seed: 5, CI: true}.options(), run{Seed: 5, Long: true}.options()
	require.Equal(t, harness.CI, *ci.Goals)
	require.Equal(t, 20*time.Minute, ci.Duration)
	require.Equal(t, []string{harness.Mixed, harness.Kills, harness.Calm}, ci.Phases)
	require.Equal(t, harness.Long, *long.Goals)
	require.Equal(t, time.Hour, long.Duration)
	require.NotEqual(t, ci.Load, long.Load) // of its own
	require.Nil(t, run{Seed: 5}.options().Goals)
	require.ErrorContains(t, run{CI: true, Store: "sqlite"}.Run(t.Context()), "SQLite")
}

func TestARunOfKillsTellsHowFastItsConsumersCameBack(t *testing.T) {
	dir, err := short(t, func(f *run) {
		f.Phases, f.Faults, f.Duration = []string{harness.Kills}, []string{"kill-server"}, 6*time.Second
	})
	told(t, dir, err)
	r := reportIn(t, dir)
	require.NotZero(t, r.Result.Crashes)
	require.NotEmpty(t, r.Result.Recovery.First)
	require.Greater(t, len(r.Result.Recovery.Each), len(r.Result.Recovery.First))
}
