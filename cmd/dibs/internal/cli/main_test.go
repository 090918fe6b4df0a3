package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A shell runs commands with one environment.
type shell struct {
	env   map[string]string
	stdin io.Reader
}

// newShell returns a shell whose store is a new file.
func newShell(t *testing.T) *shell {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dibs.db")
	driver, err := sqlite.Open(t.Context(), path, nil)
	require.NoError(t, err)
	require.NoError(t, driver.Close())
	return &shell{env: map[string]string{"DIBS_STORE": "sqlite:" + path}}
}

type result struct {
	code           int
	stdout, stderr string
}

// run runs dibs with args.
func (s *shell) run(t *testing.T, args ...string) result {
	t.Helper()
	return s.runContext(t.Context(), args...)
}

func (s *shell) runContext(ctx context.Context, args ...string) result {
	var stdout, stderr bytes.Buffer
	stdin := s.stdin
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	code := cli.Run(ctx, args, stdin, &stdout, &stderr, s.getenv)
	return result{code, stdout.String(), stderr.String()}
}

func (s *shell) getenv(name string) string { return s.env[name] }

// ok runs dibs, which must not fail, and returns its output.
func (s *shell) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := s.run(t, args...)
	require.Equal(t, 0, r.code, r.stderr)
	return r.stdout
}

// feed is run with something to read.
func (s *shell) feed(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	with := &shell{env: s.env, stdin: strings.NewReader(stdin)}
	return with.run(t, args...)
}

// objects returns lines of JSON.
func objects(t *testing.T, output string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(output) {
		var object map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &object), line)
		all = append(all, object)
	}
	return all
}

// field returns an object in an object.
func field(t *testing.T, object map[string]any, name string) map[string]any {
	t.Helper()
	value, ok := object[name].(map[string]any)
	require.True(t, ok, "%s of %v", name, object)
	return value
}

var (
	aTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`)
	aUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// steady returns output with its times and ids replaced by one of each.
func steady(output string) string {
	output = aTime.ReplaceAllString(output, "2006-01-02T15:04:05.000000Z")
	return aUUID.ReplaceAllString(output, "00000000-0000-7000-8000-000000000000")
}
