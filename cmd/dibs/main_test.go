package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
)

// TestMain is the command itself if the environment says so, so that the tests
// have a real process to signal.
func TestMain(m *testing.M) {
	if os.Getenv("DIBS_TEST_MAIN") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// dibs returns the command, which is killed if it does not end.
func dibs(t *testing.T, store string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.WaitLimit)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, self, args...)
	command.Env = append(os.Environ(), "DIBS_TEST_MAIN=1", "DIBS_STORE="+store)
	return command
}

// newFile returns the URL of a store on SQLite.
func newFile(t *testing.T) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")
}

func TestInterruptedTailSaysWhereToGoOn(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		store := newFile(t)
		require.NoError(t, dibs(t, store, "write", "account-1", "Opened").Run())
		tail := dibs(t, store, "tail", "account", "--from", "0")
		var stderr bytes.Buffer
		tail.Stderr = &stderr
		stdout, err := tail.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, tail.Start())
		line, err := bufio.NewReader(stdout).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, "Opened")

		require.NoError(t, tail.Process.Signal(signal))

		require.Equal(t, 130, exitCode(t, tail.Wait()))
		require.Equal(t, "dibs: continue with --from 2\n", stderr.String())
	}
}

func TestClosedPipeEndsQuietly(t *testing.T) {
	t.Parallel()
	store := newFile(t)
	require.NoError(t, dibs(t, store, "write", "account-1", "Opened").Run())
	reading, writing, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reading.Close())
	stream := dibs(t, store, "stream", "account-1")
	var stderr bytes.Buffer
	stream.Stdout, stream.Stderr = writing, &stderr

	err = stream.Run()

	require.Equal(t, 0, exitCode(t, err))
	require.Empty(t, stderr.String())
	require.NoError(t, writing.Close())
}

func TestVersionConflictIsAnExitCode(t *testing.T) {
	t.Parallel()
	store := newFile(t)
	write := []string{"write", "account-1", "Opened", "--expected", "no-stream"}
	require.Equal(t, 0, exitCode(t, dibs(t, store, write...).Run()))
	require.Equal(t, 3, exitCode(t, dibs(t, store, write...).Run()))
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, err)
	return exit.ExitCode()
}
