package cli_test

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/testkit"
)

var address = regexp.MustCompile(`http://\S+/`)

func TestAPageIsServedUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr screen
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(ctx, []string{"ui", "--listen", "127.0.0.1:0"}, nil, &stdout, &stderr, dibs.getenv)
	}()
	testkit.Await(t, "its address", func() (bool, any) { return address.MatchString(stdout.String()), stderr.String() })
	get := func(path, host string) (int, string) {
		r := testkit.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, address.FindString(stdout.String())+path, nil))(t)
		if host != "" {
			r.Host = host
		}
		answer := testkit.Do(http.DefaultClient.Do(r))(t)
		defer answer.Body.Close()
		return answer.StatusCode, string(testkit.Do(io.ReadAll(answer.Body))(t))
	}
	status, text := get("stream?name=account-1", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "Opened")
	require.Contains(t, text, "reads only")
	status, text = get("store", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "the write lock was free within", "as the doctor finds it")
	status, _ = get("", "evil.example")
	require.Equal(t, http.StatusForbidden, status, "a name of another site that leads here")
	live := testkit.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, address.FindString(stdout.String())+"live?view=", nil))(t)
	answer := testkit.Do(http.DefaultClient.Do(live))(t)
	defer answer.Body.Close()

	cancel() // while a page is open

	testkit.Receive(t, "the end", ended)
	_ = testkit.Do(io.ReadAll(answer.Body))
}

func TestAPageForEverybodyIsRefused(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	for _, args := range [][]string{{"--listen", "0.0.0.0:0"}, {"--listen", "nonsense"}, {"--user", "X-User"}} {
		require.Equal(t, 2, dibs.run(t, append([]string{"ui"}, args...)...).code, args)
	}
}
