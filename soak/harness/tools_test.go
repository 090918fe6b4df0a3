package harness

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/check"
)

func TestFaultsWhoseToolIsMissingAreNotDoneAndSaySo(t *testing.T) {
	t.Parallel()
	o := Options{Missing: map[string]string{clockJump: "there is no libfaketime here", syncError: "there is no strace here"}}
	require.NotContains(t, o.Chosen(), syncError)
	require.NotContains(t, o.Chosen(), clockJump)
	require.Equal(t, []string{"sync-error: there is no strace here"}, o.NotDone())

	o.Clock = true
	require.Equal(t, []string{"clock: there is no libfaketime here", "sync-error: there is no strace here"}, o.NotDone())
	require.NotContains(t, o.Chosen(), clockJump)

	o.Faults = []string{"cut"}
	require.Empty(t, o.NotDone())

	o = Options{Clock: true}
	require.Contains(t, o.Chosen(), clockJump)
	require.Contains(t, o.Chosen(), syncError)
}

// The effect of a fault must show: by an error in the log of the server, or a count.
func TestAFaultThatShowsNothingIsComplainedOf(t *testing.T) {
	t.Parallel()
	result := func(name string, times int) *Result {
		return &Result{Faults: map[string]int{name: times}, Facts: &check.Facts{PostgreSQL: &check.PostgreSQL{}}}
	}
	for name, state := range states {
		r := result(name, 3)
		require.Len(t, shown(r), 1, name)
		r.Facts.PostgreSQL.Log = []check.LogLine{{SQLState: "57014"}, {SQLState: state}}
		require.Empty(t, shown(r), name)
		require.Empty(t, shown(result(name, 2)), "of %s there may be none to see", name)
	}
	for _, name := range []string{migrate, release, reindex, raiseEpoch, cut, lose, hold, drip} {
		r := result(name, 3)
		require.Len(t, shown(r), 1, name)
		r.Done = map[string]int{name: 1}
		require.Empty(t, shown(r), name)
	}
}
