package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// The mistakes of an operator's day, and what each is told.
func TestMistakesAreTold(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	dibs.ok(t, "write", "booking:saga-1", "Opened")
	told := tell(t, dibs, [][]string{
		// The parser's own.
		{},
		{"wrte"},
		{"parked", "lst"},
		{"stream"},
		{"parked", "show", "account"},
		{"parked", "show", "account", "mail"},
		{"stream", "account-1", "account-2"},
		{"stream", "account-1", "a\x1b]0;b"},
		{"stream", "account-1", "--bogus"},
		{"stream", "account-1", "--from", "x"},
		{"stream", "account-1", "--from", "-1"},
		{"stream", "account-1", "--from"},
		{"trim", "account-1", "--keep", "99999999999999999999"},
		{"forget", "payments:inbox", "--older-than", "30d"},
		{"tail", "account", "--interval", "often"},
		{"parked", "drop", "account", "mail", "7"},
		{"write", "account-1", "Opened", "--id", ""},
		{"queue", "insert", "mail", "Send", "--unique="},
		{"--store=", "stream", "account-1"},

		// Names.
		{"stream", "account"},
		{"stream", ""},
		{"stream", "account-"},
		{"stream", "acc\u202eount-1"},
		{"stream", "account-1\n"},
		{"category", "account-1"},
		{"tail", "account-1"},
		{"trim", "--category", "account-1", "--keep", "1"},
		{"trim", "--category", "mistaken", "--keep", "1"},
		{"trim", "booking", "--keep", "1"},
		{"delete", "account", "--yes"},
		{"delete", "", "--yes"},
		{"delete", "account-", "--dry-run"},
		{"delete", "acc\x01ount-1", "--yes"},
		{"delete", "account-9", "--yes"},
		{"delete", "account-1"},
		{"delete", "account-1", "--yes", "--expect", "7"},
		{"delete", "account-1", "--yes", "--expect", "no-stream"},
		{"delete", "account-1", "--yes", "--reason", " spaces "},
		{"verify", "account-1"},
		{"verify", ""},
		{"verify", "--max-violations", "0"},
		{"explain", "account"},
		{"explain", "account-9"},
		{"explain", "", "--category", "account"},
		{"explain", "AAA", "--category", "account"},
		{"report", "bogus"},
		{"trim", "account-1", "--before", "yesterday"},

		// Consumers and sagas.
		{"parked", "list", "account", "mial"},
		{"parked", "list", "account", "a-b"},
		{"parked", "redrive", "account", ""},
		{"consumers", "pause", "account", "a+b"},
		{"consumers", "reset", "account", "", "--start", "--yes"},
		{"consumers", "park", "account", "a\nb", "--reason", "x"},
		{"--store", "postgres://127.0.0.1:1/d", "consumers", "resume", "account", strings.Repeat("x", 300)},
		{"--store", "postgres://127.0.0.1:1/d", "parked", "list", "account", "a-b"},
		{"parked", "redrive", "account", "mail", "x"},
		{"parked", "redrive", "account", "mail", "7"},
		{"parked", "drop", "account", "mail", "7", "--reason", ""},
		{"parked", "drop", "account", "mail", "7", "--reason", "two\nlines"},
		{"saga", "lst"},
		{"saga", "ls", "booking"},
		{"saga", "ls", "booking-1"},
		{"saga", "show", "trip:saga", "7"},
		{"saga", "show", "booking:saga", "7"},
		{"saga", "cancel", "booking:saga", "7", "--reason", "x"},

		// Schedules.
		{"cron", "set", "reports", "daily", "0 6 * *", "Report"},
		{"cron", "set", "reports", "daily", "60 * * * *", "Report"},
		{"cron", "set", "reports", "daily", "0 0 30 2 *", "Report"},
		{"cron", "set", "reports", "daily", "@never", "Report"},
		{"cron", "set", "reports", "daily", "@every 10ms", "Report"},
		{"cron", "set", "reports", "daily", "CRON_TZ=UTC 0 6 * * *", "Report"},
		{"cron", "set", "reports", "daily", "0 6 * * *", "Report", "--zone", "Mars/Olympus"},
		{"cron", "set", "reports", "daily", "0 6 * *", "Report", "--zone", "Mars/Olympus"},
		{"cron", "set", "reports", "daily", "0 6 * * *", "Report", "[1]"},
		{"cron", "set", "reports", "daily", "0 6 * * *", "Report", "{"},
		{"cron", "set", "reports", "daily", "0 6 * * *", "Report", "--catch-up", "some"},
		{"cron", "set", "reports", "", "0 6 * * *", "Report"},
		{"cron", "set", "reports-1", "daily", "0 6 * * *", "Report"},
		{"cron", "set", "reports", "daily", "0 6 * * *"},
		{"--store", "postgres://127.0.0.1:1/d", "cron", "set", "reports", "daily", "0 6 * *", "Report"},
		{"cron", "show", "reports", "daily"},
		{"cron", "show", "reports", "daily", "--next", "0"},
		{"cron", "remove", "reports", "daily"},
		{"cron", "ls", "reports-1"},
		{"cron", "run", "reports-1"},
		{"--store", "postgres://127.0.0.1:1/d", "cron", "run"},

		// Stores.
		{"--store", "mysql://there/d", "stream", "account-1"},
		{"--store", "memory:", "delete", "account-1", "--yes"},
		{"--store", "memory:", "doctor"},
		{"--store", "memory:", "epoch", "raise"},
		{"--store", "postgres://ann:geheim@127.0.0.1:1/d", "stream", "account-1"},
		{"--store", "postgres://[::1/d", "stream", "account-1"},
		{"--store", "postgres://127.0.0.1:1/d", "--schema", "Other", "stream", "account-1"},
		{"--store", "postgres://127.0.0.1:1/d?schema=Other", "stream", "account-1"},
		{"--store", "sqlite:/nowhere/dibs.db", "stream", "account-1"},
	})
	golden(t, "mistakes", told)
}

// The mistakes that need a server.
func TestMistakesOnAServerAreTold(t *testing.T) {
	t.Parallel()
	empty := &shell{env: map[string]string{"DIBS_STORE": pgtest.Database(t)}}
	dibs := newServer(t)
	dibs.ok(t, "write", "account-1", "Opened")
	dibs.ok(t, "write", "booking:saga-1", "Opened")
	told := tell(t, empty, [][]string{
		{"stream", "account-1"},
		{"stream", "account-1", "--schema", "other"},
		{"verify"},
		{"trim", "account-1", "--keep", "1"},
	}) + tell(t, dibs, [][]string{
		{"delete", "account", "--yes"},
		{"delete", "account-9", "--yes"},
		{"delete", "account-1", "--yes", "--expect", "7"},
		{"verify", "account-1"},
		{"parked", "redrive", "account", "mail"},
		{"saga", "show", "booking:saga", "7"},
	})
	golden(t, "mistakes-postgres", told)
}

// tell runs command lines, each of which is refused, and returns all that is said.
func tell(t *testing.T, dibs *shell, commandLines [][]string) string {
	t.Helper()
	var all strings.Builder
	for _, args := range commandLines {
		r := dibs.run(t, args...)
		require.Positive(t, r.code, "%q: %s", args, r.stdout)
		require.Empty(t, r.stdout, "%q", args)
		for _, never := range []string{"dibs: dibs", "%!", `\x00`, `\u000a`, "pgx", "kong"} {
			require.NotContains(t, r.stderr, never, "%q", args)
		}
		all.WriteString("$ dibs")
		for _, arg := range args {
			fmt.Fprintf(&all, " %q", arg)
		}
		fmt.Fprintf(&all, "\n%s[%d]\n\n", r.stderr, r.code)
	}
	return all.String()
}
