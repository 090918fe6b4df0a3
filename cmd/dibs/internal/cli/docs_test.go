package cli_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/messagestore"
)

var transcript = regexp.MustCompile("(?ms)^```console\n(.*?)^```")

// The pages are read by links in testdata: when a file outside the module changes, go test takes an
// earlier result.

// Every transcript in docs/cli.md is run, one after the other in one store. Those of intents and
// of an inbox are run in a second one, which has some.
func TestTranscriptsInTheDocumentationAreTrue(t *testing.T) {
	t.Parallel()
	const file = "testdata/docs/cli.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	dibs, withIntents := newShell(t), newShell(t)
	documented(t, withIntents)
	var said, got strings.Builder
	intents := 0
	for _, block := range transcript.FindAllStringSubmatch(string(text), -1) {
		shell, same := dibs, steady
		switch {
		case strings.Contains(block[1], " payment:intent"):
			shell, same = withIntents, withIntents.same
			intents++
		case strings.Contains(block[1], " payments:inbox"):
			shell = withIntents
		}
		said.WriteString(same(block[1]))
		for line := range strings.Lines(block[1]) {
			command, ok := strings.CutPrefix(line, "$ ")
			if !ok {
				continue
			}
			got.WriteString(same(line))
			got.WriteString(same(shellOut(t, shell, strings.TrimSpace(command))))
		}
	}
	require.Equal(t, 2, intents)
	require.Equal(t, said.String(), got.String())
}

// The page ends with the commands as dibs --help lists them.
func TestThePageHasAllCommands(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	const file, begin, end = "testdata/docs/cli.md", "<!-- made by TestThePageHasAllCommands -->\n", "<!-- until here -->\n"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, marked := strings.Cut(string(page), begin)
	shown, after, closed := strings.Cut(rest, end)
	require.True(t, marked && closed, "its list is not marked")
	_, list, _ := strings.Cut((&shell{}).ok(t, "--help"), "\nCommands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	list = "```\n" + list + "\n```\n"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+list+end+after), 0o600))
		return
	}
	require.Equal(t, list, shown, "go test ./internal/cli -run TestThePageHasAllCommands -update")
}

// documented makes the intents that the documentation shows, and an inbox.
func documented(t *testing.T, dibs *shell) {
	t.Helper()
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	m := manager(t, store, nil)
	request := func(session, key string, ttl time.Duration) intent.Request {
		return intent.Request{Scope: "acme", Key: key, Session: session, TTL: ttl}
	}
	first := hold(t, m, request("api-1", "29401/1998-12", 100*time.Millisecond))
	require.NoError(t, first.Extend(t.Context()))
	require.NoError(t, first.Extend(t.Context()))
	lapse(t, m, "acme", "29401/1998-12")
	second := hold(t, m, request("api-2", "29401/1998-12", time.Hour))
	_, err = store.Write(t.Context(), "payment-acme", messagestore.AnyVersion, messagestore.Follow(second.Cause(), messagestore.Raw{Type: "Paid", Data: []byte(`{"amount":100}`)}))
	require.NoError(t, err)
	require.NoError(t, second.Confirm(t.Context(), map[string]string{"receipt": "R1"}))
	hold(t, m, request("api-2", "29402/1998-12", time.Hour))
	_, err = store.Write(t.Context(), "payments:inbox-7", messagestore.NoStream, messagestore.Raw{Type: "Received", Data: []byte(`{"digest":"x"}`)})
	require.NoError(t, err)
	hold(t, m, request("api-1", "29403/1998-12", 100*time.Millisecond))
	lapse(t, m, "acme", "29403/1998-12")
}

// shellOut runs a typed line, with the few things of a shell that the transcripts use.
func shellOut(t *testing.T, dibs *shell, typed string) string {
	t.Helper()
	if code, ok := strings.CutSuffix(typed, "; echo $?"); ok {
		r := dibs.run(t, words(code)[1:]...)
		return r.stdout + r.stderr + string(rune('0'+r.code)) + "\n"
	}
	r := dibs.typed(t, typed)
	return r.stdout + r.stderr
}
