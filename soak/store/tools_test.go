package store

import (
	"testing"

	"github.com/stretchr/testify/require"
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
