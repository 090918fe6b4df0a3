//go:build linux

package origin_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer/internal/origin"
)

func TestAProcessIsGoneWhenItHasEnded(t *testing.T) {
	t.Parallel()
	self := origin.Self()
	require.NotZero(t, self)
	require.False(t, self.Gone())
	require.False(t, origin.Origin{}.Gone())
	sleep := exec.Command("sleep", "1000")
	require.NoError(t, sleep.Start())
	of := self
	of.PID = sleep.Process.Pid
	of.Started = startOf(t, of)

	require.False(t, of.Gone(), "it runs")
	require.NoError(t, sleep.Process.Signal(syscall.SIGSTOP))
	require.False(t, of.Gone(), "it is stopped, and may go on")
	for _, other := range []func(o *origin.Origin){
		func(o *origin.Origin) { o.Boot = "another" },
		func(o *origin.Origin) { o.Namespace = "another" },
		func(o *origin.Origin) { o.Boot, o.Namespace = "", "" },
		func(o *origin.Origin) { o.PID = 0 },
		func(o *origin.Origin) { o.PID = -1 },
	} {
		o := of
		other(&o)
		o.Started++
		require.False(t, o.Gone(), "%+v: nothing is known of it", o)
	}
	later := of
	later.Started--
	require.True(t, later.Gone(), "another process has its id")

	require.NoError(t, sleep.Process.Kill())
	require.Eventually(t, of.Gone, patience, tick, "it is not reaped, and runs no more")
	require.Error(t, sleep.Wait())
	require.True(t, of.Gone(), "it is reaped")
}

const (
	patience = 20 * time.Second
	tick     = time.Millisecond
)

// startOf returns when a process started: the one time at which it is not gone.
func startOf(t *testing.T, o origin.Origin) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", o.PID))
	require.NoError(t, err)
	started, err := strconv.ParseUint(strings.Fields(string(text))[21], 10, 64)
	require.NoError(t, err)
	return started
}
