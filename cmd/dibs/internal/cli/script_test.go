package cli_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// script runs testdata/NAME.txt, a transcript: after each line with a command comes what it prints, on both outputs, and its exit
// code if that is not 0. A line that begins with > names a step that is taken in Go: of steps, what a consumer handles, parks or
// fails at, or how many messages a stream is filled with.
func (s *shell) script(t *testing.T, name string, store *messagestore.Store, steps map[string]func()) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	require.NoError(t, err)
	var all strings.Builder
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "# "):
			all.WriteString(line)
			continue
		case strings.HasPrefix(line, "> "):
			all.WriteString(line)
			if step, is := steps[strings.TrimSpace(line[2:])]; is {
				step()
			} else {
				did := words(line[2:])
				require.Len(t, did, 3, line)
				if n, err := strconv.Atoi(did[2]); did[0] == "fill" && err == nil {
					s.fill(t, did[1], n)
					all.WriteString("\n")
					continue
				}
				failure, known := map[string]error{"handle": nil, "park": errUnwanted, "fail": errors.New("the bank is closed")}[did[0]]
				require.True(t, known, line)
				met := consumed(t, store, messagestore.Category(did[1]), did[2], failure)
				slices.Sort(met) // those of several streams come in any order if they are redriven
				all.WriteString(steady(strings.Join(met, "\n") + "\n"))
			}
			all.WriteString("\n")
			continue
		case !strings.HasPrefix(line, "$ "):
			continue
		}
		r := s.typed(t, strings.TrimSpace(line[2:]))
		for _, never := range []string{"dibs: dibs", "%!", `\u000a`, "pgx", "kong"} {
			require.NotContains(t, r.stderr, never, line)
		}
		all.WriteString(line + s.same(r.stdout) + s.inFile(steadyTokens(r.stderr)))
		if r.code != 0 {
			all.WriteString("[" + strconv.Itoa(r.code) + "]\n")
		}
		all.WriteString("\n")
	}
	golden(t, name, all.String())
}

// consumed returns the messages that a consumer has met, until it has met all or stops.
func consumed(t *testing.T, store *messagestore.Store, category messagestore.Category, name string, failure error) (met []string) {
	t.Helper()
	c := testkit.Must(consumer.New(store, category, name, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		met = append(met, m.String())
		return failure
	}), &consumer.Config{Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}}))
	if err := c.CatchUp(t.Context()); failure == nil || errors.Is(failure, errUnwanted) {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, failure)
	}
	return met
}

// typed runs a line of a shell, of which a command may be fed by echo.
func (s *shell) typed(t *testing.T, line string) result {
	t.Helper()
	if producer, consumer, piped := strings.Cut(line, " | "); piped {
		return s.feed(t, strings.Join(words(producer)[1:], " ")+"\n", words(consumer)[1:]...)
	}
	return s.run(t, words(line)[1:]...)
}

var (
	aWord    = regexp.MustCompile(`'([^']*)'|"(?:[^"\\]|\\.)*"|(\S+)`)
	aLength  = regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b`)
	aGap     = regexp.MustCompile(` {2,}`)
	aToken   = regexp.MustCompile(`\b\d{16}\b`)
	aSession = regexp.MustCompile(`(session"?[ :]|"pid":|process |left in )\d+`)
	aClock   = regexp.MustCompile(`\w{3} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+`)
	aStack   = regexp.MustCompile(`(panic: [^\\\n]*)\\u000a.*`)
	aHash    = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	aSecond  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	aBytes   = regexp.MustCompile(`("bytes":|\d\.\d\d  )\d+`)
	aFloat   = regexp.MustCompile(`Seconds":[0-9.e-]+`)
)

// words are those of a line: bare, or in quotes as a shell or Go has them.
func words(typed string) (all []string) {
	for _, match := range aWord.FindAllStringSubmatch(typed, -1) {
		word := match[1] + match[2]
		if quoted, err := strconv.Unquote(match[0]); err == nil && match[0][0] == '"' {
			word = quoted
		}
		all = append(all, word)
	}
	return all
}

// same returns output without what is another each time: times, ids, lengths of time, and the columns whose width depends on them.
func (s *shell) same(output string) string {
	output = aStack.ReplaceAllString(output, "$1 …")
	output = aHash.ReplaceAllString(aClock.ReplaceAllString(output, "Mon 2006-01-02 15:04:05 MST"), "HASH")
	output = aSecond.ReplaceAllString(output, "2006-01-02T15:04:05Z")
	output = aGap.ReplaceAllString(aLength.ReplaceAllString(steadyTokens(output), "15s"), "  ")
	output = aBytes.ReplaceAllString(output, "${1}1")
	return s.inFile(aFloat.ReplaceAllString(aSession.ReplaceAllString(output, "${1}1"), `Seconds":1`))
}

// inFile returns output with the name of the store's file replaced, or that of the server's user.
func (s *shell) inFile(output string) string {
	if path, is := strings.CutPrefix(s.env["DIBS_STORE"], "sqlite:"); is {
		return strings.ReplaceAll(output, path, "FILE")
	}
	if config, err := pgx.ParseConfig(s.env["DIBS_STORE"]); err == nil {
		return strings.NewReplacer("by "+config.User, "by USER", `"by":"`+config.User, `"by":"USER`).Replace(output)
	}
	return output
}
