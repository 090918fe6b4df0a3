package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/testkit"
)

func TestLinesAreWrittenInOrder(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	lines := "\xef\xbb\xbf" + `{"stream":"account-1","type":"Opened","data":{"n":12345678901234567890.123456789},"expected":"no-stream"}` + "\r\n" +
		"\n" +
		`{"stream":"account-2","type":"Opened"}` + "\n" +
		`{"stream":"account-1","type":"Closed","expected":0,"id":"` + anID + `","metadata":{"schemaVersion":"2"}}` // the last without an end

	r := dibs.feed(t, lines, "write")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, "3 written, 0 had been already\n", r.stdout)

	all := objects(t, dibs.ok(t, "category", "account", "--json"))
	require.Len(t, all, 3)
	require.Equal(t, "account-2", all[1]["stream"])
	require.Equal(t, anID, all[2]["id"])
	require.Contains(t, dibs.ok(t, "stream", "account-1"), "12345678901234567890.123456789")
}

func TestSameInputAgainWritesNothing(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	// Equal lines are as many messages.
	lines := strings.Repeat(`{"stream":"account-1","type":"Deposited","data":{"amount":1}}`+"\n", 3) +
		`{"stream":"account-1","type":"Deposited","data":{"amount":2}}` + "\n"

	require.Equal(t, "4 written, 0 had been already\n", dibs.feed(t, lines, "write").stdout)
	require.Equal(t, "0 written, 4 had been already\n", dibs.feed(t, lines, "write", "--from", "-").stdout)
	// However it is spelt, and with more at its end.
	respelt := strings.ReplaceAll(lines, `{"amount":1}`, `{ "amount" : 1.0 }`) + `{"stream":"account-1","type":"Closed"}`
	require.Equal(t, "1 written, 4 had been already\n", dibs.feed(t, respelt, "write").stdout)
	// Unless it is asked for.
	require.Equal(t, "4 written, 0 had been already\n", dibs.feed(t, lines, "write", "--new-ids").stdout)
	require.Len(t, objects(t, dibs.ok(t, "stream", "account-1", "--json")), 9)
}

func TestInputThatFailedHalfwayIsGivenAgain(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	lines := make([]string, 100)
	for n := range lines {
		lines[n] = fmt.Sprintf(`{"stream":"account-%d","type":"Opened","data":{"n":%d}}`+"\n", n%7, n)
	}
	whole := strings.Join(lines, "")
	cut := strings.Join(lines[:40], "") + lines[40][:20]

	failed := dibs.feed(t, cut, "write")
	require.Equal(t, 1, failed.code)
	require.Contains(t, failed.stderr, "line 41: invalid line")
	require.Contains(t, failed.stderr, "must be valid JSON: error at byte")
	require.Contains(t, failed.stderr, "(40 written before it, and 0 that had been already)")
	require.Equal(t, "60 written, 40 had been already\n", dibs.feed(t, whole, "write").stdout)

	other := newShell(t)
	require.Equal(t, "100 written, 0 had been already\n", other.feed(t, whole, "write").stdout)
	// The same messages, with the same ids, as if nothing had failed.
	require.Equal(t, stable(t, other), stable(t, dibs))
}

// stable returns a category without the fields that differ from store to store.
func stable(t *testing.T, dibs *shell) []map[string]any {
	t.Helper()
	all := objects(t, dibs.ok(t, "category", "account", "--json"))
	for _, m := range all {
		delete(m, "time")
		delete(m, "globalPosition") // refused and repeated writes leave gaps
	}
	return all
}

func TestWhatIsPrintedCanBeWrittenToAnotherStore(t *testing.T) {
	t.Parallel()
	dibs, other := newShell(t), newShell(t)
	dibs.ok(t, "write", "account-1", "Opened", `{"name":"<Ann>\u009b\u202e"}`, "--metadata", `{"properties":{"a":1.10},"foreign":[1]}`)
	dibs.ok(t, "write", "account-2", "Opened")
	printed := dibs.ok(t, "category", "account", "--json")

	r := other.feed(t, printed, "write")

	require.Equal(t, "2 written, 0 had been already\n", r.stdout, r.stderr)
	require.Equal(t, stable(t, dibs), stable(t, other))
}

func TestLinesAreReadFromAFile(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	file := filepath.Join(t.TempDir(), "lines.ndjson")
	require.NoError(t, os.WriteFile(file, []byte(`{"stream":"account-1","type":"Opened"}`+"\n"), 0o600))

	written := objects(t, dibs.ok(t, "write", "--from", file, "--json"))

	require.InEpsilon(t, 1.0, written[0]["line"], 0)
	require.Equal(t, "account-1", written[0]["stream"])
}

func TestBadLineIsNamedAndNothingOfItWritten(t *testing.T) {
	t.Parallel()
	newShell(t).script(t, "lines-invalid", nil, nil)
	for name, c := range map[string]struct{ line, says string }{
		"garbage":           {"\x00\x01\x02", "must be valid JSON: error at byte 1"},
		"not UTF-8":         {"{\"stream\":\"account-\xff\",\"type\":\"T\"}", "must be valid UTF-8: error at byte 19"},
		"UTF-16":            {"\xff\xfe{\x00", "must be valid UTF-8: error at byte 0"},
		"BOM in the middle": {"\xef\xbb\xbf" + `{"stream":"account-1","type":"T"}`, "must be valid JSON: error at byte 1"},
		"2 MB":              {`{"stream":"account-1","type":"T","data":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`, "must be at most 2097152 bytes"},
		"1.5 MB":            {`{"stream":"account-1","type":"T","data":{"a":"` + strings.Repeat("x", 3<<19) + `"}}`, "must be at most 983040 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dibs := newShell(t)
			r := dibs.feed(t, `{"stream":"account-1","type":"First"}`+"\n\n"+c.line+"\n"+`{"stream":"account-1","type":"Third"}`+"\n", "write")
			require.Equal(t, 1, r.code, r.stderr)
			require.Contains(t, r.stderr, "dibs: line 3: ")
			require.Contains(t, r.stderr, c.says)
			require.Contains(t, r.stderr, "(1 written before it, and 0 that had been already)")
			require.Less(t, len(r.stderr), 500)
			require.Len(t, objects(t, dibs.ok(t, "stream", "account-1", "--json")), 1)
		})
	}
}

func TestInputThatBreaksOffSaysHowManyWereWritten(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.stdin = io.MultiReader(strings.NewReader(`{"stream":"account-1","type":"Opened"}`+"\n"+`{"str`), iotest.ErrReader(errors.New("the disk is gone")))

	r := dibs.run(t, "write")

	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "line 2: the disk is gone (1 written before it, and 0 that had been already)")
}

func TestInterruptSaysHowManyWereWritten(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	reading, writing := io.Pipe()
	dibs.stdin = reading
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan result, 1)
	go func() { ended <- dibs.runContext(ctx, "write") }()
	_, err := writing.Write([]byte(`{"stream":"account-1","type":"Opened"}` + "\n"))
	require.NoError(t, err)
	testkit.Await(t, "the first message", func() (bool, any) {
		r := (&shell{env: dibs.env}).run(t, "stream", "account-1")
		return r.stdout != "", r
	})

	cancel()

	r := testkit.Receive(t, "the end of the write", ended)
	require.Equal(t, 130, r.code)
	require.Contains(t, r.stderr, "(1 written before it, and 0 that had been already)")
	require.NoError(t, writing.Close())
}

// A reader that closes the output of a long write has to learn that the write stopped.
func TestWriteWithoutAReaderOfItsOutputFails(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	lines := strings.Repeat(`{"stream":"account-1","type":"T"}`+"\n", 200)
	var stderr bytes.Buffer

	code := cli.Run(t.Context(), []string{"write", "--json"}, strings.NewReader(lines), brokenPipe{}, &stderr, dibs.getenv)

	require.Equal(t, 1, code)
	require.Contains(t, stderr.String(), "written, but not reported")
}
