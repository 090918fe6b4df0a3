package cli_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

// A file that is not lines of messages is refused at its first bad line, and no line after
// it is written.
func TestHostileFilesAreRefused(t *testing.T) {
	t.Parallel()
	const good = `{"stream":"account-1","type":"Opened"}`
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write([]byte(good + "\n"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	wide := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(good)) {
		wide = append(wide, byte(unit), byte(unit>>8))
	}
	for name, c := range map[string]struct {
		content, says string
		written       int
	}{
		"a compressed file":              {zipped.String(), "line 1: invalid line", 0},
		"UTF-16":                         {string(wide), "not valid UTF-8 at byte 0", 0},
		"zeros":                          {strings.Repeat("\x00", 1000), "not valid JSON at byte 1", 0},
		"a line that never ends":         {strings.Repeat("x", 3<<20), "too long: at most 2097152 bytes", 0},
		"white space that never ends":    {strings.Repeat(" ", 3<<20), "too long: at most 2097152 bytes", 0},
		"nesting that never ends":        {strings.Repeat("[", 1<<20), "line 1: ", 0},
		"a list of messages":             {"[" + good + "]", "it is not a JSON object", 0},
		"messages over several lines":    {"{\n\"stream\":\"account-1\"\n}", "not valid JSON at byte", 0},
		"comma-separated values":         {"stream,type\naccount-1,Opened\n", "line 1: ", 0},
		"escapes of a terminal":          {"\x1b]0;title\x07\x1b[2J\n", "line 1: ", 0},
		"a bad line after a good one":    {good + "\n" + good[:20], "line 2: ", 1},
		"old line ends":                  {good + "\r" + good, "line 1: ", 0},
		"a byte order mark in line 2":    {good + "\n\ufeff" + good, "line 2: ", 1},
		"a tombstone":                    {`{"stream":"account-1","type":"dibs:Tombstone"}`, "the store's own", 0},
		"an id twice for other messages": {`{"stream":"account-1","type":"T","id":"` + anID + `"}` + "\n" + `{"stream":"account-1","type":"U","id":"` + anID + `"}`, "line 2: ", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dibs := newShell(t)
			file := filepath.Join(t.TempDir(), "lines.ndjson")
			require.NoError(t, os.WriteFile(file, []byte(c.content), 0o600))

			r := dibs.run(t, "write", "--from", file)

			require.Equal(t, 1, r.code, r.stderr)
			requireShort(t, r.stderr, c.says)
			all := objects(t, dibs.ok(t, "category", "account", "--json"))
			require.Len(t, all, c.written)
		})
	}
	dibs := newShell(t)
	folder := dibs.run(t, "write", "--from", t.TempDir())
	require.NotZero(t, folder.code)
	requireShort(t, folder.stderr, "directory")
	for name, content := range map[string]string{"empty": "", "only a byte order mark": "\ufeff", "only ends of lines": "\r\n\n\r\n", "only white space": " \t \n"} {
		file := filepath.Join(t.TempDir(), "lines.ndjson")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		require.Equal(t, "0 written, 0 had been already\n", dibs.ok(t, "write", "--from", file), name)
	}
}

func requireShort(t *testing.T, stderr, says string) {
	t.Helper()
	require.Contains(t, stderr, says)
	require.Less(t, len(stderr), 1000)
	require.False(t, strings.ContainsFunc(strings.ReplaceAll(stderr, "\n", ""), unicode.IsControl), "%q", stderr)
}

// An operator's typing errors are refused, and change nothing.
func TestHostileOperationsAreRefused(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	before := dibs.ok(t, "category", "account", "--json")
	for name, args := range map[string][]string{
		"positions of a stream":           {"consumers", "list", "account-1"},
		"positions of a hidden name":      {"consumers", "list", "acc\u202eount"},
		"a reset of nobody":               {"consumers", "reset", "account", "nobody", "--to", "0"},
		"a reset to -1":                   {"consumers", "reset", "account", "ledger", "--to=-1"},
		"a reset to no number":            {"consumers", "reset", "account", "ledger", "--to", "first"},
		"a reset past all numbers":        {"consumers", "reset", "account", "ledger", "--to", "9223372036854775808"},
		"a reset of a name with a dash":   {"consumers", "reset", "account", "a-b", "--to", "0"},
		"letters of a stream":             {"parked", "list", "account-1"},
		"a parked message of no number":   {"parked", "show", "account", "ledger", "nope"},
		"a redrive of what is not parked": {"parked", "redrive", "account", "ledger", "7"},
		"a redrive below 1":               {"parked", "redrive", "account", "ledger", "0"},
		"a report by nothing there is":    {"report", "message"},
		"a report in a hidden order":      {"report", "stream", "--sort", "si\u200dze"},
		"an export from below 0":          {"stream", "account-1", "--from=-1"},
		"a category from below 0":         {"category", "account", "--from=-5"},
		"a tail from below 0":             {"tail", "account", "--from=-1"},
		"a trim that keeps nothing":       {"trim", "account-1", "--keep", "0"},
		"a deletion in a file":            {"delete", "account-1", "--expected", "0"},
		"a story about a hidden key":      {"explain", "\u200b", "--category", "account"},
		"a story about no key":            {"explain", "", "--category", "account"},
		"a place without a position":      {"write", "account-1", "T", "--follow", "account-1@"},
		"a place with a plus":             {"write", "account-1", "T", "--follow", "account-1@+0"},
		"a place of nothing":              {"write", "account-1", "T", "--follow", "account-1@7"},
		"a very long place":               {"write", "account-1", "T", "--follow", strings.Repeat("x", 100_000)},
		"a very long flag":                {"write", "account-1", "T", "--" + strings.Repeat("x", 100_000)},
		"a very long command":             {strings.Repeat("x", 100_000)},
		"a very long option":              {"report", strings.Repeat("x", 100_000)},
		"a store of no kind":              {"--store", "nothing:" + strings.Repeat("x", 100_000), "stream", "account-1"},
		"a schema that is none":           {"--store", "postgres://127.0.0.1:1/d", "--schema", `x"; drop schema dibs; --`, "stream", "account-1"},
		"a schema of the server's own":    {"--store", "postgres://127.0.0.1:1/d", "--schema", "pg_catalog", "stream", "account-1"},
		"a schema that is too long":       {"--store", "postgres://127.0.0.1:1/d", "--schema", strings.Repeat("x", 64), "stream", "account-1"},
		"two schemas":                     {"--store", "postgres://127.0.0.1:1/d?schema=a&schema=b", "stream", "account-1"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, args := range [][]string{args, append([]string{"--json"}, args...)} {
				r := dibs.run(t, args...)
				require.Contains(t, []int{1, 2}, r.code, "%s", r.stdout)
				require.NotEmpty(t, r.stderr)
				requireShort(t, r.stderr, "")
				require.Empty(t, r.stdout)
			}
		})
	}
	require.Equal(t, before, dibs.ok(t, "category", "account", "--json"))
}
