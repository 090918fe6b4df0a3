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
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
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
	driver := memory.New()
	write := testkit.Must(messagestore.New(driver, nil))
	for range 1203 {
		_, err := write.Write(t.Context(), "account-1", messagestore.AnyVersion, messagestore.Raw{Type: "T", Data: []byte("{}")})
		require.NoError(t, err)
	}

	for lines, args := range map[int][]string{1203: {"stream", "account-1"}, 1100: {"category", "account", "--limit", "1100"}} {
		require.Equal(t, lines, strings.Count(over(t, testkit.Must(messagestore.New(driver, nil)), args...), "\n"))
	}
	require.Equal(t, 1203, strings.Count(over(t, testkit.Must(messagestore.New(driver, nil)), "category", "account"), "\n"))
}

func TestMessagesAreRead(t *testing.T) {
	t.Parallel()
	newShell(t).script(t, "read", nil, nil)
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
	testkit.Await(t, "its first output", func() (bool, any) {
		n++
		dibs.ok(t, "write", "account-2", "Later", fmt.Sprintf(`{"n":%d}`, n))
		return strings.Contains(stdout.String(), "Later"), stderr.String()
	})
	last := fmt.Sprintf(`{"n":%d}`, n)
	testkit.Await(t, last, func() (bool, any) { return strings.Contains(stdout.String(), last), stdout.String() })

	cancel()

	require.Equal(t, 130, testkit.Receive(t, "the end of the tail", ended))
	require.NotContains(t, stdout.String(), "Before")
	require.Equal(t, fmt.Sprintf("dibs: continue with --from %d\n", n+2), stderr.String())
}
