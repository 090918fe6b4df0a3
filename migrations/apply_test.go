package migrations_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

// run returns the output of a program. If the program is missing, the test is skipped.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	pgtest.Needs(t, cmd.Args[0])
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%v\n%s", cmd, out)
	return string(out)
}

// psql applies the printed script as a DBA would.
func psql(t *testing.T, url string, flags ...string) *exec.Cmd {
	t.Helper()
	pgtest.Needs(t, "psql")
	var script bytes.Buffer
	require.NoError(t, migrations.Print(&script, nil))
	cmd := exec.CommandContext(t.Context(), "psql", append(flags, "-X", "-q", "-d", url)...)
	cmd.Stdin = &script
	return cmd
}

var (
	// tables/0001_messages.sql, its hash, when it was applied, and its version and grants.
	appliedAt = regexp.MustCompile(`^([a-z_0-9/.]+\.sql\t[0-9a-f]{64})\t[^\t]*\t(.*)$`)
	// The epoch that was never raised, and its id.
	epoch = regexp.MustCompile(`^0\t[0-9a-f-]{36}\t\\N$`)
)

// dump returns all that is in the schemas, but for the times of the migrations and the id of
// the epoch.
func dump(t *testing.T, url string) string {
	t.Helper()
	text := pgDump(t, url, "--schema=dibs", "--schema=message_store")
	var lines, records []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.Contains(line, ".sql\t") && appliedAt.MatchString(line): // in the order in which they were changed
			records = append(records, appliedAt.ReplaceAllString(line, "$1\t$2"))
		case strings.HasPrefix(line, "0\t"):
			lines = append(lines, epoch.ReplaceAllString(line, "0"))
		default:
			lines = append(lines, line)
		}
	}
	require.NotEmpty(t, records)
	return strings.Join(append(lines, slices.Sorted(slices.Values(records))...), "\n")
}

// pgDump returns what pg_dump says. Newer versions of it put a random word around the part that
// psql is to trust.
func pgDump(t *testing.T, url string, flags ...string) string {
	t.Helper()
	pgtest.NeedsAsNewAsServer(t, "pg_dump")
	text := run(t, exec.CommandContext(t.Context(), "pg_dump", append(flags, "-d", url)...))
	return regexp.MustCompile(`(?m)^\\(un)?restrict .*\n`).ReplaceAllString(text, "")
}

// madeByUp is the dump of a database that [migrations.Up] has made.
var madeByUp = struct {
	sync.Mutex
	dump string
}{}

func dumpOfUp(t *testing.T) string {
	t.Helper()
	madeByUp.Lock()
	defer madeByUp.Unlock()
	if madeByUp.dump == "" {
		madeByUp.dump = dump(t, pgtest.Migrated(t))
	}
	return madeByUp.dump
}

// requireSame shows the first line that differs, and not all that there is.
func requireSame(t *testing.T, want, got string) {
	t.Helper()
	wanted, lines := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(wanted), len(lines)) {
		require.Equal(t, wanted[i], lines[i], "line %d", i+1)
	}
	require.Len(t, lines, len(wanted))
}

// Up, psql and goose make the same database.
func TestPsqlGooseAndUpMakeTheSameDatabase(t *testing.T) {
	t.Parallel()
	up := dumpOfUp(t)
	require.Contains(t, up, "CREATE FUNCTION message_store.write_message(")
	for name, apply := range map[string]func(t *testing.T, url string){
		"the printed script": func(t *testing.T, url string) {
			t.Helper()
			require.Empty(t, run(t, psql(t, url)), "no notice, no warning")
			require.Empty(t, run(t, psql(t, url)), "nor when it is run again")
		},
		"goose": func(t *testing.T, url string) {
			t.Helper()
			folder := t.TempDir()
			file := testkit.Do(os.Create(filepath.Join(folder, "00001_dibs.sql")))(t)
			require.NoError(t, migrations.PrintGoose(file, nil))
			require.NoError(t, file.Close())
			goose := func() *exec.Cmd {
				goose := exec.CommandContext(t.Context(), "go", "run", "./goose", url, folder)
				goose.Dir, goose.Env = filepath.Join("..", "tools"), append(os.Environ(), "GOWORK=off")
				return goose
			}
			run(t, goose())
			require.NoError(t, os.Rename(file.Name(), filepath.Join(folder, "00002_dibs_upgrade.sql")))
			run(t, exec.CommandContext(t.Context(), "psql", "-X", "-q", "-d", url, "-c", "delete from goose_db_version where version_id > 0"))
			run(t, goose())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)

			apply(t, url)

			requireSame(t, up, dump(t, url))
			conn := connect(t, url)
			status := testkit.Do(migrations.Status(t.Context(), conn, nil))(t)
			for _, m := range status {
				require.True(t, m.Applied && !m.Changed && !m.Unknown, m.Name)
			}
			require.Empty(t, drift(t, conn, nil).Differences)
			requireWorks(t, conn, "dibs")
		})
	}
}

// If a tool commits each statement separately, the script leaves nothing and does not go on.
func TestScriptThatIsNotInATransactionIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var script bytes.Buffer
	require.NoError(t, migrations.Print(&script, nil))
	before := pgDump(t, url)
	cmd := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-d", url)
	cmd.Stdin = strings.NewReader(regexp.MustCompile(`(?m)^(begin;|commit;|\\.*)\n`).ReplaceAllString(script.String(), ""))

	out, _ := cmd.CombinedOutput()

	require.Contains(t, string(out), "the migrations have to be applied in one transaction")
	requireSame(t, before, pgDump(t, url))
	run(t, psql(t, url))
	requireWorks(t, connect(t, url), "dibs")
}

// The script of an older release changes nothing in a database of a newer one.
func TestScriptOfAnOlderReleaseIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	testkit.Do(connect(t, url).Exec(t.Context(), "update dibs.migrations set version = version + 1, sha256 = md5('x') where name = 'functions/append.sql'"))(t)
	before := pgDump(t, url)

	out, err := psql(t, url).CombinedOutput()

	require.Error(t, err)
	require.Contains(t, string(out), "functions/append.sql is of a newer release, of version 10, and this is version 9")
	requireSame(t, before, pgDump(t, url))
}

// The session's settings dibs.lock_timeout and dibs.statement_timeout bound the script, and
// are no part of it.
func TestScriptIsBoundedInTime(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	tx := testkit.Do(connect(t, url).Begin(t.Context()))(t)
	testkit.Do(tx.Exec(t.Context(), "lock table dibs.migrations in access exclusive mode"))(t)
	for settings, says := range map[string]string{
		"-c dibs.statement_timeout=20ms": "canceling statement due to statement timeout",
		"-c dibs.lock_timeout=20ms":      "canceling statement due to lock timeout",
	} {
		waits := psql(t, url)
		waits.Env = append(waits.Environ(), "PGOPTIONS="+settings)
		out, err := waits.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), says)
	}
}

// message-db stays unchanged until it is adopted.
func TestMessageDBIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	for name, apply := range map[string]func(t *testing.T, url string){
		"up": func(t *testing.T, url string) {
			t.Helper()
			require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))
		},
		"the printed script": func(t *testing.T, url string) {
			t.Helper()
			require.Contains(t, run(t, psql(t, url)), "WARNING:  message_store is left out: message_store is message-db's own, until it is adopted\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.MessageDB(t)
			before := pgDump(t, url, "--schema=message_store")

			apply(t, url)

			requireSame(t, before, pgDump(t, url, "--schema=message_store"))
			conn := connect(t, url)
			requireWorks(t, conn, "dibs")
			status := testkit.Do(migrations.Status(t.Context(), conn, nil))(t)
			var left []migrations.Migration
			for _, m := range status {
				if !strings.HasPrefix(m.Name, "message_store/") {
					require.True(t, m.Applied, m.Name)
					continue
				}
				require.Equal(t, migrations.Migration{Name: m.Name, LeftOut: "message_store is message-db's own, until it is adopted"}, m)
				left = append(left, m)
			}
			require.Equal(t, compatible, left[0].Name)
			report := drift(t, conn, nil)
			require.Empty(t, report.Differences)
			require.Equal(t, left, report.NotApplied)
		})
	}
}

func printed(t *testing.T) string {
	t.Helper()
	var script bytes.Buffer
	require.NoError(t, migrations.Print(&script, nil))
	return script.String()
}
