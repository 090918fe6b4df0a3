package cli_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

const anID = "0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"

func TestAMessageIsWritten(t *testing.T) {
	t.Parallel()
	newShell(t).script(t, "write", nil, nil)
}

func TestWriteReadsDataFromTheStandardInput(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)

	require.Equal(t, 0, dibs.feed(t, "\xef\xbb\xbf{\"name\": \"Ann\"}\r\n", "write", "account-123", "Opened", "-").code)

	require.Contains(t, dibs.ok(t, "stream", "account-123"), `{"name":"Ann"}`)
}

// Nothing that can be refused here reaches a store: there is none.
func TestInvalidArgumentsAreRefusedBeforeTheStoreIsOpened(t *testing.T) {
	t.Parallel()
	nowhere := &shell{env: map[string]string{"DIBS_STORE": "sqlite:/there/is/no/such/folder/dibs.db"}}
	nowhere.script(t, "invalid", nil, nil)
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"not UTF-8":          {[]string{"stream", "cat-\xff"}, "must be valid UTF-8: error at byte 4"},
		"overlong UTF-8":     {[]string{"stream", "cat-\xc0\x80"}, "must be valid UTF-8: error at byte 4"},
		"long name":          {[]string{"stream", "cat-" + long}, "must be at most 255"},
		"id in braces":       {[]string{"write", "a-1", "T", "--id", "{" + anID + "}"}, "must be a UUID in lower case"},
		"id in capitals":     {[]string{"write", "a-1", "T", "--id", strings.ToUpper(anID)}, "must be a UUID in lower case"},
		"long type":          {[]string{"write", "a-1", long}, "must be at most 255"},
		"metadata not UTF-8": {[]string{"write", "a-1", "T", "--metadata", "{\"a\":\"\xff\"}"}, "must be valid UTF-8: error at byte 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := nowhere.run(t, c.args...)
			require.Equal(t, 2, r.code, r.stderr)
			require.Contains(t, r.stderr, c.says)
			require.Empty(t, r.stdout)
			require.Less(t, len(r.stderr), 1000)

			asJSON := nowhere.run(t, append([]string{"--json"}, c.args...)...)
			require.Equal(t, 2, asJSON.code)
			require.Contains(t, objects(t, asJSON.stderr)[0], "error")
		})
	}
}

func TestInvalidDataIsRefused(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for name, c := range map[string]struct{ data, says string }{
		"scalar":           {`1`, "must be a JSON object"},
		"array":            {`[]`, "must be a JSON object"},
		"null":             {`null`, "must be a JSON object"},
		"NaN":              {`{"a":NaN}`, "must be valid JSON: error at byte"},
		"trailing comma":   {`{"a":1,}`, "must be valid JSON: error at byte"},
		"single quotes":    {`{'a':1}`, "must be valid JSON: error at byte"},
		"two documents":    {`{} {}`, "must be valid JSON: error at byte"},
		"U+0000":           {`{"a":"\u0000"}`, "must not contain U+0000 at .a"},
		"lone surrogate":   {`{"a":"\ud800"}`, "must not contain half of a surrogate pair at .a"},
		"not UTF-8":        {"{\"a\":\"\xff\"}", "must be valid UTF-8: error at byte 6"},
		"number too large": {`{"a":1e200000}`, "must not contain a number out of range at .a"},
		"deep":             {strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600), "must not be nested more than 512 deep"},
		"large":            {`{"a":"` + strings.Repeat("x", 2<<20) + `"}`, "must be at most 983040 bytes"},
		"BOM twice":        {"\xef\xbb\xbf\xef\xbb\xbf{}", "must be valid JSON: error at byte"},
		"empty":            {" \n", "must not be empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := dibs.feed(t, c.data, "write", "account-1", "T", "-")
			require.Equal(t, 2, r.code)
			require.Contains(t, r.stderr, c.says)
			require.Less(t, len(r.stderr), 400)
		})
	}
	require.Empty(t, dibs.ok(t, "category", "account"))
}

func TestInterruptEndsAWriteThatWaitsForInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"write", "account-1", "T", "-"}, {"write"}} {
		dibs := newShell(t)
		reading, writing := io.Pipe()
		dibs.stdin = reading
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan result, 1)
		go func() { ended <- dibs.runContext(ctx, args...) }()
		_, err := writing.Write([]byte(" ")) // it is reading
		require.NoError(t, err)

		cancel()

		require.Equal(t, 130, testkit.Receive(t, "the end of the write", ended).code)
		require.NoError(t, writing.Close())
	}
}
