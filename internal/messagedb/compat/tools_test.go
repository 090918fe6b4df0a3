package compat_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// uuidgen is for the tools, which call it, and for machines that do not have it: ids
// come in one order, in each database.
const uuidgen = `#!/usr/bin/env bash
n=$(($(cat "$0.n" 2>/dev/null) + 1))
echo $n > "$0.n"
printf '00000000-0000-4000-8000-%012d\n' $n
`

// The parts that differ from one run to the next.
var moments = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?|test_\w+|[0-9.]+ ms|\(cost=[^)]*\) \([^)]*\)|psql:[^ ]+|-{3,}| {2,}`)

// The tools that come with message-db print the same of ours.
func TestToolsOfMessageDBPrintTheSame(t *testing.T) {
	t.Parallel()
	pgtest.NeedsAsNewAsServer(t, "psql") // it describes tables
	var printed [][]string
	for _, database := range []string{messageDB(t), dibs(t)} {
		bin := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(bin, "uuidgen"), []byte(uuidgen), 0o700))
		path := "PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")
		var all []string
		for _, call := range []string{
			"write-test-message.sh STREAM_NAME=a-1 INSTANCES=3", "write-test-message.sh STREAM_NAME=a:command-1+2 TYPE=Other METADATA='{\"correlationStreamName\": \"c-1\"}'", "write-test-message.sh", "write-test-message.sh STREAM_NAME=solo METADATA=null",
			"print-messages.sh", "print-messages.sh STREAM_NAME=a-1", "print-message-store-version.sh",
			"print-stream-summary.sh STREAM_NAME=a", "print-type-summary.sh", "print-type-summary.sh TYPE=Other", "print-category-type-summary.sh CATEGORY=a", "print-type-category-summary.sh TYPE=Some",
			"print-stream-type-summary.sh STREAM_NAME=a", "print-type-stream-summary.sh TYPE=Other", "benchmark.sh STREAM_NAME=bench-1 CYCLES=9", "print-stream-summary.sh STREAM_NAME=bench", "print-category-type-summary.sh",
		} {
			words := strings.SplitN(call, " ", 2)
			env := []string{path}
			if len(words) > 1 {
				env = append(env, variables.FindAllString(words[1], -1)...)
			}
			all = append(all, call+"\n"+moments.ReplaceAllString(pgtest.RunMessageDB(t, database, words[0], env...), "…"))
		}
		printed = append(printed, all)
	}

	require.Equal(t, printed[0], printed[1])
	require.Contains(t, printed[1][0], "Instance: 3, Message ID: 00000000-0000-4000-8000-000000000004")
	require.Contains(t, printed[1][6], "1.3.0")
}

var variables = regexp.MustCompile(`[A-Z_]+=('[^']*'|\S+)`)
