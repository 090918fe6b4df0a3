package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
)

var (
	fenced = regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")
	span   = regexp.MustCompile("`([^`\n]+)`")

	// Text after the command, or around it, on one line.
	before = regexp.MustCompile(`^(?:.*(?:\||&&) )?(?:\$ )?(dibs .*)$`)
	after  = regexp.MustCompile(` (?:\\?\||&&|#|>|&) .*$|[;&].*$`)
)

// Every `dibs ...` that the documents tell people to type is one that there is.
func TestDocumentsNameCommandsThatExist(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("testdata/docs/*.md")
	require.NoError(t, err)
	checked := map[string]bool{}
	for _, document := range append(documents, "testdata/README.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, typed := range typedIn(string(text)) {
			if checked[typed] {
				continue
			}
			checked[typed] = true
			args := words(strings.NewReplacer("[", "", "]", "", "…", "").Replace(typed))
			require.NoError(t, cli.Unknown(args[1:]), "%s: %s", filepath.Base(document), typed)
		}
	}
	require.Greater(t, len(checked), 60)
}

func TestUnknownCommandsAreFound(t *testing.T) {
	t.Parallel()
	typed := typedIn("Say `dibs migrate up --force`, or\n```sh\ndibs frobnicate && dibs verify  # now\n```\nbut not `go dibs`.")
	require.Equal(t, []string{"dibs frobnicate", "dibs verify", "dibs migrate up --force"}, typed)
	require.Error(t, cli.Unknown(words(typed[0])[1:]))
	require.NoError(t, cli.Unknown(words(typed[1])[1:]))
	require.Error(t, cli.Unknown(words(typed[2])[1:]))
	require.NoError(t, cli.Unknown([]string{"trim"}))
}

// typedIn returns the command lines of a document, first those in blocks and then in spans.
func typedIn(document string) []string {
	var all []string
	add := func(line string) {
		for part := range strings.SplitSeq(line, " && ") {
			if match := before.FindStringSubmatch(strings.TrimSpace(part)); match != nil {
				all = append(all, strings.TrimSpace(after.ReplaceAllString(match[1], "")))
			}
		}
	}
	for _, block := range fenced.FindAllStringSubmatch(document, -1) {
		for line := range strings.Lines(block[1]) {
			add(strings.TrimRight(line, "\n"))
		}
	}
	for _, match := range span.FindAllStringSubmatch(fenced.ReplaceAllString(document, ""), -1) {
		add(match[1])
	}
	return all
}
