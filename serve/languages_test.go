package serve_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// The examples and the tests of other languages run against a server. make test/serve installs
// what they need.
func TestOtherLanguages(t *testing.T) {
	t.Parallel()
	url := start(t, open(t), nil)
	typescript := func() {
		if _, err := os.Stat("ts/node_modules"); err != nil {
			pgtest.Missing(t, "no serve/ts/node_modules: run make generate")
		}
		command(t, nil, "ts/node_modules/.bin/tsc", "-p", "ts")
	}
	for _, test := range []struct {
		name    string
		prepare func()
		args    []string
		says    string
	}{
		{"TypeScript", typescript, []string{"node", "--test", "ts/built/test/"}, "# fail 0"},
		{"TypeScriptExample", func() {}, []string{"node", "ts/built/example/pay.js", url}, "paid 3 orders"},
		{"PythonExample", func() {}, []string{"python3", "examples/pay.py", url}, "paid 3 orders"},
		{"CurlExample", func() { pgtest.Needs(t, "jq", "curl") }, []string{"examples/pay.sh", url}, "paid 1 order"},
	} {
		t.Run(test.name, func(t *testing.T) { // one after another: the second needs what the first has built
			test.prepare()
			if filepath.Base(test.args[0]) == test.args[0] {
				pgtest.Needs(t, test.args[0])
			}
			require.Contains(t, command(t, []string{"DIBS_URL=" + url}, test.args...), test.says)
		})
	}
}

func command(t *testing.T, env []string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
