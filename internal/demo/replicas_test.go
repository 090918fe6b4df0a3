package demo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	require.Contains(t, out.String(), "killed with SIGKILL")
	require.Contains(t, out.String(), "stopped with SIGSTOP")
	require.Contains(t, out.String(), "seats sold twice", failed.String())
	if !strings.Contains(out.String(), "longest wait was in") {
		require.Zero(t, code, failed.String())
	}
}

func TestTheReplicasDemoRefusesWrongCalls(t *testing.T) {
	t.Setenv(storeVariable, "")
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
