package demo

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// Replicas are replaced, one is killed and one stopped, and each request is carried out once.
func TestReplicasComeAndGoUnderLoad(t *testing.T) {
	t.Parallel()
	var out, failed bytes.Buffer
	code := Ticketing(t.Context(), []string{
		"demo", "--store", pgtest.URL(t), "--for", "4s", "--restart", "1s", "--lease", "1s", "--rate", "50",
	}, &out, &failed)

	require.Zero(t, code, "%s\n%s", &out, &failed)
	require.NotContains(t, out.String(), "DIFFERS")
	require.Contains(t, out.String(), "killed with SIGKILL")
	require.Contains(t, out.String(), "stopped with SIGSTOP")
	require.Contains(t, out.String(), "seats sold twice")
	require.Regexp(t, `replicas replaced +[1-9]`, out.String())
}

// A socket that blocks would keep a replica that ends, until the next client comes.
func TestAReplicaThatStartsLeavesTheSocketOfTheOthersAsItIs(t *testing.T) {
	file, _, err := (&Run{}).Listen()
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
		require.Equal(t, 2, Ticketing(t.Context(), args, &out, &failed), args)
		require.NotEmpty(t, failed.String(), args)
	}
}
