package demo

import (
	"bytes"
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
