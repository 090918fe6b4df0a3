package cli_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares output with testdata/NAME.txt.
func golden(t *testing.T, name, output string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(file, []byte(output), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), output)
}

var commandLines = []string{
	"", "migrate", "migrate up", "migrate status", "migrate print", "migrate adopt", "write", "stream", "category", "tail", "explain", "report", "consumers", "consumers list", "consumers reset", "consumers pause", "consumers resume", "consumers park", "top", "parked", "parked list", "parked show", "parked redrive", "parked drop", "intents", "intents list", "intents show", "intents release", "intents verify", "queue", "queue ls", "queue jobs", "queue show", "queue blocked", "queue insert", "queue retry", "queue drop", "queue cancel", "queue pause", "queue resume", "queue remove", "cron", "cron ls", "cron show", "cron set", "cron remove", "cron run", "saga", "saga ls", "saga show", "saga cancel", "saga resume", "saga signal", "saga resolve", "saga retry", "saga suspend", "trim", "delete", "forget", "epoch", "epoch show", "epoch raise", "doctor", "verify", "version",
}

func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	for _, command := range commandLines {
		dibs := &shell{}
		help := dibs.ok(t, append(strings.Fields(command), "--help")...)
		golden(t, strings.ReplaceAll(strings.TrimSpace("help "+command), " ", "-"), help)
		for line := range strings.Lines(help) {
			require.LessOrEqual(t, len([]rune(line)), 81, line)
		}
		if command != "" && command != "migrate" && command != "consumers" && command != "parked" && command != "intents" && command != "queue" && command != "cron" && command != "saga" && command != "epoch" {
			require.Contains(t, help, "    dibs "+command, "an example")
		}
	}
}

func TestVersionIsTold(t *testing.T) {
	t.Parallel()
	dibs := &shell{}
	require.Contains(t, dibs.ok(t, "version"), "go1.")
	require.Contains(t, objects(t, dibs.ok(t, "version", "--json"))[0], "version")
}
