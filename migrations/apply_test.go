package migrations_test

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/messagedbtest"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/migrations"
)

// run returns what a program printed. A test whose program is not there, or does not know a
// server that new, is skipped.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	pgtest.Needs(t, cmd.Args[0])
	if cmd.Args[0] == "pg_dump" {
		pgtest.NeedsAsNewAsServer(t, "pg_dump")
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%v\n%s", cmd, out)
	return string(out)
}

// psqlWith runs a file as a DBA would.
func psqlWith(ctx context.Context, url, name string, flags ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "psql", append(append([]string{"-X", "-q", "-o", "/dev/null"}, flags...), "-f", filepath.Join("sql", name), "-d", url)...)
}

func psql(ctx context.Context, url, name string) *exec.Cmd {
	return psqlWith(ctx, url, name, "-1", "-v", "ON_ERROR_STOP=1")
}

var (
	// Newer versions of pg_dump put a random word around what psql is to trust.
	random = regexp.MustCompile(`(?m)^\\(un)?restrict .*\n`)
	// 0001_schema.sql, its hash, and when it was applied.
	appliedAt = regexp.MustCompile(`(?m)^([0-9]{4}_[a-z_]+\.sql\t[0-9a-f]{64})\t.*$`)
	// The epoch that was never raised, and its id.
	epoch = regexp.MustCompile(`(?m)^0\t[0-9a-f-]{36}\t\\N$`)
)

// dump returns all that is in the schemas, but for the times of the migrations and the id of
// the epoch.
func dump(t *testing.T, url string) string {
	t.Helper()
	text := run(t, exec.CommandContext(t.Context(), "pg_dump", "--schema=dibs", "--schema=message_store", "-d", url))
	require.Regexp(t, appliedAt, text)
	text = epoch.ReplaceAllString(text, "0")
	return appliedAt.ReplaceAllString(random.ReplaceAllString(text, ""), "$1")
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

// Whatever a DBA applies the files with, the database is the same.
func TestPsqlGooseAndUpMakeTheSameDatabase(t *testing.T) {
	t.Parallel()
	byUp := pgtest.Database(t)
	require.NoError(t, migrations.Up(t.Context(), connect(t, byUp), nil))
	up := dump(t, byUp)
	require.Contains(t, up, "CREATE FUNCTION message_store.write_message(")
	for name, apply := range map[string]func(t *testing.T, url string){
		"psql": func(t *testing.T, url string) {
			t.Helper()
			for _, f := range migrations.Files() {
				require.Empty(t, run(t, psql(t.Context(), url, f.Name)), "no notice, no warning")
			}
		},
		"goose": func(t *testing.T, url string) {
			t.Helper()
			folder, err := filepath.Abs("sql")
			require.NoError(t, err)
			goose := exec.CommandContext(t.Context(), "go", "run", "./goose", url, folder)
			goose.Dir = filepath.Join("..", "tools")
			run(t, goose)
		},
		"the printed script": func(t *testing.T, url string) {
			t.Helper()
			var script bytes.Buffer
			require.NoError(t, migrations.Print(&script, nil))
			psql := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-o", "/dev/null", "-d", url)
			psql.Stdin = &script
			require.Empty(t, run(t, psql))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)

			apply(t, url)

			requireSame(t, up, dump(t, url))
			conn := connect(t, url)
			status, err := migrations.Status(t.Context(), conn, nil)
			require.NoError(t, err)
			for _, m := range status {
				require.True(t, m.Applied && !m.Changed && !m.Unknown, m.Name)
			}
			require.Empty(t, drift(t, conn, nil).Differences)
			require.NoError(t, migrations.Up(t.Context(), conn, nil))
			requireSame(t, up, dump(t, url))
			requireWorks(t, conn, "dibs")
		})
	}
}

// Without -1, psql commits each statement, and without ON_ERROR_STOP it goes on
// after one that failed.
func TestFileThatIsNotInATransactionIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for _, f := range migrations.Files() {
		before := everything(t, url)

		out, _ := psqlWith(t.Context(), url, f.Name).CombinedOutput()

		require.Contains(t, string(out), f.Name+" has to be applied in one transaction", f.Name)
		require.Contains(t, string(out), "psql -X -1 -v ON_ERROR_STOP=1 -f "+f.Name, f.Name)
		requireSame(t, before, everything(t, url))
		run(t, psql(t.Context(), url, f.Name))
	}
	requireWorks(t, connect(t, url), "dibs")
}

func TestFileThatComesTwiceOrTooEarlyIsRefused(t *testing.T) {
	t.Parallel()
	pgtest.Needs(t, "psql")
	url := pgtest.Database(t)
	files := migrations.Files()
	refuse := func(f migrations.File, why string) {
		t.Helper()
		out, err := psql(t.Context(), url, f.Name).CombinedOutput()
		require.Error(t, err, f.Name)
		require.Contains(t, string(out), why, f.Name)
	}
	for i, f := range files {
		if i == 0 {
			refuse(files[1], `schema "dibs" does not exist`)
		} else if i+1 < len(files) {
			refuse(files[i+1], files[i+1].Name+" comes after ")
		}
		run(t, psql(t.Context(), url, f.Name))
		refuse(f, f.Name+" is applied already")
		refuse(files[0], files[0].Name+" is applied already")
	}
	byUp := pgtest.Database(t)
	require.NoError(t, migrations.Up(t.Context(), connect(t, byUp), nil))
	requireSame(t, dump(t, byUp), dump(t, url))
}

// everything is what is there at all.
func everything(t *testing.T, url string) string {
	t.Helper()
	return random.ReplaceAllString(run(t, exec.CommandContext(t.Context(), "pg_dump", "-d", url)), "")
}

// Who wants other bounds sets them for the session, and no file has to be edited.
func TestFilesAreBoundedInTime(t *testing.T) {
	t.Parallel()
	pgtest.Needs(t, "psql")
	url := pgtest.Database(t)
	files := migrations.Files()
	for i, f := range files {
		if i > 0 {
			holder := connect(t, url)
			tx, err := holder.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), "lock table dibs.migrations in access exclusive mode")
			require.NoError(t, err)
			waits := psql(t.Context(), url, f.Name)
			waits.Env = append(waits.Environ(), "PGOPTIONS=-c dibs.lock_timeout=20ms")
			out, err := waits.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "canceling statement due to lock timeout", f.Name)
			require.NoError(t, tx.Rollback(t.Context()))
		}

		long := psql(t.Context(), url, f.Name)
		long.Env = append(long.Environ(), "PGOPTIONS=-c dibs.statement_timeout=1ms")
		out, err := long.CombinedOutput()
		require.Error(t, err)
		// A timeout that fires just as a statement ends is told as a request.
		require.Regexp(t, "canceling statement due to (statement timeout|user request)", string(out), f.Name)

		conn := connect(t, url)
		err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), f.SQL); err != nil {
				return err
			}
			require.Equal(t, "10s", one[string](t, conn, "select current_setting('lock_timeout')"), f.Name)
			require.Equal(t, "5min", one[string](t, conn, "select current_setting('statement_timeout')"), f.Name)
			return nil
		})
		require.NoError(t, err, f.Name)
		require.Equal(t, "0", one[string](t, conn, "select current_setting('lock_timeout')"), "not the session's")
	}
}

// message-db is left as it is, until it is adopted.
func TestMessageDBIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	for name, apply := range map[string]func(t *testing.T, url string){
		"up": func(t *testing.T, url string) {
			t.Helper()
			require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))
		},
		"the printed script": func(t *testing.T, url string) {
			t.Helper()
			var script bytes.Buffer
			require.NoError(t, migrations.Print(&script, nil))
			psql := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-o", "/dev/null", "-d", url)
			psql.Stdin = &script
			require.Equal(t, "0009_message_store.sql is left out: message_store is message-db's own, until it is adopted\n", run(t, psql))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := messagedbtest.Database(t)
			before := run(t, exec.CommandContext(t.Context(), "pg_dump", "--schema=message_store", "-d", url))

			apply(t, url)

			after := run(t, exec.CommandContext(t.Context(), "pg_dump", "--schema=message_store", "-d", url))
			requireSame(t, random.ReplaceAllString(before, ""), random.ReplaceAllString(after, ""))
			conn := connect(t, url)
			requireWorks(t, conn, "dibs")
			status, err := migrations.Status(t.Context(), conn, nil)
			require.NoError(t, err)
			for _, m := range status {
				if m.Name != compatible {
					require.True(t, m.Applied, m.Name)
					continue
				}
				require.Equal(t, migrations.Migration{Name: compatible, LeftOut: migrations.MessageDBIsThere}, m)
			}
			report := drift(t, conn, nil)
			require.Empty(t, report.Differences)
			require.Equal(t, []migrations.Migration{{Name: compatible, LeftOut: migrations.MessageDBIsThere}}, report.NotApplied)
			out, err := psql(t.Context(), url, compatible).CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "the schema message_store is message-db's own")
		})
	}
}
