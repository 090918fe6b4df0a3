package testserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

func TestProcessThatEndsDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p, err := Start(exec.Command("sh", "-c", "exit 3"), nil, syscall.SIGKILL)
	require.NoError(t, err)

	err = p.Await(t.Context(), func(context.Context) error { return os.ErrNotExist })

	require.EqualError(t, err, "sh does not answer: it ended")
	require.False(t, p.Running())
	require.True(t, p.EndsWithin(time.Minute))
	require.Equal(t, 3, p.State().ExitCode())
}

func TestProcessIsAwaitedUntilItAnswers(t *testing.T) {
	t.Parallel()
	ready := filepath.Join(t.TempDir(), "ready")
	p, err := Start(exec.Command("sh", "-c", "touch "+ready+"; exec sleep 600"), nil, syscall.SIGKILL)
	require.NoError(t, err)

	require.NoError(t, p.Await(t.Context(), func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	}))

	require.True(t, p.Running())
	require.False(t, p.EndsWithin(time.Millisecond))
	p.Signal(syscall.SIGKILL)
	require.Equal(t, "signal: killed", p.State().String())
	p.Signal(syscall.SIGKILL) // and hears of none
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p, err := Start(exec.Command("sleep", "600"), nil, syscall.SIGKILL)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())

	err = p.Await(ctx, func(context.Context) error {
		cancel()
		return os.ErrNotExist
	})

	require.ErrorIs(t, err, os.ErrNotExist)
	p.Signal(syscall.SIGKILL)
	testkit.Receive(t, "the end of the process", p.Done())
}

func TestWhatCannotBeStartedSaysSo(t *testing.T) {
	t.Parallel()
	_, err := Start(exec.Command("/no/such/program"), nil, syscall.SIGKILL)

	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "start /no/such/program: ")
}

func TestNewestPostgresIsByItsNumber(t *testing.T) {
	t.Parallel()
	const at = "/usr/lib/postgresql/%s/bin/postgres"
	var all []string
	for _, version := range []string{"9.6", "15", "9", "17", "16"} {
		all = append(all, fmt.Sprintf(at, version))
	}

	require.Equal(t, fmt.Sprintf(at, "17"), newest(all))
	require.Equal(t, fmt.Sprintf(at, "9"), newest([]string{fmt.Sprintf(at, "9.6"), fmt.Sprintf(at, "9")}))
}

func TestPostgresIsWhereItIsSaidToBe(t *testing.T) {
	t.Setenv("POSTGRES_BIN", "/opt/postgres/bin")

	bin, err := PostgresBin()

	require.NoError(t, err)
	require.Equal(t, "/opt/postgres/bin", bin)
}

// A killed process takes no leave, so that the kernel has to end its children.
func TestProcessEndsWithOurs(t *testing.T) {
	t.Parallel()
	if pidFile := os.Getenv("DIBS_TEST_ORPHAN"); pidFile != "" {
		p, err := Start(exec.Command("sleep", "1000"), nil, syscall.SIGKILL)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(pidFile+".new", []byte(strconv.Itoa(p.PID())), 0o600))
		require.NoError(t, os.Rename(pidFile+".new", pidFile))
		select {}
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	self, err := os.Executable()
	require.NoError(t, err)
	other := exec.CommandContext(t.Context(), self, "-test.run", "^TestProcessEndsWithOurs$")
	other.Env = append(os.Environ(), "DIBS_TEST_ORPHAN="+pidFile)
	require.NoError(t, other.Start())
	var written []byte
	testkit.Await(t, "the file of the other process", func() (bool, any) {
		written, err = os.ReadFile(pidFile)
		return err == nil, err
	})
	pid, err := strconv.Atoi(string(written))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0))

	require.NoError(t, other.Process.Kill())
	require.Error(t, other.Wait())

	testkit.Await(t, "the end of its child", func() (bool, any) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(stat, []byte(") Z ")), string(stat) // there may be nobody to wait for it
	})
}
