package main

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// serving starts dibs serve, and returns the process, its URL and what it printed.
func serving(t *testing.T, where string, args ...string) (*exec.Cmd, string, []string) {
	t.Helper()
	command := dibs(t, where, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
	})
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	url := regexp.MustCompile(`http://\S+`).FindString(lines.Text())
	require.NotEmpty(t, url, lines.Text())
	var calls []string
	for len(calls) < 3 && lines.Scan() {
		if call, ok := strings.CutPrefix(lines.Text(), "    "); ok {
			calls = append(calls, call)
		}
	}
	return command, url, calls
}

// What it prints can be pasted: it reserves an intent, produces an item and receives it.
func TestServePrintsCallsThatWork(t *testing.T) {
	t.Parallel()
	pgtest.Needs(t, "curl")
	command, _, calls := serving(t, "sqlite:"+t.TempDir()+"/dibs.db")
	require.Len(t, calls, 3)
	for i, says := range []string{"OUTCOME_RESERVED", "PRODUCE_OUTCOME_WRITTEN", "dataJson"} {
		answer, err := exec.CommandContext(t.Context(), "sh", "-c", calls[i]).Output()
		require.NoError(t, err)
		require.Contains(t, string(answer), says)
	}
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait(), "it exits with 0")
}

// A call that waits is answered when the server is told to end, which it does within a second; a
// second signal ends it at once.
func TestServeEndsWithinASecond(t *testing.T) {
	t.Parallel()
	pgtest.Needs(t, "curl")
	command, url, _ := serving(t, "sqlite:"+t.TempDir()+"/dibs.db")
	body := `{"queue":{"category":"mail"},"receiveId":"6dbd60a5-7c6d-4a80-9ac8-df8346506e0a","maxWait":"600s"}`
	answered := make(chan string, 1)
	go func() {
		answer, _ := exec.CommandContext(t.Context(), "curl", "-s", "--json", body, url+"/dibs.v1.QueueService/Receive").CombinedOutput()
		answered <- string(answer)
	}()
	testkit.AwaitTrue(t, "the call waits", func() bool {
		answer, err := exec.CommandContext(t.Context(), "curl", "-s", "--json", `{"queue":{"category":"mail"}}`, url+"/dibs.v1.QueueService/GetQueue").Output()
		return err == nil && strings.Contains(strings.ReplaceAll(string(answer), " ", ""), `"waitingReceives":1`)
	})
	began := time.Now()
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.JSONEq(t, `{"deliveries":[],"settled":[]}`, testkit.Receive(t, "the answer", answered))
	require.NoError(t, command.Wait())
	t.Logf("it ended in %v", time.Since(began))
}

func TestServeListensBeyondTheMachineOnlyWithKeys(t *testing.T) {
	t.Parallel()
	where := "sqlite:" + t.TempDir() + "/dibs.db"
	out, err := dibs(t, where, "serve", "--listen", "0.0.0.0:0").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `invalid address "0.0.0.0:0": must be of the loopback, unless the server has a certificate and keys`)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	pgtest.Needs(t, "curl")
	where := "sqlite:" + t.TempDir() + "/dibs.db"
	_, url, _ := serving(t, where)
	run := func(args ...string) string {
		t.Helper()
		out, err := dibs(t, where, args...).CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	key := run("keys", "add", "billing", "payment", "mail", "--life", "1h")
	require.Regexp(t, `^dibs_billing_[0-9a-f]{64}$`, key)
	ask := func(key string) string {
		answer, _ := exec.CommandContext(t.Context(), "curl", "-s", "-H", "Authorization: Bearer "+key, "--json", `{"queue":{"category":"mail"}}`, url+"/dibs.v1.QueueService/GetQueue").Output()
		return string(answer)
	}
	testkit.AwaitTrue(t, "calls need a key", func() bool { return strings.Contains(ask("none"), "unauthenticated") })
	testkit.AwaitTrue(t, "the key is known", func() bool { return strings.Contains(ask(key), "paused") })
	require.Regexp(t, `billing  write in payment mail, added \S+ by \w+, until`, run("keys"))
	require.NotContains(t, run("keys", "--json"), key)
	require.Equal(t, "revoked billing", run("keys", "revoke", "billing", "--reason", "its laptop was lost"))
	testkit.AwaitTrue(t, "the key is refused", func() bool { return strings.Contains(ask(key), "unauthenticated") })
	require.Contains(t, run("keys"), "its laptop was lost")
	out, err := dibs(t, where, "keys", "add", "billing", "mail").CombinedOutput()
	require.Equal(t, 3, exitCode(t, err), string(out))
}
