package cli_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

func TestMigrateUpSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	dibs := &shell{env: map[string]string{"DATABASE_URL": pgtest.MessageDB(t)}}
	const why = "message_store is message-db's own, until it is adopted"

	require.Contains(t, dibs.ok(t, "migrate", "up"), "functions and views\nup to date\nmessage_store is left out: "+why+"\n")

	require.Regexp(t, `(?m)^message_store/tables/0001_message_store\.sql +left out +`+why+`\nmessage_store/functions/ \(\d+\) +left out +`+why+`$`, dibs.ok(t, "migrate", "status"))
	status := objects(t, dibs.ok(t, "migrate", "status", "--json"))
	require.Contains(t, status, map[string]any{"name": "message_store/tables/0001_message_store.sql", "state": "left out", "reason": why})
}

func TestMigrateUpSaysWhatItApplied(t *testing.T) {
	t.Parallel()
	dibs := &shell{env: map[string]string{"DATABASE_URL": pgtest.Database(t)}}

	require.Regexp(t, `^applied schema\.sql\napplied tables/0001_messages\.sql\n(applied .*\.sql\n)+applied \d+ functions and views\nup to date\n$`, dibs.ok(t, "migrate", "up"))
	require.Equal(t, "up to date\n", dibs.ok(t, "migrate", "up"))

	pool := pgtest.Connect(t, dibs.env["DATABASE_URL"])
	_, err := pool.Exec(t.Context(), "update dibs.migrations set sha256 = 'x' where name = 'functions/append.sql'; insert into dibs.migrations (name, sha256) values ('functions/no_more.sql', '')")
	require.NoError(t, err)
	status := dibs.ok(t, "migrate", "status")
	require.Regexp(t, `(?m)^functions/append\.sql +pending`, status)
	require.Regexp(t, `(?m)^functions/no_more\.sql +gone`, status)
	require.Equal(t, "applied functions/append.sql\ndropped what functions/no_more.sql made\nup to date\n", dibs.ok(t, "migrate", "up"))
}

// The SQL's own advice is printed.
func TestMigrateUpSaysWhatToDo(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	dibs := &shell{env: map[string]string{"DATABASE_URL": url}}
	pool := pgtest.Connect(t, url)
	_, err := pool.Exec(t.Context(), "create schema dibs; create table dibs.mine ()")
	require.NoError(t, err)
	refused := dibs.run(t, "migrate", "up")
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "the schema dibs is there already, and is not empty")
	require.Contains(t, refused.stderr, "\n      Find out which application it belongs to, and rename or drop it.\n")

	_, err = pool.Exec(t.Context(), "drop table dibs.mine")
	require.NoError(t, err)
	dibs.ok(t, "migrate", "up")
	_, err = pool.Exec(t.Context(), "update dibs.migrations set sha256 = 'x' where name = 'tables/0001_messages.sql'")
	require.NoError(t, err)
	refused = dibs.run(t, "migrate", "up")
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "tables/0001_messages.sql: changed after it was applied\n      nothing was done: ")

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), "lock table dibs.migrations in access exclusive mode")
	require.NoError(t, err)
	impatient := &shell{env: map[string]string{"DATABASE_URL": url + "&dibs.lock_timeout=20ms"}}
	refused = impatient.run(t, "migrate", "up")
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "55P03)\n      another transaction holds a lock that this needs; see the holder with: dibs doctor\n")
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestMigrateUpSaysWhichRolesAreMissing(t *testing.T) {
	t.Parallel()
	superuser := pgtest.Server(t)
	pool := pgtest.Connect(t, superuser)
	_, err := pool.Exec(t.Context(), "create role owner login")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), "create database app owner owner")
	require.NoError(t, err)
	config := pool.Config().ConnConfig
	dibs := &shell{env: map[string]string{"DATABASE_URL": "postgres://owner@/app?host=" + config.Host + "&port=5432"}}

	require.Contains(t, dibs.ok(t, "migrate", "up"), "up to date\nmissing on this server: dibs_admin, dibs_operator, dibs_reader, dibs_worker, dibs_writer, message_store; run the SQL of dibs migrate print --roles")
	for range 2 { // a role that is there stays as it is
		_, err = pool.Exec(t.Context(), dibs.ok(t, "migrate", "print", "--roles"))
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), "alter role message_store set lock_timeout = '3s'; drop role if exists dibs_worker")
		require.NoError(t, err)
	}
	_, err = pool.Exec(t.Context(), dibs.ok(t, "migrate", "print", "--roles"))
	require.NoError(t, err)
	var settings string
	require.NoError(t, pool.QueryRow(t.Context(), "select s.setconfig::text from pg_db_role_setting s where s.setrole = 'message_store'::regrole").Scan(&settings))
	require.Contains(t, settings, "lock_timeout=3s")
	require.Equal(t, "up to date\n", dibs.ok(t, "migrate", "up"))
}

func TestRolesCanBePrintedAlone(t *testing.T) {
	t.Parallel()
	dibs := &shell{}

	printed := dibs.ok(t, "migrate", "print", "--roles")

	for _, role := range []string{"dibs_owner", "dibs_writer", "dibs_reader", "dibs_worker", "dibs_operator", "dibs_admin", "message_store"} {
		require.Contains(t, printed, "create role "+role+" ")
	}
	require.NotContains(t, printed, "create table")
}

// The first table of docs/dba.md, as a DBA runs it.
func TestCommandsOfThePageForTheDBARun(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("testdata/docs/dba.md")
	require.NoError(t, err)
	_, table, is := strings.Cut(string(page), "| to do | command |\n|---|---|\n")
	require.True(t, is)
	table, _, _ = strings.Cut(table, "\n\n")
	dibs := &shell{env: map[string]string{"DATABASE_URL": pgtest.Migrated(t)}}
	for line := range strings.Lines(table) {
		_, command, _ := strings.Cut(line, "`dibs ")
		command, _, _ = strings.Cut(command, "`")
		command, _, _ = strings.Cut(command, " \\|")
		if command == "doctor" {
			continue // of the test's server, whose settings are unsafe
		}
		dibs.ok(t, strings.Fields(command)...)
	}
}
