package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/await"
)

func TestStreamIsPrintedInColumns(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for n := range 11 {
		dibs.ok(t, "write", "account-1", "Deposited", fmt.Sprintf("{\n  %q: %d\n}", "amount", n))
	}
	dibs.ok(t, "write", "account-1", "Closed", fmt.Sprintf(`{"reason":%q}`, strings.Repeat("long ", 30)))

	require.Equal(t, `2006-01-02T15:04:05.000000Z  11  Closed     {"reason":"long long long long long long long long long long long long …
2006-01-02T15:04:05.000000Z  10  Deposited  {"amount":10}
2006-01-02T15:04:05.000000Z   9  Deposited  {"amount":9}
`, steady(dibs.ok(t, "stream", "account-1", "--backwards", "--limit", "3")))
	require.Equal(t, `2006-01-02T15:04:05.000000Z  9  Deposited  {"amount":9}
`, steady(dibs.ok(t, "stream", "account-1", "--from", "9", "--limit", "1")))
	require.Equal(t, `2006-01-02T15:04:05.000000Z  1  Deposited  {"amount":1}
2006-01-02T15:04:05.000000Z  0  Deposited  {"amount":0}
`, steady(dibs.ok(t, "stream", "account-1", "--from", "1", "--backwards")))
}

func TestStreamOfManyPagesIsWhole(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	var lines strings.Builder
	for n := range 1203 {
		fmt.Fprintf(&lines, `{"stream":"account-1","type":"T","data":{"n":%d}}`+"\n", n)
	}
	require.Equal(t, 0, dibs.feed(t, lines.String(), "write").code)

	require.Equal(t, 1203, strings.Count(dibs.ok(t, "stream", "account-1"), "\n"))
	require.Equal(t, 1203, strings.Count(dibs.ok(t, "category", "account"), "\n"))
	require.Equal(t, 1100, strings.Count(dibs.ok(t, "category", "account", "--limit", "1100"), "\n"))
}

func TestStreamWithoutMessagesPrintsNothing(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)

	none := dibs.run(t, "stream", "account-1")
	require.Equal(t, result{0, "", "account-1 has no messages\n"}, none)
	require.Equal(t, result{}, dibs.run(t, "stream", "account-1", "--json"))
	require.Equal(t, result{0, "", "account has no such messages\n"}, dibs.run(t, "category", "account"))
	require.Equal(t, 0, dibs.run(t, "stream", "account-1", "--from", "9223372036854775807").code)
	require.Equal(t, 2, dibs.run(t, "stream", "account-1", "--from=-1").code)
	require.Equal(t, 2, dibs.run(t, "category", "account", "--from=-5").code)
}

func TestCategoryIsNarrowed(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened", "--metadata", `{"correlationStreamName":"signup-7"}`)
	dibs.ok(t, "write", "account-2", "Opened")
	dibs.ok(t, "write", "account-1", "Closed")

	require.Equal(t, `2006-01-02T15:04:05.000000Z  1  account-1@0  Opened  {}
2006-01-02T15:04:05.000000Z  2  account-2@0  Opened  {}
2006-01-02T15:04:05.000000Z  3  account-1@1  Closed  {}
`, steady(dibs.ok(t, "category", "account")))
	count := func(args ...string) int {
		return len(objects(t, dibs.ok(t, append([]string{"category", "account", "--json"}, args...)...)))
	}
	require.Equal(t, 2, count("--type", "Opened"))
	require.Equal(t, 3, count("--type", "Opened", "--type", "Closed"))
	require.Equal(t, 1, count("--correlation", "signup"))
	require.Equal(t, 1, count("--from", "3"))
	require.Equal(t, 3, count("--member", "0", "--size", "2")+count("--member", "1", "--size", "2"))
}

// Text stored by other clients may be meant for the reader's terminal.
func TestHiddenCharactersAreShownAsEscapes(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "T", "{\"a\":\"\u009b31m\u202e\U000e0041\"}")

	require.Contains(t, dibs.ok(t, "stream", "account-1"), `{"a":"\u009b31m\u202e\udb40\udc41"}`)
	printed := dibs.ok(t, "stream", "account-1", "--json")
	require.Contains(t, printed, `{"a":"\u009b31m\u202e\udb40\udc41"}`)
	require.Equal(t, "\u009b31m\u202e\U000e0041", field(t, objects(t, printed)[0], "data")["a"])
}

// A terminal is a buffer that says it is a character device.
type terminal struct{ bytes.Buffer }

func (terminal) Stat() (os.FileInfo, error) { return device{}, nil }

type device struct{ fs.FileInfo }

func (device) Mode() fs.FileMode { return fs.ModeDevice | fs.ModeCharDevice }

func TestOnlyTerminalsGetColours(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "T")
	look := func(env map[string]string) string {
		var screen terminal
		var stderr bytes.Buffer
		getenv := func(name string) string { return env[name] + dibs.env[name] }
		require.Equal(t, 0, cli.Run(t.Context(), []string{"stream", "account-1"}, nil, &screen, &stderr, getenv))
		return screen.String()
	}

	require.Contains(t, look(nil), "\x1b[1mT\x1b[0m")
	require.NotContains(t, look(map[string]string{"NO_COLOR": "1"}), "\x1b")
	require.NotContains(t, look(map[string]string{"TERM": "dumb"}), "\x1b")
	require.NotContains(t, dibs.ok(t, "stream", "account-1"), "\x1b")
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

func TestReaderThatHasEnoughEndsTheCommandQuietly(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	require.Equal(t, 0, dibs.feed(t, strings.Repeat(`{"stream":"account-1","type":"T"}`+"\n", 300), "write").code)
	for _, args := range [][]string{
		{"stream", "account-1"},
		{"category", "account", "--json"},
		{"tail", "account", "--from", "0"},
		{"explain", "account-1"},
		{"version"},
		{"--help"},
		{"migrate", "print"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, 0, cli.Run(t.Context(), args, nil, brokenPipe{}, &stderr, dibs.getenv), args)
		require.Empty(t, stderr.String(), args)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "T")
	var stderr bytes.Buffer

	require.Equal(t, 1, cli.Run(t.Context(), []string{"stream", "account-1"}, nil, fullDisk{}, &stderr, dibs.getenv))

	require.Contains(t, stderr.String(), "no space left on device")
}

// A screen can be looked at while it is written to.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestTailPrintsWhatComesUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Before")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr screen
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(ctx, []string{"tail", "account", "--interval", "10ms"}, nil, &stdout, &stderr, dibs.getenv)
	}()
	// It is silent until there is a message, so only its first output tells that it has
	// begun.
	n := 0
	await.That(t, "its first output", func() (bool, any) {
		n++
		dibs.ok(t, "write", "account-2", "Later", fmt.Sprintf(`{"n":%d}`, n))
		return strings.Contains(stdout.String(), "Later"), stderr.String()
	})
	last := fmt.Sprintf(`{"n":%d}`, n)
	await.That(t, last, func() (bool, any) { return strings.Contains(stdout.String(), last), stdout.String() })

	cancel()

	require.Equal(t, 130, await.Receive(t, "the end of the tail", ended))
	require.NotContains(t, stdout.String(), "Before")
	require.Equal(t, fmt.Sprintf("dibs: continue with --from %d\n", n+2), stderr.String())
}

func TestTailGoesOnFromAPosition(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for n := range 5 {
		dibs.ok(t, "write", "account-1", "T", fmt.Sprintf(`{"n":%d}`, n))
	}

	require.Equal(t, `2006-01-02T15:04:05.000000Z  3  account-1@2  T  {"n":2}
2006-01-02T15:04:05.000000Z  4  account-1@3  T  {"n":3}
`, steady(dibs.ok(t, "tail", "account", "--from", "3", "--limit", "2")))
}
