package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/store"
)

func TestARunThatIsPartOfABuildHasGoals(t *testing.T) {
	t.Parallel()
	ci, long := run{common: common{Seed: 5}, CI: true}.options(), run{common: common{Seed: 5}, Long: true}.options()
	require.Equal(t, ciGoals, ci.Goals)
	require.Equal(t, 20*time.Minute, ci.Duration)
	require.Equal(t, []string{store.Mixed, store.Kills, store.Calm}, ci.Phases)
	require.Equal(t, longGoals, long.Goals)
	require.Equal(t, time.Hour, long.Duration)
	require.NotEqual(t, ci.Load, long.Load) // of its own
	require.Nil(t, run{common: common{Seed: 5}}.options().Goals)
	require.ErrorContains(t, run{CI: true, Store: "sqlite"}.Run(t.Context()), "SQLite")

	goals := goalsOf(&ci)
	require.Equal(t, 150, goals["serverKills"])
	require.Equal(t, 1000, goals["done:write"])
	require.Equal(t, 1, goals["met:kill-server"])
	require.Equal(t, 1, goals["epochs"])
}

func TestARunWithoutItsFailoversMissesItsGoals(t *testing.T) {
	t.Parallel()
	o := failover{common: common{Seed: 5}, Sync: 2, Async: 1, Restores: 1, PutBacks: 1}.options()
	goals := goalsOf(&o)
	for key, n := range map[string]int{"fault:failover-sync": 2, "fault:failover-async": 1, "fault:restore": 1, "fault:put-back": 1, "undone": 3, "ahead": 2, "overtaken": 1, "byEpoch": 1} {
		require.Equal(t, n, goals[key], key)
	}
	require.NotEmpty(t, promise.Figures{}.Missed(goals))
}

func TestARunOfKillsTellsHowFastItsConsumersCameBack(t *testing.T) {
	dir, err := short(t, func(f *run) {
		f.Phases, f.Faults, f.Duration = []string{store.Kills}, []string{"kill-server"}, 6*time.Second
	})
	told(t, dir, err)
	require.Positive(t, counted(t, dir, "serverKills"))
	require.Positive(t, counted(t, dir, "recoveredFirstp50"))
	require.GreaterOrEqual(t, counted(t, dir, "recoveredEachp99"), counted(t, dir, "recoveredFirstp99"))
}
