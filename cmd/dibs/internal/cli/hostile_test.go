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
		"UTF-16":                         {string(wide), "must be valid UTF-8: error at byte 0", 0},
		"zeros":                          {strings.Repeat("\x00", 1000), "must be valid JSON: error at byte 1", 0},
		"a line that never ends":         {strings.Repeat("x", 3<<20), "must be at most 2097152 bytes", 0},
		"white space that never ends":    {strings.Repeat(" ", 3<<20), "must be at most 2097152 bytes", 0},
		"nesting that never ends":        {strings.Repeat("[", 1<<20), "line 1: ", 0},
		"a list of messages":             {"[" + good + "]", "must be a JSON object", 0},
		"messages over several lines":    {"{\n\"stream\":\"account-1\"\n}", "must be valid JSON: error at byte", 0},
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
	dibs.script(t, "hostile", nil, nil)
	for _, args := range [][]string{
		{"write", "account-1", "T", "--follow", strings.Repeat("x", 100_000)},
		{"write", "account-1", "T", "--" + strings.Repeat("x", 100_000)},
		{strings.Repeat("x", 100_000)},
		{"report", strings.Repeat("x", 100_000)},
		{"--store", "nothing:" + strings.Repeat("x", 100_000), "stream", "account-1"},
		{"--store", "postgres://127.0.0.1:1/d", "--schema", strings.Repeat("x", 64), "stream", "account-1"},
	} {
		for _, args := range [][]string{args, append([]string{"--json"}, args...)} {
			r := dibs.run(t, args...)
			require.Contains(t, []int{1, 2}, r.code, "%s", r.stdout)
			require.NotEmpty(t, r.stderr)
			requireShort(t, r.stderr, "")
			require.Empty(t, r.stdout)
		}
	}
	require.Equal(t, before, dibs.ok(t, "category", "account", "--json"))
}
