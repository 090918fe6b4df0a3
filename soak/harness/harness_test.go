package harness

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryFaultComesAsOftenAsItsWeight(t *testing.T) {
	t.Parallel()
	n := &nemesis{faults: faults}
	random, counts, total := rand.New(rand.NewPCG(1, 2)), map[string]int{}, 0
	for _, f := range faults {
		total += f.weight
	}
	for range 1000 * total {
		counts[n.draw(random).name]++
	}
	for _, f := range faults {
		require.InEpsilon(t, 1000*f.weight, counts[f.name], 0.2, f.name)
	}
}

func TestRecoveryIsUntilAMessageThatWasHandedOverAfterTheCrashIsHandled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := history.Create(dir, "consumer-1")
	require.NoError(t, err)
	before, err := w.Begin(&history.Event{Func: history.Handle})
	require.NoError(t, err)
	crash, err := history.Now()
	require.NoError(t, err)
	require.NoError(t, w.End(before, history.OK, &history.Event{Func: history.Handle})) // was in hand before
	after, err := w.Begin(&history.Event{Func: history.Handle})
	require.NoError(t, err)
	require.NoError(t, w.End(after, history.OK, &history.Event{Func: history.Handle}))
	end, err := history.Now()
	require.NoError(t, err)
	require.NoError(t, w.Close())

	took, err := recoveries(dir, []int64{crash, end + 1})
	require.NoError(t, err)

	require.Len(t, took, 1) // after the second nothing was handled
	require.Positive(t, took[0])
	require.LessOrEqual(t, took[0], time.Duration(end-crash))
}

func TestErrorsAreFoundInTheLog(t *testing.T) {
	t.Parallel()
	log := "2026-01-02 03:04:05.678 UTC [12] 00000 LOG:  checkpoint starting\n" +
		"2026-01-02 03:04:05.678 UTC [12] 40P01 ERROR:  deadlock detected\n" +
		"2026-01-02 03:04:05.679 UTC [13] 40P01 ERROR:  deadlock detected\n" +
		"2026-01-02 03:04:05.678 UTC [12] XX001 PANIC:  could not read\n"
	require.Equal(t, []check.LogLine{{SQLState: "40P01", Text: "deadlock detected"}, {SQLState: "XX001", Text: "could not read"}}, errorsIn([]byte(log)))
}
