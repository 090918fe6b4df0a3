package migrations_test

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

// managed is a server on which somebody else makes roles, and the public has nothing.
type managed struct {
	t         *testing.T
	superuser string
}

// A database's owner is not the server's. The tests share a server, since one takes long to start,
// and take turns on it, since roles are the server's.
func TestAServerMayBeSomebodyElses(t *testing.T) {
	t.Parallel()
	superuser := pgtest.Server(t)
	for name, test := range map[string]func(t *testing.T, m managed){
		"roles are made later":          rolesAreMadeLater,
		"roles are made before":         rolesAreMadeBefore,
		"CREATEROLE is all":             createroleIsAll,
		"the schema is made before":     schemaIsMadeBefore,
		"names need no care":            namesNeedNoCare("nocreaterole"),
		"names with roles need no care": namesNeedNoCare("createrole"),
	} {
		t.Run(name, func(t *testing.T) {
			m := managed{t, superuser}
			m.empty()
			m.exec(m.superuser, "create role dba login; create role service login; create role stranger login")
			test(t, m)
		})
	}
}

// empty drops everything that the previous test has made.
func (m managed) empty() {
	m.t.Helper()
	conn := connect(m.t, m.superuser)
	for _, names := range []string{
		"select format('drop database %I with (force)', datname) from pg_database where datname not in ('postgres', 'template0', 'template1')",
		"select format('drop role %I', rolname) from pg_roles where rolname <> 'postgres' and not starts_with(rolname, 'pg_')",
	} {
		rows, err := conn.Query(m.t.Context(), names)
		require.NoError(m.t, err)
		drops, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(m.t, err)
		for _, drop := range drops {
			m.exec(m.superuser, drop)
		}
	}
}

func (m managed) exec(url, sql string) {
	m.t.Helper()
	require.NoError(m.t, testkit.ErrorOf(connect(m.t, url).Exec(m.t.Context(), sql)), sql)
}

// as returns the URL of another user and database.
func (m managed) as(user, database string) string {
	m.t.Helper()
	config, err := pgx.ParseConfig(m.superuser)
	require.NoError(m.t, err)
	return "host=" + config.Host + " port=5432 user=" + user + " dbname=" + database
}

// database makes a database owned by dba, and returns its URL for dba.
func (m managed) database(name string) string {
	m.t.Helper()
	m.exec(m.superuser, "create database "+name+" owner dba")
	m.exec(m.superuser, "revoke all on database "+name+" from public; grant connect on database "+name+" to service, stranger")
	m.exec(m.as("postgres", name), "revoke all on schema public from public")
	return m.as("dba", name)
}

func (m managed) makeRoles() {
	m.t.Helper()
	var sql bytes.Buffer
	require.NoError(m.t, migrations.PrintRoles(&sql))
	m.exec(m.superuser, sql.String())
	m.exec(m.superuser, "alter role message_store set lock_timeout = '3s'")
	m.exec(m.superuser, sql.String()) // also where another database has them: they stay as they are
	require.Equal(m.t, []string{"lock_timeout=3s"}, one[[]string](m.t, connect(m.t, m.superuser),
		"select array(select s from unnest(rolconfig) s where starts_with(s, 'lock_timeout')) from pg_roles where rolname = 'message_store'"))
}

func (m managed) requireDenied(url string) {
	m.t.Helper()
	_, err := connect(m.t, url).Exec(m.t.Context(), "select dibs.stream_version('a-1')")
	refused, ok := errors.AsType[*pgconn.PgError](err)
	require.True(m.t, ok)
	require.Equal(m.t, "42501", refused.Code)
}

func (m managed) requireOwner(url, owner string) {
	m.t.Helper()
	const owners = `
		select array_agg(distinct pg_get_userbyid(owner)::text) from (
			select relowner, relnamespace from pg_class
			union select proowner, pronamespace from pg_proc
			union select nspowner, oid from pg_namespace
			union select typowner, typnamespace from pg_type) o (owner, namespace)
		where namespace in ('dibs'::regnamespace, 'message_store'::regnamespace)`
	require.Equal(m.t, []string{owner}, one[[]string](m.t, connect(m.t, url), owners))
}

// The owner of a database migrates without CREATEROLE, and the roles come later.
func rolesAreMadeLater(t *testing.T, m managed) {
	t.Helper()
	byUp, byPsql, byHand := m.database("by_up"), m.database("by_psql"), m.database("by_hand")
	missing := []string{"dibs_admin", "dibs_operator", "dibs_reader", "dibs_worker", "dibs_writer", "message_store"}
	for _, url := range []string{byUp, byHand} {
		require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))
		require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))
	}
	run(t, psql(t, byPsql))
	requireSame(t, dump(t, byUp), dump(t, byPsql))
	for _, url := range []string{byUp, byPsql, byHand} {
		requireWorks(t, connect(t, url), "dibs")
		m.requireOwner(url, "dba")
		report := drift(t, connect(t, url), nil)
		require.Empty(t, report.Differences)
		require.Equal(t, missing, report.AbsentRoles)
	}

	m.makeRoles()
	m.exec(m.superuser, "grant dibs_writer to service")
	m.requireDenied(m.as("service", "by_up"))

	require.NoError(t, migrations.Up(t.Context(), connect(t, byUp), nil))
	run(t, exec.CommandContext(t.Context(), "psql", "-X", "-q", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", "-c", "select dibs.grant_rights()", "-d", byPsql))
	m.exec(byHand, "select dibs.grant_rights()")

	for _, name := range []string{"by_up", "by_psql", "by_hand"} {
		report := drift(t, connect(t, m.as("dba", name)), nil)
		require.Empty(t, report.Differences)
		require.Empty(t, report.AbsentRoles)
		service := connect(t, m.as("service", name))
		require.Equal(t, "written", one[string](t, service, `select outcome from dibs.append('{account-2}', '{-1}', '{1}', array[gen_random_uuid()], '{Opened}', '{"{}"}', '{null}')`))
		m.requireDenied(m.as("stranger", name))
	}
}

func rolesAreMadeBefore(t *testing.T, m managed) {
	t.Helper()
	m.makeRoles()
	m.exec(m.superuser, "grant dibs_reader to service")

	owned := m.database("owned")
	require.NoError(t, migrations.Up(t.Context(), connect(t, owned), nil))
	m.requireOwner(owned, "dba")

	for name, attribute := range map[string]string{"inherits": "inherit", "does_not_inherit": "noinherit"} {
		m.exec(m.superuser, "grant dibs_owner to dba; alter role dba "+attribute)
		url := m.database(name)
		require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil), name)
		require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil), name)
		m.requireOwner(url, "dibs_owner")
	}
	for _, name := range []string{"owned", "inherits", "does_not_inherit"} {
		report := drift(t, connect(t, m.as("stranger", name)), nil)
		require.Empty(t, report.Differences, name)
		require.Empty(t, report.AbsentRoles, name)
		require.EqualValues(t, -1, one[int64](t, connect(t, m.as("service", name)), "select dibs.stream_version('a-1')"))
		m.requireDenied(m.as("stranger", name))
	}
}

// CREATEROLE is all that the roles take.
func createroleIsAll(t *testing.T, m managed) {
	t.Helper()
	m.exec(m.superuser, "alter role dba createrole")
	url := m.database("app")

	require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))

	m.requireOwner(url, "dibs_owner")
	report := drift(t, connect(t, url), nil)
	require.Empty(t, report.Differences)
	require.Empty(t, report.AbsentRoles)
	require.Equal(t, []string{"message_store"}, one[[]string](t, connect(t, url), "select array_agg(rolname::text) from pg_roles where rolname ~ '^(dibs_|message_store)' and rolcanlogin"))
	require.False(t, one[bool](t, connect(t, url), "select bool_or(rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls) from pg_roles where rolname ~ '^(dibs_|message_store)'"))
}

// The owner of a database may make the schema beforehand, for the user that the store is to
// belong to.
func schemaIsMadeBefore(t *testing.T, m managed) {
	t.Helper()
	m.exec(m.superuser, "create role owner login")
	for name, test := range map[string]struct{ made, user, owner string }{
		"for_who_migrates":   {"create schema dibs authorization owner; create schema message_store authorization owner", "owner", "owner"},
		"for_the_roles":      {"create schema dibs authorization dibs_owner; create schema message_store authorization dibs_owner", "postgres", "dibs_owner"},
		"to_create_in_alone": {"create schema dibs; grant all on schema dibs to owner; create schema message_store; grant all on schema message_store to owner", "owner", "owner"},
	} {
		m.exec(m.superuser, "create database "+name)
		if name == "for_the_roles" {
			m.makeRoles()
		}
		m.exec(m.as("postgres", name), test.made)
		url := m.as(test.user, name)
		conn := connect(t, url)
		require.NoError(t, migrations.Up(t.Context(), conn, nil), name)
		require.NoError(t, migrations.Up(t.Context(), conn, nil), name)
		requireWorks(t, conn, "dibs")
		require.Equal(t, test.owner, one[string](t, conn, "select pg_get_userbyid(relowner)::text from pg_class where oid = 'dibs.messages'::regclass"), name)
	}
}

// Names are always quoted in SQL.
func namesNeedNoCare(attribute string) func(t *testing.T, m managed) {
	return func(t *testing.T, m managed) {
		t.Helper()
		m.exec(m.superuser, `create role "DBA's ""own""" login `+attribute)
		var want string
		for i, database := range []string{"plain", `The "bank's" données; --`} {
			m.exec(m.superuser, "create database "+pgx.Identifier{database}.Sanitize()+` owner "DBA's ""own"""`)
			url := m.as(`'DBA\'s "own"'`, "'"+strings.ReplaceAll(database, "'", `\'`)+"'")
			run(t, psql(t, url))
			conn := connect(t, url)
			require.NoError(t, migrations.Up(t.Context(), conn, nil))
			require.Empty(t, drift(t, conn, nil).Differences)
			got := dump(t, url)
			if i == 0 {
				want = got
				continue
			}
			requireSame(t, want, got)
			require.NoError(t, migrations.Up(t.Context(), conn, &migrations.Config{Schema: "other"}))
			requireWorks(t, conn, "other")
		}
	}
}
