package demo

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/internal/pgtest"
)

// Replicas are replaced, one is killed and one stopped, and each request is carried out once.
func TestReplicasComeAndGoUnderLoad(t *testing.T) {
	var out, failed bytes.Buffer
	code := RunTicketing(t.Context(), []string{
		"demo", "--store", pgtest.URL(t), "--for", "8s", "--restart", "1s", "--lease", "1s", "--rate", "50",
	}, &out, &failed)

	// A machine that is busy with other tests makes commands wait, which is no mistake.
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "DIFFERS") && !strings.HasPrefix(line, "longest wait") {
			t.Error(line)
		}
	}
	require.Contains(t, out.String(), "killed with SIGKILL", failed.String())
	require.Contains(t, out.String(), "stopped with SIGSTOP", failed.String())
	require.Contains(t, out.String(), "seats sold twice", failed.String())
	if !strings.Contains(out.String(), "longest wait was in") {
		require.Zero(t, code, failed.String())
	}
}

// A socket that blocks would keep a replica that ends, until the next client comes.
func TestAReplicaThatStartsLeavesTheSocketOfTheOthersAsItIs(t *testing.T) {
	file, _, err := stage.Listen()
	require.NoError(t, err)
	defer file.Close()
	started := exec.Command(os.Args[0], "-test.run=^$")
	started.ExtraFiles = []*os.File{file}
	require.NoError(t, started.Run())
	conn, err := file.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, conn.Control(func(fd uintptr) {
		flags, _, failed := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
		require.Zero(t, failed)
		require.NotZero(t, flags&syscall.O_NONBLOCK)
	}))
}

func TestTheReplicasDemoRefusesWrongCalls(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"demo"},
		{"demo", "--store", "sqlite:a.db"},
		{"demo", "--store", "postgres://localhost/db", "--rate", "0"},
		{"demo", "--store", "postgres://localhost/db", "--lease", "1ms"},
		{"demo", "--store", "postgres://localhost/db", "--for", "1s"},
	} {
		var out, failed bytes.Buffer
		require.Equal(t, 2, RunTicketing(t.Context(), args, &out, &failed), args)
		require.NotEmpty(t, failed.String(), args)
	}
}
