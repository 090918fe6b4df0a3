package cli_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var transcript = regexp.MustCompile("(?ms)^```console\n(.*?)^```")

// Every transcript in docs/cli.md is run, one after the other in one store.
func TestTranscriptsInTheDocumentationAreTrue(t *testing.T) {
	t.Parallel()
	const file = "../../../../docs/cli.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	dibs := newShell(t)
	var said, got strings.Builder
	for _, block := range transcript.FindAllStringSubmatch(string(text), -1) {
		said.WriteString(block[1])
		for line := range strings.Lines(block[1]) {
			command, ok := strings.CutPrefix(line, "$ ")
			if !ok {
				continue
			}
			got.WriteString(line)
			got.WriteString(shellOut(t, dibs, strings.TrimSpace(command)))
		}
	}
	require.NotEmpty(t, said.String())
	require.Equal(t, steady(said.String()), steady(got.String()))
}

// shellOut runs a typed line, with the few things of a shell that the transcripts use.
func shellOut(t *testing.T, dibs *shell, typed string) string {
	t.Helper()
	if code, ok := strings.CutSuffix(typed, "; echo $?"); ok {
		r := dibs.run(t, words(code)[1:]...)
		return r.stdout + r.stderr + string(rune('0'+r.code)) + "\n"
	}
	if producer, consumer, piped := strings.Cut(typed, " | "); piped {
		input := words(producer)
		require.Equal(t, "echo", input[0])
		r := dibs.feed(t, strings.Join(input[1:], " ")+"\n", words(consumer)[1:]...)
		return r.stdout + r.stderr
	}
	args := words(typed)
	require.Equal(t, "dibs", args[0])
	r := dibs.run(t, args[1:]...)
	return r.stdout + r.stderr
}

var word = regexp.MustCompile(`'([^']*)'|(\S+)`)

func words(typed string) []string {
	var all []string
	for _, match := range word.FindAllStringSubmatch(typed, -1) {
		all = append(all, match[1]+match[2])
	}
	return all
}
