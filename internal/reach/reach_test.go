package reach_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/reach"
)

// A module in which each test whose name has a Runs runs a program, and no other does.
var module = map[string]string{
	"go.mod": "module example.org/m\n",
	"one_test.go": `package m
import ("os"; "os/exec"; "testing"; help "example.org/m/helper"; "example.org/m/helper/deep")
func TestRuns(t *testing.T) { exec.Command("psql") }
func TestLooks(t *testing.T) { exec.LookPath("psql") }
func FuzzRuns(f *testing.F) { own() }
func ExampleRuns() { help.Through() }
func TestRunsByAMethod(t *testing.T) { client{}.ask() }
func TestRunsByAVariable(t *testing.T) { all() }
func TestRunsFarAway(t *testing.T) { deep.Down() }
func TestCallsAnother(t *testing.T) { help.Quiet() }
func TestNamesAnErrorOfIt(t *testing.T) { _ = exec.ErrNotFound }
func TestStartsItself(t *testing.T) { exec.Command(os.Args[0]) }
func TestNothing(t *testing.T) {}
func TestMain(m *testing.M) { own() }
`,
	"own.go":             "package m\nimport \"os/exec\"\nfunc own() { exec.CommandContext(nil, \"npm\") }\nvar all = func() { own() }\n",
	"client.go":          "package m\nfunc (c client) ask() { own() }\ntype client struct{}\n",
	"helper/help.go":     "package helper\nimport \"os/exec\"\nfunc Through() { exec.Command(\"node\") }\nfunc Quiet() {}\n",
	"helper/deep/d.go":   "package deep\nimport \"example.org/m/helper\"\nfunc Down() { helper.Through() }\n",
	"helper/d_test.go":   "package helper_test\nimport \"example.org/m/helper\"\nfunc TestRunsFromOutside() { helper.Through() }\n",
	"testdata/x_test.go": "package x\nimport \"os/exec\"\nfunc TestOfNobody() { exec.Command(\"a\") }\n",
	"other/go.mod":       "module example.org/other\n",
	"other/x_test.go":    "package x\nimport \"os/exec\"\nfunc TestOfAnotherModule() { exec.Command(\"a\") }\n",
}

func TestTestsThatRunProgramsAreFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range module {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}

	found, err := reach.Tests(dir, "example.org/m", reach.Programs())

	require.NoError(t, err)
	require.Equal(t, map[string][]string{
		".":      {"ExampleRuns", "FuzzRuns", "TestLooks", "TestRuns", "TestRunsByAMethod", "TestRunsByAVariable", "TestRunsFarAway"},
		"helper": {"TestRunsFromOutside"},
	}, found)

	found, err = reach.Tests(dir, "example.org/m", []reach.Function{{"helper", "Quiet"}})

	require.NoError(t, err)
	require.Equal(t, map[string][]string{".": {"TestCallsAnother"}}, found)
}

func TestThisModulesTestsWithProgramsAreFound(t *testing.T) {
	t.Parallel()
	found, err := reach.Tests("../..", "github.com/dibs-go/dibs", reach.Programs())

	require.NoError(t, err)
	for folder, name := range map[string]string{
		"migrations":             "TestPsqlGooseAndUpMakeTheSameDatabase", // psql, pg_dump and go
		"migrations/compat":      "TestWriteMessageIsTheSame",             // npm, by messagedbtest.Database
		"messagestore/postgres":  "TestConformanceThroughPgBouncer",
		"internal/messagedbtest": "TestClientInNodeCannotTellOursFromMessageDB",
		"cmd/dibs/internal/cli":  "TestCommandsWorkThroughPgBouncer",
	} {
		require.Contains(t, found[folder], name)
	}
	require.NotContains(t, found, "entity")
	require.NotContains(t, found["messagestore/postgres"], "TestConformanceOverAPool")
}

func TestThisModulesTestsOfPostgreSQLAreFound(t *testing.T) {
	t.Parallel()
	found, err := reach.Tests("../..", "github.com/dibs-go/dibs", []reach.Function{{"internal/pgtest", "URL"}})

	require.NoError(t, err)
	require.Contains(t, found["messagestore/postgres"], "TestConformanceOverAPool")
	require.Contains(t, found["messagestore/postgres"], "TestStandbyIsRefusedUntilItIsPromoted")
	require.Contains(t, found["consumer"], "TestAConsumerThatIsKilledLosesNothing")
	require.NotContains(t, found["consumer"], "TestEveryWayOfFailingFails")
	require.NotContains(t, found, "messagestore/sqlite")
}
