package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

func execute(t *testing.T, where string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), where)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	for _, statement := range statements {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

func TestDoctorFindsWhatWasNotMigratedOrWasChangedByHand(t *testing.T) {
	t.Parallel()
	where := pgtest.Database(t)
	dibs := &shell{env: map[string]string{"DATABASE_URL": where}}

	before := dibs.run(t, "doctor")
	require.Equal(t, 1, before.code)
	require.Regexp(t, `(?m)^  fail    0 of \d+ files are applied\n          run dibs migrate up$`, before.stdout)
	require.Regexp(t, `(?m)^access\n  fail    a service with this URL cannot write messages: .*\n          its readiness probe, `, before.stdout)
	require.Equal(t, "dibs: 2 findings fail\n", before.stderr)

	dibs.ok(t, "migrate", "up")
	healthy := dibs.ok(t, "doctor")
	for _, text := range []string{
		"schema\n", "files are applied\n", "ok      objects and rights are as the migrations made them\n",
		"server\n", "settings\n", "roles\n", "locks\n", "sessions\n", "storage\n",
		"access\n", "ok      a service with this URL can read and write messages\n",
	} {
		require.Contains(t, healthy, text)
	}
	require.NotContains(t, healthy, "fail")
	quiet := dibs.ok(t, "doctor", "--quiet")
	require.NotContains(t, quiet, "  ok  ")
	require.Contains(t, quiet, "  warn    fsync is off, and dibs.allow_unsafe_settings allows it\n", "of the throwaway server")
	for _, line := range objects(t, dibs.ok(t, "doctor", "--json")) {
		require.Contains(t, []string{"ok", "warn"}, line["verdict"], line)
		require.NotEmpty(t, line["says"])
	}

	execute(t, where, "revoke execute on function dibs.find_messages from dibs_writer", "grant execute on function dibs.lock_category to dibs_reader")
	rights := dibs.run(t, "doctor", "--quiet")
	require.Equal(t, "dibs: 2 findings fail\n", rights.stderr)
	require.Contains(t, rights.stdout, "lacks: grant execute to dibs_writer\n          it was revoked by hand: dibs migrate up grants it again\n")
	require.Contains(t, rights.stdout, "has: grant execute to dibs_reader\n          it was granted by hand: revoke it\n")
	dibs.ok(t, "migrate", "up")
	execute(t, where, "revoke execute on function dibs.lock_category from dibs_reader")
	dibs.ok(t, "doctor")

	execute(t, where, "alter function dibs.stream_version(text) set search_path = public", "revoke execute on function dibs.stream_version from dibs_reader",
		"update dibs.migrations set sha256 = 'x' where name = 'functions/stream_version.sql'")
	older := dibs.run(t, "doctor", "--quiet")
	require.Contains(t, older.stdout, "lacks: set search_path=pg_catalog, pg_temp; has: set search_path=public\n          files are not applied: dibs migrate up, and look again\n")
	require.NotContains(t, older.stdout, "by hand", "where a release is not applied yet")
	dibs.ok(t, "migrate", "up")
	dibs.ok(t, "doctor")

	said := func(stdout, text string) bool {
		for line := range strings.Lines(stdout) {
			if strings.HasPrefix(line, "  fail ") && strings.Contains(line, text) {
				return true
			}
		}
		return false
	}
	damages := []struct{ damage, said string }{
		{"drop function dibs.stream_version(text)", "function dibs.stream_version(stream text): is not there"},
		{"alter function dibs.last_message(text, text) set search_path = public", "has: set search_path=public"},
		{"grant select on dibs.messages to public", "has: grant select to public"},
		{"grant execute on function dibs.schema_version() to public", "function dibs.schema_version(OUT version integer, OUT serves integer): has: grant execute to public"},
		{"alter table dibs.messages disable trigger messages_append_only", "messages_append_only"},
		{"alter table dibs.messages drop constraint messages_id", "messages_id"},
		{"update dibs.migrations set sha256 = '' where name = 'tables/0002_fences.sql'", "tables/0002_fences.sql is not the file that was applied under its name"},
		{"delete from dibs.migrations where name = 'tables/0003_epochs.sql'", "files are applied, and not tables/0003_epochs.sql"},
		{"insert into dibs.migrations (name, sha256) values ('9999_new.sql', '')", "9999_new.sql was applied by a newer release"},
	}
	for _, c := range damages {
		execute(t, where, c.damage)
	}
	damaged := dibs.run(t, "doctor", "--quiet")
	require.Equal(t, 1, damaged.code)
	for _, c := range damages {
		require.True(t, said(damaged.stdout, c.said), "%s: %s", c.damage, damaged.stdout)
	}
	execute(t, where, "update dibs.migrations set sha256 = 'x' where name = 'functions/append.sql'")
	require.True(t, said(dibs.run(t, "doctor", "--quiet").stdout, "files are applied, and not tables/0003_epochs.sql, functions/append.sql"))
}

// Otherwise it would wait for the session it has to find.
func TestDoctorDoesNotWaitForTheTableOfMigrations(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	dibs := &shell{env: map[string]string{"DATABASE_URL": where}}
	holder, err := pgx.Connect(t.Context(), where)
	require.NoError(t, err)
	defer holder.Close(contextOf(t))
	_, err = holder.Exec(t.Context(), "begin; lock table dibs.migrations in access exclusive mode")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()

	r := dibs.runContext(ctx, "doctor", "--quiet", "--long-lock", "1ns")

	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "the applied migrations cannot be read")
	require.Contains(t, r.stdout, "migrations is held by process ")
}

func TestServerThatDriversRefuseIsSaidSo(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	dibs := &shell{env: map[string]string{"DATABASE_URL": where}}
	u, err := url.Parse(where)
	require.NoError(t, err)
	query := u.Query()
	query.Set("client_encoding", "LATIN1")
	u.RawQuery = query.Encode()

	refused := dibs.run(t, "report", "streams", "--store", u.String(), "--json")
	require.Equal(t, 1, refused.code)
	require.Equal(t, "unsafeSettings", objects(t, refused.stderr)[0]["kind"])
	require.Contains(t, refused.stderr, "client_encoding is LATIN1 and has to be UTF8")
	require.Contains(t, refused.stderr, "dibs doctor")

	execute(t, where, "create or replace function dibs.schema_version(out version integer, out serves integer) language sql as 'select 2000, 1500'")
	refused = dibs.run(t, "report", "streams", "--json")
	require.Equal(t, 1, refused.code)
	require.Equal(t, "schemaTooNew", objects(t, refused.stderr)[0]["kind"])
}

// pg_dump leaves out the rights to the types of tables' rows.
func TestDoctorTellsOfARestoredDumpWhatIsToBeDone(t *testing.T) {
	t.Parallel()
	pgtest.Needs(t, "psql")
	pgtest.NeedsAsNewAsServer(t, "pg_dump")
	from, to := pgtest.Migrated(t), pgtest.Database(t)
	dump, err := exec.CommandContext(t.Context(), "pg_dump", "-d", from).Output()
	require.NoError(t, err)
	restore := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", to)
	restore.Stdin = bytes.NewReader(dump)
	output, err := restore.CombinedOutput()
	require.NoError(t, err, "%s", output)
	dibs := &shell{env: map[string]string{"DATABASE_URL": to}}

	restored := dibs.ok(t, "doctor", "--quiet")
	require.Contains(t, restored, "  warn    table dibs.messages: has: grant usage of its type to public\n          a dump does not hold this right, so it comes back when one is restored: dibs migrate up revokes it\n")
	require.NotContains(t, restored, "fail")
	require.Equal(t, 0, dibs.run(t, "verify").code)

	dibs.ok(t, "migrate", "up")
	require.NotContains(t, dibs.ok(t, "doctor", "--quiet"), "schema\n")
}

func TestDoctorWorksForWhoMayOnlyConnect(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	stranger := asUser(t, where)
	dibs := &shell{env: map[string]string{"DATABASE_URL": stranger}}

	r := dibs.run(t, "doctor")

	require.Equal(t, 0, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout, "  hidden  ")
	require.NotContains(t, r.stdout, "fail")
	denied := dibs.run(t, "verify")
	require.Equal(t, 1, denied.code)
	require.Contains(t, denied.stderr, "dibs_admin")
}

func TestDoctorTellsWhetherAServiceCouldStart(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	theirs := asUser(t, where)
	u, err := url.Parse(theirs)
	require.NoError(t, err)
	says := func(store string) (verdict, text string) {
		t.Helper()
		for _, finding := range objects(t, (&shell{}).run(t, "doctor", "--json", "--store", store).stdout) {
			if finding["group"] == "access" {
				return fmt.Sprint(finding["verdict"]), fmt.Sprint(finding["says"])
			}
		}
		return "", ""
	}
	expect := func(store, verdict, text string) {
		t.Helper()
		gotVerdict, gotText := says(store)
		require.Equal(t, verdict, gotVerdict, gotText)
		require.Contains(t, gotText, text)
	}

	expect(theirs, "hidden", "this user may neither read nor write messages")
	execute(t, where, "grant dibs_reader to "+u.User.Username())
	expect(theirs, "ok", "a service with this URL can read messages, and may not write them")
	execute(t, where, "grant dibs_writer to "+u.User.Username())
	expect(theirs, "ok", "a service with this URL can read and write messages")
	query := u.Query()
	query.Set("client_encoding", "LATIN1")
	u.RawQuery = query.Encode()
	expect(u.String(), "fail", "client_encoding is LATIN1")
	query.Set("client_encoding", "UTF8")
	query.Set("schema", "other")
	u.RawQuery = query.Encode()
	expect(u.String(), "fail", "a service with this URL cannot write messages")
}

func TestDoctorAndVerifyAreForDatabases(t *testing.T) {
	t.Parallel()
	s := &shell{env: map[string]string{"DIBS_STORE": "memory:"}}
	for _, args := range [][]string{{"doctor"}, {"verify"}, {"trim", "account-1", "--keep", "1"}, {"delete", "account-1", "--yes"}} {
		r := s.run(t, args...)
		require.Equal(t, 2, r.code)
		require.Contains(t, r.stderr, "dibs: "+args[0]+" needs a store in PostgreSQL or SQLite, and the store of $DIBS_STORE is another")
	}
}

func TestVerifySaysWhatItLookedAtAndWhatIsWrong(t *testing.T) {
	t.Parallel()
	where := pgtest.Database(t)
	dibs := &shell{env: map[string]string{"DATABASE_URL": where}}
	require.Contains(t, dibs.run(t, "verify").stderr, "run dibs migrate up")
	dibs.ok(t, "migrate", "up")
	for range 3 {
		dibs.ok(t, "write", "account-1", "Deposited")
	}
	dibs.ok(t, "write", "wallet-1", "Opened")

	require.Equal(t, `looked at 2 categories, 2 streams, 4 messages, 0 consumers, 0 positions of theirs, 0 reservations, 0 queues, 0 sagas, 0 erased streams
not looked at: the indexes' inner order: that takes amcheck
not looked at: what was removed by hand from the end of a stream, or all of one: what is left looks whole
not looked at: in what order transactions were committed: it cannot be seen afterwards
not looked at: effects that should have been written once under one id, and were written under two
no violation
`, dibs.ok(t, "verify"))
	require.Contains(t, dibs.ok(t, "verify", "wallet"), "looked at 1 category, 1 stream, 1 message, ")
	progress := dibs.run(t, "verify", "--progress")
	require.Equal(t, 0, progress.code)
	require.Contains(t, progress.stderr, "verify: the table, of about ")
	require.Contains(t, progress.stderr, "verify: wallet, 87% done, about 0s to go\n")
	require.Contains(t, dibs.run(t, "verify", "--amcheck").stderr, "amcheck is not installed")
	execute(t, where, "create extension amcheck")
	require.NotContains(t, dibs.ok(t, "verify", "--amcheck"), "amcheck")
	require.Equal(t, noCategory("acount"), dibs.run(t, "verify", "wallet", "acount"))

	execute(t, where, "set session_replication_role = replica", "delete from dibs.messages where stream_name = 'account-1' and position = 1")
	r := dibs.run(t, "verify")
	require.Equal(t, 1, r.code)
	require.True(t, strings.HasPrefix(r.stdout, "dense  3  account-1@2  expected position 1, found position 2\nlooked at 2 categories, "), r.stdout)
	require.NotContains(t, r.stdout, "no violation")
	require.Equal(t, "dibs: 1 violation\n", r.stderr)
	require.Equal(t, 0, dibs.run(t, "verify", "wallet").code)

	asJSON := dibs.run(t, "verify", "--json")
	lines := objects(t, asJSON.stdout)
	require.Len(t, lines, 2)
	require.Equal(t, map[string]any{
		"violation": "dense", "category": "account", "stream": "account-1", "position": 2.0, "globalPosition": 3.0,
		"expected": "position 1", "found": "position 2",
	}, lines[0])
	require.EqualValues(t, 3, field(t, lines[1], "checked")["messages"])
	require.EqualValues(t, 1, lines[1]["violations"])
	execute(t, where, "set session_replication_role = replica", "delete from dibs.messages where stream_name = 'account-1' and position = 0",
		"insert into dibs.messages (category, group_hash, stream_name, position, type, id) values ('account', 0, 'account-1', 9, 'T', gen_random_uuid())")
	more := dibs.run(t, "verify", "--max-violations", "1")
	require.Contains(t, more.stderr, "violations, and more that are not listed")
}

// asUser returns the URL for a user with the right to connect and no other.
func asUser(t *testing.T, where string) string {
	t.Helper()
	config, err := pgx.ParseConfig(where)
	require.NoError(t, err)
	user := "test_only_" + strings.TrimPrefix(config.Database, "test_")[:20]
	execute(t, where, "create role "+user+" login password 'x'")
	t.Cleanup(func() {
		conn, err := pgx.Connect(contextOf(t), where)
		require.NoError(t, err)
		defer conn.Close(contextOf(t))
		_, err = conn.Exec(contextOf(t), "drop role "+user)
		require.NoError(t, err)
	})
	return withUser(t, where, user, "x")
}

func withUser(t *testing.T, where, user, password string) string {
	t.Helper()
	u, err := url.Parse(where)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func contextOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
