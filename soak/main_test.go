package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/intents"
	"github.com/dibs-go/dibs/soak/mutants"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/queues"
	"github.com/dibs-go/dibs/soak/sagas"
	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/store"
	"github.com/dibs-go/dibs/soak/work"
)

func TestMain(m *testing.M) {
	server.RunKeeper() // runs start this program
	work.RunClient()
	intents.RunProcess()
	queues.RunProcess()
	sagas.RunProcess()
	goleak.VerifyTestMain(m)
}

// turns are the days on which each run that needs settings of its own has its turn.
const turns = 4

// short is a run that is as small as one can be, and its files.
func short(t *testing.T, change func(*run)) (dir string, err error) {
	t.Helper()
	out := t.TempDir()
	f := run{common: common{Seed: 3, Out: out, Dir: "/var/tmp"}, Duration: 4 * time.Second, Writers: 2, Readers: 1, Consumers: 2, Handlers: 2, Store: "postgres"}
	change(&f)
	return left(t, out, f.Run(t.Context()))
}

// left returns the files that a run has left in out, without those of processes.
func left(t *testing.T, out string, err error) (string, error) {
	t.Helper()
	dirs, globErr := filepath.Glob(filepath.Join(out, "*"))
	require.NoError(t, globErr)
	require.Len(t, dirs, 1)
	running, globErr := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, globErr)
	for _, path := range running {
		environ, _ := os.ReadFile(path) // or else it has ended
		require.NotContains(t, string(environ), dirs[0], "%s is still there", path)
	}
	return dirs[0], err
}

// told is the verdict in the run's output, without the events that were too few: in a
// run of seconds they always are.
func told(t *testing.T, dir string, err error) {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, errMissed)
	}
	verdict, err := os.ReadFile(filepath.Join(dir, "verdict.txt"))
	require.NoError(t, err)
	require.NotContains(t, string(verdict), "a promise was broken")
	require.NotContains(t, string(verdict), "harness:", string(verdict))
}

// counted returns a figure of a run that is over.
func counted(t *testing.T, dir, key string) int {
	t.Helper()
	h, err := promise.Open(t.Context(), dir, check.Promises)
	require.NoError(t, err)
	figures, err := h.Figures(t.Context())
	require.NoError(t, errors.Join(err, h.Close()))
	return figures.Of(key)
}

func TestARunWithFaultsIsCheckedAndLeavesNothing(t *testing.T) {
	dir, err := short(t, func(f *run) { f.Faults = []string{"kill-backend", "kill-server", "kill-client", "cut"} })
	told(t, dir, err)

	require.Positive(t, counted(t, dir, "messages"))
	require.Positive(t, counted(t, dir, "fault:cut")+counted(t, dir, "fault:kill-client")+counted(t, dir, "fault:kill-server")+counted(t, dir, "fault:kill-backend"))
}

func TestARunOnSQLite(t *testing.T) {
	dir, err := short(t, func(f *run) { f.Store, f.Faults, f.Writers = "sqlite", []string{"kill-client", "twin"}, 4 })
	told(t, dir, err)
	require.Positive(t, counted(t, dir, "messages"))
	require.Zero(t, counted(t, dir, "facts:amcheck"))
}

func TestARunOnADiskThatFillsUp(t *testing.T) {
	testkit.TakesTurns(t, 0, turns)
	dir, err := short(t, func(f *run) { f.FullDisk, f.Faults, f.Duration = true, []string{"disk-full"}, 6*time.Second })
	if os.Getuid() != 0 {
		require.ErrorContains(t, err, "root")
		return
	}
	told(t, dir, err)
	require.NotZero(t, counted(t, dir, "fault:disk-full"))
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), "dibs-soak.")
}

func TestARunWithAClockThatJumpsAndSyncsThatFail(t *testing.T) {
	testkit.TakesTurns(t, 1, turns)
	dir, err := short(t, func(f *run) {
		f.Clock, f.Faults, f.Duration = true, []string{"clock", "sync-error"}, 10*time.Second
	})
	told(t, dir, err)
	missing := store.Missing(t.Context())
	for _, name := range []string{"clock", "sync-error"} {
		if _, is := missing[name]; !is {
			require.NotZero(t, counted(t, dir, "fault:"+name), name)
		}
	}
}

// A message that is taken away is missed.
func TestARunThatLostAMessageFails(t *testing.T) {
	dir, _ := short(t, func(f *run) { f.Faults = []string{"none"} })
	h, err := promise.Open(t.Context(), dir, check.Promises)
	require.NoError(t, err)
	err = h.Exec(t.Context(), "delete from messages where rowid = (select max(rowid) from messages where category = 'account0')")
	require.NoError(t, errors.Join(err, h.Close()))

	require.ErrorIs(t, checkRun{dir}.Run(t.Context()), errViolated)

	verdict, err := os.ReadFile(filepath.Join(dir, "verdict.txt"))
	require.NoError(t, err)
	require.Contains(t, string(verdict), "a promise was broken")
}

func TestOneSeedDrawsOneRun(t *testing.T) {
	t.Parallel()
	first, again := run{common: common{Seed: 5}}.options(), run{common: common{Seed: 5}}.options()
	first.Out, again.Out = "", "" // which have the time
	require.Equal(t, first, again)
	require.NotEqual(t, run{common: common{Seed: 5}}.options().Load, run{common: common{Seed: 6}}.options().Load)
	require.NotZero(t, run{}.options().Seed)
}

func TestUnknownFaultIsRefused(t *testing.T) {
	t.Parallel()
	err := run{common: common{Out: t.TempDir()}, Faults: []string{"earthquake"}}.Run(t.Context())
	require.EqualError(t, err, `there is no fault "earthquake"`)
}

// One bug is in SQL, one in Go. Without a bug the run passes. For every change make mutants does
// the same, with other bugs each day.
func TestAPlantedBugIsFound(t *testing.T) {
	testkit.NeedsLong(t)
	f := mutantsRun{Only: []string{"one-any-version", "panic-is-success"}, Seconds: 60, Seed: 5, Out: t.TempDir(), Dir: "/var/tmp"}
	require.NoError(t, f.Run(t.Context()))
}

func TestABugThatIsNotFoundFails(t *testing.T) {
	testkit.TakesTurns(t, 1, turns)
	known, err := mutants.Named("one-any-version")
	require.NoError(t, err)
	sound := &mutants.Mutant{Name: "sound", Scene: known[0].Scene, Breaks: known[0].Breaks}
	out := t.TempDir()

	require.ErrorIs(t, mutantsRun{Out: out, Dir: "/var/tmp"}.find(t.Context(), []*mutants.Mutant{sound}), errSurvived)

	require.FileExists(t, filepath.Join(out, "sound-0", promise.File))
}

func TestMembersOfGroupsThatComeAndGo(t *testing.T) {
	out := t.TempDir()
	err := replicasRun{common: common{Seed: 3, Out: out, Dir: "/var/tmp"}, Duration: 8 * time.Second, Most: 5, Writers: 1}.Run(t.Context())
	dir, err := left(t, out, err)
	told(t, dir, err)
	require.Positive(t, counted(t, dir, "joins"))
	require.Greater(t, counted(t, dir, "states"), 10)
}

// In seconds, too little happens.
func ofSeconds(err error) error {
	if errors.Is(err, errMissed) {
		return nil
	}
	return err
}

func TestRunsWithServersAreCheckedAndLeaveNothing(t *testing.T) {
	out := t.TempDir()
	of := common{Seed: 3, Out: out, Dir: "/var/tmp"}
	f := queueRun{common: of, Duration: 5 * time.Second, Processes: 3, Workers: 4, Inserters: 2, Servers: 1, Hold: "no", Store: "both", Scene: "usual"}
	require.NoError(t, ofSeconds(f.Run(t.Context())))
	all, err := left(t, out, nil)
	require.NoError(t, err)
	for _, store := range []string{"postgres", "sqlite"} {
		told(t, filepath.Join(all, store), nil)
	}
	of.Out = t.TempDir()
	err = intentsRun{common: of, Duration: 5 * time.Second, Processes: 3, Goroutines: 4, Servers: 2, Scene: "faults"}.Run(t.Context())
	dir, err := left(t, of.Out, ofSeconds(err))
	require.NoError(t, err)
	told(t, filepath.Join(dir, "faults"), nil)
}

func TestRunsOfAQueueAreCheckedAndLeaveNothing(t *testing.T) {
	out := t.TempDir()
	f := queueRun{common: common{Seed: 3, Out: out, Dir: "/var/tmp"}, Duration: 5 * time.Second, Processes: 3, Workers: 4, Inserters: 2, Hold: "no", Store: "both", Scene: "usual"}
	require.NoError(t, ofSeconds(f.Run(t.Context())))
	all, err := left(t, out, nil)
	require.NoError(t, err)
	for _, store := range []string{"postgres", "sqlite"} {
		dir := filepath.Join(all, store)
		told(t, dir, nil)
		verdict, err := os.ReadFile(filepath.Join(dir, "verdict.txt"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "verdict.txt"), nil, 0o600))
		if err := (queueRun{common: common{Check: dir}}).Run(t.Context()); err != nil {
			require.ErrorIs(t, err, errMissed)
		}
		again, err := os.ReadFile(filepath.Join(dir, "verdict.txt"))
		require.NoError(t, err)
		require.Equal(t, string(verdict), string(again))
	}
}

func TestARunOfSagasIsCheckedAndLeavesNothing(t *testing.T) {
	out := t.TempDir()
	err := sagasRun{common: common{Seed: 3, Out: out, Dir: "/var/tmp"}, Duration: 5 * time.Second, Runners: 2, Customers: 20, Timers: 50, Calm: true}.Run(t.Context())
	dir, err := left(t, out, ofSeconds(err))
	require.NoError(t, err)
	told(t, dir, nil)
	verdict, err := os.ReadFile(filepath.Join(dir, "verdict.txt"))
	require.NoError(t, err)
	require.Regexp(t, `\nmessages whose runner is known +0 +[1-9]`, string(verdict))
	require.Regexp(t, `\n  completed +\d+ +[1-9]`, string(verdict))
	require.Regexp(t, `\n  rung +\d+ +[1-9]`, string(verdict))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "verdict.txt"), nil, 0o600))
	if err := (sagasRun{common: common{Check: dir}}).Run(t.Context()); err != nil {
		require.ErrorIs(t, err, errMissed)
	}
	again, err := os.ReadFile(filepath.Join(dir, "verdict.txt"))
	require.NoError(t, err)
	require.Equal(t, string(verdict), string(again))
}
