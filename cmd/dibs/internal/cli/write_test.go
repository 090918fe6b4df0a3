package cli_test

import (
	"context"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/messagestore"
)

const anID = "0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"

func TestWriteSaysWhereTheMessageIs(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)

	require.Equal(t, "wrote account-123@0 with id "+anID+"\n", dibs.ok(t, "write", "account-123", "Opened", `{"name":"Ann"}`, "--id", anID))
	require.Equal(t, "had been written: account-123@0 with id "+anID+"\n", dibs.ok(t, "write", "account-123", "Opened", `{"name":"Ann"}`, "--id", anID))

	written := objects(t, dibs.ok(t, "write", "account-123", "Closed", "--json"))
	require.Len(t, written, 1)
	require.Equal(t, "account-123", written[0]["stream"])
	require.InEpsilon(t, 1.0, written[0]["position"], 0)
	require.Equal(t, false, written[0]["duplicate"])
	require.Regexp(t, aUUID, written[0]["id"])
}

func TestWriteReadsDataFromTheStandardInput(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)

	require.Equal(t, 0, dibs.feed(t, "\xef\xbb\xbf{\"name\": \"Ann\"}\r\n", "write", "account-123", "Opened", "-").code)

	require.Contains(t, dibs.ok(t, "stream", "account-123"), `{"name":"Ann"}`)
}

func TestSecondFirstWriteIsAVersionConflict(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-123", "Opened", "--expected", "no-stream")

	second := dibs.run(t, "write", "account-123", "Opened", "--expected", "no-stream")
	require.Equal(t, 3, second.code)
	require.Empty(t, second.stdout)
	require.Contains(t, second.stderr, "dibs: write account-123: version conflict: expected no stream, found 0\n")

	asJSON := dibs.run(t, "write", "account-123", "Opened", "--expected", "4", "--json")
	require.Equal(t, 3, asJSON.code)
	problem := objects(t, asJSON.stderr)[0]
	require.Equal(t, "versionConflict", problem["kind"])
	require.Equal(t, "account-123", problem["stream"])
	require.InEpsilon(t, 4.0, problem["expected"], 0)
	require.Zero(t, problem["actual"])
	require.InEpsilon(t, 3.0, problem["exitCode"], 0)

	dibs.ok(t, "write", "account-123", "Opened", "--expected", "0")
	require.Equal(t, 3, dibs.run(t, "write", "account-123", "Opened", "--expected", strconv.Itoa(math.MaxInt64)).code)
}

func TestWriteFollowsAMessage(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account:command-ann@example.com", "Open", "--metadata", `{"correlationStreamName":"signup-1","properties":{"n":12345678901234567890}}`)

	dibs.ok(t, "write", "account-1", "Opened", "--follow", "account:command-ann@example.com@0")

	opened := dibs.ok(t, "stream", "account-1", "--json")
	metadata := field(t, objects(t, opened)[0], "metadata")
	require.Equal(t, "account:command-ann@example.com", metadata["causationMessageStreamName"])
	require.Equal(t, "signup-1", metadata["correlationStreamName"])
	require.Contains(t, opened, `{"n":12345678901234567890}`)

	missing := dibs.run(t, "write", "account-1", "Opened", "--follow", "account:command-ann@example.com@1")
	require.Equal(t, 1, missing.code)
	require.Contains(t, missing.stderr, "dibs: follow: account:command-ann@example.com@1: no such message\n")
}

func TestIDOfAnotherMessageIsRefused(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-123", "Opened", "--id", anID)

	other := dibs.run(t, "write", "account-123", "Closed", "--id", anID)

	require.Equal(t, 1, other.code)
	require.Contains(t, other.stderr, "message id conflict")
	require.Contains(t, other.stderr, "an id is for one message")
}

// Nothing that can be refused here reaches a store: there is none.
func TestInvalidArgumentsAreRefusedBeforeTheStoreIsOpened(t *testing.T) {
	t.Parallel()
	nowhere := &shell{env: map[string]string{"DIBS_STORE": "sqlite:/there/is/no/such/folder/dibs.db"}}
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"empty stream":           {[]string{"write", "", "T"}, "it is empty"},
		"empty stream alone":     {[]string{"write", ""}, "it is empty"},
		"category for stream":    {[]string{"write", "account", "T"}, "it is a category"},
		"dash":                   {[]string{"write", "account-", "T"}, "the identifier is empty"},
		"no category":            {[]string{"stream", "--", "-x"}, "the category is empty"},
		"control character":      {[]string{"stream", "cat-\n\t\x01"}, "control or format character U+000A at byte 4"},
		"NUL":                    {[]string{"stream", "cat-\x00"}, "control or format character U+0000"},
		"not UTF-8":              {[]string{"stream", "cat-\xff"}, "not valid UTF-8 at byte 4"},
		"overlong UTF-8":         {[]string{"stream", "cat-\xc0\x80"}, "not valid UTF-8 at byte 4"},
		"right to left":          {[]string{"stream", "cat-\u202e"}, "control or format character U+202E"},
		"long name":              {[]string{"stream", "cat-" + long}, "at most 255"},
		"empty cardinal id":      {[]string{"stream", "cat-+x"}, "the cardinal identifier is empty"},
		"stream for category":    {[]string{"category", "a-1"}, "it is the name of a stream"},
		"empty category":         {[]string{"category", ""}, "it is empty"},
		"stream to tail":         {[]string{"tail", "a-1"}, "it is the name of a stream"},
		"id":                     {[]string{"write", "a-1", "T", "--id", "nope"}, "it is not a UUID"},
		"nil id":                 {[]string{"write", "a-1", "T", "--id", "00000000-0000-0000-0000-000000000000"}, "nil UUID"},
		"id in braces":           {[]string{"write", "a-1", "T", "--id", "{" + anID + "}"}, "it is not a UUID in lower case"},
		"id in capitals":         {[]string{"write", "a-1", "T", "--id", strings.ToUpper(anID)}, "it is not a UUID in lower case"},
		"empty type":             {[]string{"write", "a-1", ""}, "type"},
		"long type":              {[]string{"write", "a-1", long}, "at most 255"},
		"control in type":        {[]string{"write", "a-1", "T\x1b"}, "control or format character U+001B"},
		"expected less than any": {[]string{"write", "a-1", "T", "--expected=-2"}, "it is no-stream, exists, any, or a position"},
		"expected word":          {[]string{"write", "a-1", "T", "--expected", "NoStream"}, "it is no-stream, exists, any, or a position"},
		"expected too large":     {[]string{"write", "a-1", "T", "--expected", "9223372036854775808"}, "it is no-stream, exists, any, or a position"},
		"expected with a plus":   {[]string{"write", "a-1", "T", "--expected", "+1"}, "it is no-stream, exists, any, or a position"},
		"metadata":               {[]string{"write", "a-1", "T", "--metadata", "[]"}, "it is not a JSON object"},
		"metadata surrogate":     {[]string{"write", "a-1", "T", "--metadata", `{"properties":{"a":"\ud800"}}`}, "lone surrogate"},
		"metadata not UTF-8":     {[]string{"write", "a-1", "T", "--metadata", "{\"a\":\"\xff\"}"}, "not valid UTF-8 at byte 6"},
		"follow":                 {[]string{"write", "a-1", "T", "--follow", "b-1"}, "a stream and a position"},
		"follow a category":      {[]string{"write", "a-1", "T", "--follow", "b@1"}, "it is a category"},
		"limit 0":                {[]string{"stream", "a-1", "--limit=0"}, "it is at least 1"},
		"limit -1":               {[]string{"category", "a", "--limit=-1"}, "it is at least 1"},
		"limit word":             {[]string{"category", "a", "--limit=many"}, "--limit"},
		"from word":              {[]string{"category", "a", "--from=start"}, "--from"},
		"member alone":           {[]string{"category", "a", "--member=0"}, "--member and --size go together"},
		"size alone":             {[]string{"category", "a", "--size=2"}, "--member and --size go together"},
		"size 0":                 {[]string{"category", "a", "--member=0", "--size=0"}, "at least one member"},
		"member -1":              {[]string{"category", "a", "--member=-1", "--size=2"}, "it is less than 0"},
		"member is size":         {[]string{"category", "a", "--member=2", "--size=2"}, "less than the group size"},
		"size 32768":             {[]string{"category", "a", "--member=0", "--size=32768"}, "between 1 and 1024"},
		"correlation":            {[]string{"category", "a", "--correlation=x-1"}, "it is the name of a stream"},
		"filter type":            {[]string{"category", "a", "--type="}, "it is empty"},
		"interval 0":             {[]string{"tail", "a", "--interval=0s"}, "between 10ms and 1h"},
		"interval 10 years":      {[]string{"tail", "a", "--interval=87600h"}, "between 10ms and 1h"},
		"key without category":   {[]string{"explain", "AAA"}, "give its --category"},
		"in a stream":            {[]string{"explain", "a-1", "--in=b-1"}, "it is the name of a stream"},
		"lines and a stream":     {[]string{"write", "a-1", "T", "--from", "-"}, "either STREAM and TYPE, or --from"},
		"no such command":        {[]string{"append", "a-1", "T"}, "append"},
		"no command":             {nil, "a command is missing: one of \"migrate\", \"write\""},
		"no such flag":           {[]string{"stream", "a-1", "--form=1"}, "--form"},
		"no such file":           {[]string{"write", "--from", "/there/is/no/such.ndjson"}, "no such file"},
		"schema of a file":       {[]string{"stream", "a-1", "--schema", "x"}, "--schema is for PostgreSQL only"},
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
		"scalar":           {`1`, "it is not a JSON object"},
		"array":            {`[]`, "it is not a JSON object"},
		"null":             {`null`, "it is not a JSON object"},
		"NaN":              {`{"a":NaN}`, "not valid JSON at byte"},
		"trailing comma":   {`{"a":1,}`, "not valid JSON at byte"},
		"single quotes":    {`{'a':1}`, "not valid JSON at byte"},
		"two documents":    {`{} {}`, "not valid JSON at byte"},
		"U+0000":           {`{"a":"\u0000"}`, "U+0000 cannot be stored, at .a"},
		"lone surrogate":   {`{"a":"\ud800"}`, "lone surrogate at .a"},
		"not UTF-8":        {"{\"a\":\"\xff\"}", "not valid UTF-8 at byte 6"},
		"number too large": {`{"a":1e200000}`, "number out of range at .a"},
		"deep":             {strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600), "nested more than 512 deep"},
		"large":            {`{"a":"` + strings.Repeat("x", 2<<20) + `"}`, "too long"},
		"BOM twice":        {"\xef\xbb\xbf\xef\xbb\xbf{}", "not valid JSON at byte"},
		"empty":            {" \n", "it is empty"},
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

func TestNamesThatLookDangerousAreOnlyNames(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for _, name := range []string{"a-1'; DROP TABLE messages;--", "cat-%s%d%n", "cat-${jndi:ldap://x}", "cat--x", "cat-a-b+c+d", "cat-é", "cat-e\u0301", "Cat-1", "cat-1"} {
		dibs.ok(t, "write", name, "T", "--expected", "no-stream")
		require.Equal(t, name, objects(t, dibs.ok(t, "stream", name, "--json"))[0]["stream"])
	}
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

		require.Equal(t, 130, await.Receive(t, "the end of the write", ended).code)
		require.NoError(t, writing.Close())
	}
}

func TestExpectedVersionIsWrittenAsItIsRead(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for n := range 3 {
		expected := strconv.Itoa(n - 1)
		if messagestore.Version(n-1) == messagestore.NoStream {
			expected = "no-stream"
		}
		dibs.ok(t, "write", "account-1", "T", "--expected", expected)
	}
}
