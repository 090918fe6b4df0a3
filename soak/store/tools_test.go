package store

import (
	"maps"
	"slices"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
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
	for _, name := range slices.Concat(slices.Collect(maps.Keys(states)), []string{migrate, release, reindex, raiseEpoch, cut, lose, hold, drip}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, err := promise.Open(t.Context(), t.TempDir(), check.Promises)
			require.NoError(t, err)
			defer func() { require.NoError(t, h.Close()) }()
			r := &run{Crew: &crew.Crew{Config: crew.Config{Log: zerolog.Nop()}, History: h}, done: map[string]int{}}
			complaints := func() int {
				before := len(r.Complaints())
				require.NoError(t, r.shown(t.Context()))
				return len(r.Complaints()) - before
			}
			for i := range 3 {
				require.Zero(t, complaints(), "of %d there may be none to see", i)
				require.NoError(t, h.Exec(t.Context(), "insert into calls (process, op, call, at, asked) values ('nemesis', ?, 'fault', 1, ?)", i, `{"name":"`+name+`"}`))
			}
			require.Equal(t, 1, complaints())
			if state, logged := states[name]; logged {
				r.logged = []string{"57014 canceled", state + " something"}
			} else {
				r.done[name] = 1
			}
			require.Zero(t, complaints())
		})
	}
}
