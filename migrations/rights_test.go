package migrations_test

import (
	"context"
	"crypto/rand"
	_ "embed"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

var (
	//go:embed testdata/rights.sql
	readRights string

	// The rights of each role to each object: the whole matrix. It is written by hand. Columns
	// that have no rights of their own are not in it.
	//
	//go:embed testdata/rights.txt
	wantedRights string
)

// allRoles are the clients' roles, in the order of testdata/rights.txt.
var allRoles = []string{"dibs_reader", "dibs_writer", "dibs_worker", "dibs_operator", "dibs_admin", "message_store"}

func parseRights(t *testing.T, text string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		object, rights, ok := strings.Cut(line, ": ")
		require.True(t, ok, line)
		require.NotContains(t, all, object)
		all[object] = rights
	}
	return all
}

func rightsIn(t *testing.T, conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, roles ...string,
) map[string]string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), readRights, roles)
	lines := testkit.Do(pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Object, Rights string }]))(t)
	all := map[string]string{}
	for _, l := range lines {
		require.NotContains(t, all, l.Object, "one function to a name")
		if !strings.HasPrefix(l.Object, "column ") || l.Rights != "nobody" {
			all[l.Object] = l.Rights
		}
	}
	return all
}

// A new object has a line in testdata/rights.txt with the rights to it.
func TestRightsAreTheseAndNoOther(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	stranger := "test_" + strings.ToLower(rand.Text())
	testkit.Do(conn.Exec(t.Context(), "create role "+stranger+" login"))(t)
	t.Cleanup(func() {
		testkit.Do(conn.Exec(context.WithoutCancel(t.Context()), "drop role "+stranger))(t)
	})
	roles := append(slices.Clone(allRoles), stranger)

	wanted, is := parseRights(t, wantedRights), rightsIn(t, conn, roles...)

	require.ElementsMatch(t, slices.Collect(maps.Keys(wanted)), slices.Collect(maps.Keys(is)), "objects with a line in testdata/rights.txt, and objects that there are")
	for object, rights := range is {
		require.Equal(t, wanted[object], rights, object)
	}
	for object, rights := range wanted {
		require.NotContains(t, rights, stranger)
		if strings.Contains(rights, "public ") {
			require.Contains(t, object, "type message_store.", "the public has nothing but the types that it has in message-db")
		}
	}
}

// A mistake in a grant is seen: by the matrix, for every kind of object.
func TestGrantThatIsNotInTheMatrixIsSeen(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	wanted := parseRights(t, wantedRights)
	roles := allRoles
	require.Equal(t, wanted, rightsIn(t, conn, roles...))
	for _, change := range []string{
		"grant select on dibs.messages to dibs_reader", "grant insert (type) on dibs.messages to dibs_writer",
		"grant usage on sequence dibs.messages_global_position_seq to message_store", "grant create on schema dibs to dibs_admin",
		"grant usage on schema dibs to public", "grant execute on function dibs.trim to dibs_writer", "grant execute on function dibs.append to public",
		"grant usage on type dibs.messages to public", "grant update on message_store.messages to message_store",
		"revoke execute on function dibs.append from dibs_writer", "create view dibs.mine as select 1", "create function dibs.mine() returns int language sql as 'select 1'",
		"grant dibs_writer to dibs_reader", "grant dibs_owner to dibs_admin", "grant execute on function dibs.trim to dibs_admin with grant option",
		"grant select on message_store.messages to message_store with grant option", "grant select (type) on message_store.messages to message_store with grant option",
		"create operator dibs.=== (leftarg = text, rightarg = text, function = texteq)", "create statistics dibs.mine on type, category from dibs.messages", "create collation dibs.mine from \"C\"",
		"alter default privileges in schema dibs grant select on tables to public; create table dibs.mine ()",
	} {
		tx := testkit.Do(conn.Begin(t.Context()))(t)
		require.NoError(t, testkit.ErrorOf(tx.Exec(t.Context(), change)), change)
		require.NotEqual(t, wanted, rightsIn(t, tx, roles...), change)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// A function that runs with the owner's rights looks every name up in schemas that the caller
// cannot create in, and the owner cannot log in, and is no superuser.
func TestDefinersResolveNamesThemselves(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	const definers = `
		select p.oid::regprocedure::text, pg_get_userbyid(p.proowner)::text,
			coalesce((select substr(c, 13) from unnest(p.proconfig) c where starts_with(c, 'search_path=')), '')
		from pg_proc p
		where p.pronamespace in ('dibs'::regnamespace, 'message_store'::regnamespace) and p.prosecdef`
	rows, _ := conn.Query(t.Context(), definers)
	found := testkit.Do(pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Function, Owner, Path string }]))(t)
	require.Greater(t, len(found), 10)
	for _, f := range found {
		require.Equal(t, "dibs_owner", f.Owner, f.Function)
		require.Equal(t, "pg_catalog, pg_temp", f.Path, f.Function)
	}
	require.False(t, one[bool](t, conn, "select rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls from pg_roles where rolname = 'dibs_owner'"))
	require.Zero(t, one[int](t, conn, `
		select count(*) from pg_proc p
		where p.pronamespace in ('dibs'::regnamespace, 'message_store'::regnamespace) and p.proleakproof`))
}

// A function that a role may call takes any argument: it answers, or names the parameter. A
// call without a stream, a message or a category finds nothing, or everything.
func TestNullsAndHugeArraysAreRefused(t *testing.T) {
	t.Parallel()
	url, superuser := migrated(t)
	conn, user := connectAs(t, url, "in role "+strings.Join(allRoles, ", "))
	const calls = `
		select p.proname::text, n.nspname = 'dibs', format('select count(*) from %s.%I(%s)', n.nspname, p.proname,
			(select string_agg('null::' || format_type(a.type, null), ', ' order by a.n) from unnest(p.proargtypes::oid[]) with ordinality a (type, n)))
		from pg_proc p join pg_namespace n on n.oid = p.pronamespace
		where n.nspname in ('dibs', 'message_store') and has_function_privilege($1::text, p.oid, 'execute')`
	rows, _ := superuser.Query(t.Context(), calls, user)
	all := testkit.Do(pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		Name string
		Ours bool
		SQL  string
	}]))(t)
	require.Greater(t, len(all), 25)
	var answered []string
	for _, call := range all {
		_, err := conn.Exec(t.Context(), call.SQL)
		switch {
		case err == nil && call.Ours:
			answered = append(answered, call.Name)
		case err == nil:
		case call.Name == "write_message":
			require.Equal(t, "23502", code(t, err), "as in message-db")
		case !call.Ours:
			require.Equal(t, "P0001", code(t, err), call.SQL)
		default:
			require.Equal(t, "DB001", code(t, err), call.SQL)
		}
	}
	require.ElementsMatch(t, []string{
		"epoch", "listen", "schema_version", // which take nothing
		"stream_version", "last_message", "heads", "categories", "queue_states", "queue_item", "queue_ready", "verify_table", "verify_store", "verify_category", "verify_queues",
		"raise_epoch", // which then takes an id of its own
	}, answered)
	const many = "array_fill(gen_random_uuid(), '{1000001}')"
	for _, call := range []string{
		"select dibs.find_messages('a-1', " + many + ")", "select dibs.find_messages('a-1', array_fill(gen_random_uuid(), '{1001}'))",
		"select dibs.read_category('a', types => array_fill('T'::text, '{1001}'))", "select dibs.count_category('a', types => array_fill('T'::text, '{1001}'))",
		"select dibs.heads(array_fill('a'::text, '{1001}'))", "select dibs.heads(array_fill(null::text, '{1001}'))",
		"select dibs.append('{a-1}', '{-2}', '{1}', " + many + ", '{T}', '{\"{}\"}', '{null}')",
		"select dibs.append(array_fill('a-1'::text, '{1000001}'), '{-2}', '{1}', array[gen_random_uuid()], '{T}', '{\"{}\"}', '{null}')",
		"select dibs.append('{a-1}', '{-2}', '{1000001}', array[gen_random_uuid()], array_fill('T'::text, '{1000001}'), '{\"{}\"}', '{null}')",
	} {
		_, err := conn.Exec(t.Context(), call)
		require.Equal(t, "DB001", code(t, err), call)
	}
	require.Zero(t, one[int](t, superuser, "select count(*) from dibs.fences"))
}

// An admin raises the epoch with any id except its current id.
func TestEpochIsRaisedOnceByAnyID(t *testing.T) {
	t.Parallel()
	url, superuser := migrated(t)
	raised := func() string { return one[string](t, superuser, "select concat(number, '.', id) from dibs.epochs") }
	before := raised()
	for _, role := range []string{"", "in role dibs_reader", "in role dibs_writer", "in role message_store", "in role dibs_reader, dibs_writer, dibs_worker, dibs_operator, message_store"} {
		conn, _ := connectAs(t, url, role)
		for _, id := range []string{"", "null", "'00000000-0000-0000-0000-000000000000'", "gen_random_uuid()"} {
			_, err := conn.Exec(t.Context(), "select dibs.raise_epoch("+id+")")
			require.Equal(t, "42501", code(t, err), role)
		}
	}
	require.Equal(t, before, raised())

	const none, last = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
	admin, _ := connectAs(t, url, "in role dibs_admin")
	for _, call := range []struct{ id, want string }{
		{none, "1." + none}, // an id like any other
		{none, "1." + none},
		{last, "2." + last},
		{last, "2." + last},
		{none, "3." + none}, // it was another's since
	} {
		require.Equal(t, call.want, one[string](t, admin, "select split_part(dibs.raise_epoch($1::uuid), '/', 3)", call.id))
		require.Equal(t, call.want, raised())
	}
	seen := map[string]bool{}
	for _, call := range []string{"select dibs.raise_epoch(null)", "select dibs.raise_epoch(null)", "select dibs.raise_epoch()"} {
		seen[one[string](t, admin, call)] = true
	}
	require.Len(t, seen, 3)
	require.Equal(t, int64(6), one[int64](t, superuser, "select number from dibs.epochs"))
}

// A function that bans a kind of plan meets costs above which PostgreSQL compiles a statement, for
// 90 ms of each call. Those below do not ban it: they are called for every message, find all that
// they read by an index, and each setting costs them time.
func TestFunctionsAreNotCompiled(t *testing.T) {
	t.Parallel()
	hot := []string{
		"append", "append_each", "append_one", "append_several", "append_shared", "append_staged", "queue_lock", "read_shared_category", "stream_version",
	}
	rows, _ := pgtest.Pool(t).Query(t.Context(), `select p.proname::text from pg_proc p
		where p.pronamespace = 'dibs'::regnamespace and 'enable_seqscan=off' = any (p.proconfig) and 'jit=off' <> all (p.proconfig) order by 1`)
	require.Equal(t, hot, testkit.Do(pgx.CollectRows(rows, pgx.RowTo[string]))(t))
}
