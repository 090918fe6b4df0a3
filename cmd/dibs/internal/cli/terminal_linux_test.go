package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// onTerminal runs dibs, which must not fail, on a terminal of a width, 0 for one that does not tell. It returns what is
// printed there.
func (s *shell) onTerminal(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, master.Close()) }()
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)

	printed := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		_, _ = io.Copy(&all, master) // ends with an error when the other end is closed
		printed <- all.String()
	}()
	var stderr bytes.Buffer
	code := cli.Run(t.Context(), args, strings.NewReader(""), terminal, &stderr, s.getenv)
	require.NoError(t, terminal.Close())
	all := strings.ReplaceAll(testkit.Receive(t, "what is printed", printed), "\r\n", "\n")
	require.Equal(t, 0, code, &stderr)
	return all
}

var anEscape = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// longest returns the number of characters of the longest line.
func longest(output string) (n int) {
	for line := range strings.Lines(anEscape.ReplaceAllString(output, "")) {
		n = max(n, len([]rune(strings.TrimSuffix(line, "\n"))))
	}
	return n
}

// squeezed is output without its layout.
func squeezed(output string) string {
	return strings.Join(strings.Fields(anEscape.ReplaceAllString(output, "")), "")
}

const longCategory messagestore.Category = "customerNotificationsOutboundTransactional:mail"

// withLongNames writes what has a line in every table.
func withLongNames(t *testing.T, store *messagestore.Store) messagestore.StreamName {
	t.Helper()
	stream := longCategory.Stream("018f5e0a-7a3c-7d6e-9d0f-2f1f4c5b6a79")
	q := testkit.Must(queue.New(store, longCategory, &queue.Config{MaxFailures: 1}))
	for range 3 {
		noted(t, store, stream, "CustomerNotificationRequested")
	}
	job := received(t, q, 1)[0]
	require.NoError(t, job.Retry(t.Context(), 0, errors.New(longError)))
	for range 2 {
		noted(t, store, longCategory.Stream("2"), "CustomerNotificationRequested")
	}

	sagas(t, store)
	turns(t, store)
	m := manager(t, store, nil)
	hold(t, m, intent.Request{Key: strings.Repeat("29401/1998-12/", 4), Scope: "a-scope-of-a-customer-with-a-long-name", Session: "checkout-7d9f5b6c4-x2x5q", TTL: time.Hour})
	catchUp(t, store, longCategory, "theLedgerOfAllNotifications", errors.New(longError))
	catchUp(t, store, longCategory, "theIndexOfAllNotifications", errUnwanted)
	return stream
}

var longError = "send the notification: connect to the relay mail-relay-7.internal.example.com: " + strings.Repeat("try the next address: ", 8) + "connection refused"

func noted(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, messageType string) {
	t.Helper()
	_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: messageType, Data: []byte(`{"to":"ann@example.com"}`)})
	require.NoError(t, err)
}

// No line of a table is longer than the terminal is wide, and nothing is missing.
func TestTablesFitATerminal(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		stream := withLongNames(t, store)
		for _, args := range [][]string{
			{"queue", "ls"},
			{"queue", "jobs", string(longCategory)},
			{"queue", "show", string(longCategory), "1"},
			{"queue", "blocked"},
			{"consumers"},
			{"saga", "ls", "booking:saga"},
			{"saga", "show", "booking:saga", "3"},
			{"intents", "list", string(payments)},
			{"top", "--times", "1"},
			{"explain", string(stream)},
			{"explain", "1", "--category", string(longCategory)},
			{"parked", "list", string(longCategory)},
			{"report", "streams"},
			{"stream", string(stream)},
			{"category", string(longCategory)},
		} {
			for _, columns := range []uint16{40, 80, 132} {
				printed := dibs.onTerminal(t, columns, args...)
				require.LessOrEqual(t, longest(printed), int(columns), "%s\n%s", args, printed)
			}
		}
		require.Equal(t, squeezed(dibs.ok(t, "report", "streams")), squeezed(dibs.onTerminal(t, 40, "report", "streams")))
		require.Equal(t, squeezed(dibs.ok(t, "explain", string(stream))), squeezed(dibs.onTerminal(t, 80, "explain", string(stream))))

		// An error has no bound in a pipe, and its cause anywhere.
		jobs := []string{"queue", "jobs", string(longCategory), "--state", "dead"}
		require.Contains(t, dibs.ok(t, jobs...), longError)
		require.Contains(t, dibs.ok(t, append(jobs, "--json")...), longError)
		shown := dibs.onTerminal(t, 80, jobs...)
		require.Contains(t, shown, "…")
		require.Contains(t, squeezed(shown), squeezed("try the next address: connection refused"))

		// Without a size of the terminal it is COLUMNS, which is nothing to a pipe, or 80.
		require.LessOrEqual(t, longest(dibs.onTerminal(t, 0, jobs...)), 80)
		dibs.env["COLUMNS"] = "50"
		require.LessOrEqual(t, longest(dibs.onTerminal(t, 0, jobs...)), 50)
		require.Greater(t, longest(dibs.onTerminal(t, 80, jobs...)), 50)
		require.Contains(t, dibs.ok(t, jobs...), longError)
	})
}

// The last columns of a table are below the others, as their names are.
func TestATableThatIsTooWideIsFolded(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		q := testkit.Must(queue.New(store, "mail", nil))
		dibs.ok(t, "queue", "insert", "mail", "Send", `{}`)
		dibs.ok(t, "queue", "insert", "mail", "Send", `{}`)
		received(t, q, 1)
		lines := strings.Split(anEscape.ReplaceAllString(dibs.onTerminal(t, 80, "queue", "ls"), ""), "\n")
		require.Equal(t, "queue  category  waiting  out  later  due  held  dead  oldest  finished", lines[0])
		require.Equal(t, "    given back  buried", lines[1])
		require.Regexp(t, `^mail   mail            1    1      0    0     0     0 +\d+[sm]         0$`, lines[2])
		require.Equal(t, "             0       0", lines[3])
	})
}
