package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// migrated returns the URL of a migrated database and a superuser's connection to it.
func migrated(t *testing.T) (string, *pgx.Conn) {
	t.Helper()
	url := pgtest.Migrated(t)
	return url, connect(t, url)
}

func code(t *testing.T, err error) string {
	t.Helper()
	refused := testkit.As[*pgconn.PgError](t, err)
	return refused.Code
}

// write is a call of append by a client without a driver.
func writeTo(stream string) string {
	return `select outcome from dibs.append(array['` + stream + `'], '{-2}', '{1}', array[gen_random_uuid()], '{T}', array['{}'::json], array[null::json])`
}

const insertMessage = "insert into dibs.messages (category, group_hash, stream_name, position, type, id) values ('a', 0, 'a-1', 0, 'T', gen_random_uuid())"

// Each of these is refused with 42501, to every role and to a user without one. They may
// all make schemas of their own here.
func TestNoRoleReachesTheTables(t *testing.T) {
	t.Parallel()
	url, superuser := migrated(t)
	testkit.Do(superuser.Exec(t.Context(), writeTo("a-1")))(t)
	before := dump(t, url)
	for _, role := range []string{"", "in role dibs_reader", "in role dibs_writer", "in role dibs_worker", "in role dibs_operator", "in role dibs_admin", "in role message_store", "in role " + strings.Join(allRoles, ", ")} {
		conn, _ := connectAs(t, url, role)
		for _, statement := range []string{
			// To read, also by errors, plans and statistics that give a row away.
			"table dibs.messages", "select from dibs.messages", "select m from dibs.messages m", "select count(*) from dibs.messages",
			"copy dibs.messages to stdout", "select 1 / (position - position) from dibs.messages", "explain select * from dibs.messages where type = 'T'",
			"create temp table mine (like dibs.messages)", "create temp table mine as table dibs.messages", "create temp view mine as table dibs.messages; table mine",
			"table dibs.migrations", "table dibs.settings", "table dibs.fences", "table dibs.erased_streams", "table dibs.removals", "table dibs.epochs",
			"select last_value from dibs.messages_global_position_seq",
			// To forge a message, its position, its global position or its time.
			insertMessage, "copy dibs.messages from stdin",
			"insert into dibs.messages (stream_name, position, global_position, time, type, id) values ('a-1', 41, 41, '2000-01-01', 'T', gen_random_uuid())",
			insertMessage + " on conflict (id) do update set type = 'U'", "merge into dibs.messages m using (select 1) s on true when not matched then insert values (default)",
			"insert into dibs.fences values ('a', 5)", "insert into dibs.erased_streams values ('', 5)", "insert into dibs.migrations values ('9999_x.sql', '')",
			"select nextval('dibs.messages_global_position_seq')", "select setval('dibs.messages_global_position_seq', 1)", "select currval('dibs.messages_global_position_seq')",
			"alter sequence dibs.messages_global_position_seq restart", "select dibs.taken('a-1', 1, gen_random_uuid())", "select dibs.begin_again('a-1')",
			// To change or to remove, with the setting that the functions have.
			"update dibs.messages set type = 'U'", "delete from dibs.messages", "truncate dibs.messages", "select from dibs.messages for update",
			"set dibs.retention = 'on'; delete from dibs.messages", "select dibs.remove_messages('a-1', 1)",
			"merge into dibs.messages m using (select 1) s on true when matched then delete", "update dibs.settings set sql_condition = true", "update message_store.settings set sql_condition = true",
			"update message_store.messages set type = 'U'", "delete from message_store.messages", "update dibs.epochs set number = 0", "update message_store.stored_messages set type = 'U'",
			// To change its guards.
			"alter table dibs.messages disable trigger all", "alter table dibs.messages disable trigger messages_append_only", "drop trigger messages_append_only on dibs.messages",
			"alter table dibs.messages disable row level security", "alter table dibs.messages owner to current_user", "alter table dibs.messages rename to mine", "drop table dibs.messages",
			"create rule r as on insert to dibs.messages do instead nothing", "create policy p on dibs.messages", "create index on dibs.messages (type)", "create statistics dibs.s on type, id from dibs.messages",
			"create trigger t before insert on dibs.messages for each row execute function suppress_redundant_updates_trigger()",
			"create temp table mine () inherits (dibs.messages)", "reindex table dibs.messages", "cluster dibs.messages using messages_id", "do $$ begin lock table dibs.messages in access exclusive mode; end $$", "comment on table dibs.messages is 'mine'",
			"create publication p for table dibs.messages", "alter table dibs.messages replica identity full",
			"create or replace function dibs.stream_version(stream text) returns bigint language sql as 'select 1::bigint'", "alter function dibs.stream_version(text) reset all", "alter function dibs.stream_version(text) security invoker",
			"drop function dibs.stream_version(text)", "create function dibs.append(text) returns text language sql as 'select 1'",
			"create table dibs.mine ()", "create view dibs.mine as select 1", "create type dibs.mine as enum ()", "create sequence dibs.mine", "create table message_store.mine ()", "create function message_store.write_message(text) returns int language sql as 'select 1'",
			"create operator dibs.= (leftarg = json, rightarg = json, function = pg_catalog.int4eq)", "alter schema dibs rename to mine", "drop schema dibs cascade", "drop schema message_store cascade",
			// To be somebody else.
			"set role dibs_owner", "set session authorization dibs_owner", "set role postgres", "set session_replication_role = replica", "alter role dibs_owner login", "drop role dibs_owner", "grant dibs_owner to current_user",
			"reassign owned by dibs_owner to current_user", "drop owned by dibs_owner", "select set_config('role', 'dibs_owner', true)",
			"alter default privileges for role dibs_owner grant all on tables to public", "alter default privileges for role dibs_owner in schema dibs grant all on tables to public",
			"select dibs.grant_rights()", "select dibs.install('x', 'y', 1, '{}', '')", "select dibs.uninstall('', 'dibs', '{}')",
			"grant all on dibs.messages to public", "grant usage on schema dibs to public", "grant execute on function dibs.append to public",
			// To be in the way of a migration.
			"create temp table mine (m dibs.messages)", "create temp table mine (m dibs.messages[])", "create domain pg_temp.mine as dibs.messages",
		} {
			_, err := conn.Exec(t.Context(), statement)
			switch {
			case strings.HasPrefix(statement, "grant ") && err == nil:
				// It only warns where there is nothing that could be granted.
			case strings.HasPrefix(statement, "update message_store.settings") && strings.Contains(role, "message_store"):
				require.Equal(t, "55000", code(t, err), "a view of no table that could be updated: %s", statement)
			default:
				require.Error(t, err, "%s: %s", role, statement)
				require.Equal(t, "42501", code(t, err), "%s: %s", role, statement)
			}
			testkit.Do(conn.Exec(t.Context(), "reset dibs.retention"))(t)
		}
		require.Zero(t, one[int](t, conn, "select count(*) from pg_stats where schemaname in ('dibs', 'message_store')"), role)
	}
	requireSame(t, before, dump(t, url))
}

// The owner, and a superuser that leaves triggers on, cannot change messages either. Only the
// functions that trim and delete set dibs.retention.
func TestMessagesAreOnlyEverAdded(t *testing.T) {
	t.Parallel()
	url, superuser := migrated(t)
	testkit.Do(superuser.Exec(t.Context(), writeTo("a-1")))(t)
	before := dump(t, url)
	for _, become := range []string{"reset role", "set role dibs_owner"} {
		testkit.Do(superuser.Exec(t.Context(), become))(t)
		for _, retention := range []string{"off", "on"} {
			testkit.Do(superuser.Exec(t.Context(), "set dibs.retention = "+retention))(t)
			for _, statement := range []string{
				"update dibs.messages set type = 'U'", "update dibs.messages set type = 'U' where false", "update only dibs.messages set position = 5",
				"delete from dibs.messages", "delete from dibs.messages where false", "truncate dibs.messages", "truncate dibs.fences, dibs.messages cascade",
				insertMessage + " on conflict (stream_name, position) do update set type = 'U'",
				"merge into dibs.messages m using (select 1) s on true when matched then update set type = 'U'",
				"merge into dibs.messages m using (select 1) s on true when matched then delete",
				"with d as (delete from dibs.messages returning *) select count(*) from d",
				"update message_store.messages set type = 'U'", "update message_store.stored_messages set type = 'U'", "insert into message_store.stored_messages (stream_name) values ('a-1')",
			} {
				tx := testkit.Do(superuser.Begin(t.Context()))(t)
				_, err := tx.Exec(t.Context(), statement)
				if retention == "on" && strings.Contains(statement, "delete") {
					require.NoError(t, err, statement)
				} else {
					require.Equal(t, "42501", code(t, err), statement)
				}
				require.NoError(t, tx.Rollback(t.Context()))
			}
		}
	}
	requireSame(t, before, dump(t, url))
}

// plant puts a function, an operator, a table or a type of the user's own before each
// that our functions could mean, if they did not say which.
func plant(t *testing.T, superuser, conn *pgx.Conn) {
	t.Helper()
	var names, functions []string
	rows, _ := superuser.Query(t.Context(), "select distinct relname::text from pg_class where relnamespace in ('dibs'::regnamespace, 'message_store'::regnamespace) and relkind in ('r', 'v', 'c')")
	names = testkit.Do(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	// All of ours, and every built-in function that they call.
	rows, _ = superuser.Query(t.Context(), `
		select distinct format('%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) || ' returns ' || pg_get_function_result(p.oid)
		from pg_proc p
		where p.prokind = 'f' and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype) and not p.proretset
			and (p.pronamespace in ('dibs'::regnamespace, 'message_store'::regnamespace) or p.pronamespace = 'pg_catalog'::regnamespace and p.proname in (
				'hashtext', 'split_part', 'strpos', 'substr', 'left', 'md5', 'sha256', 'encode', 'convert_to', 'octet_length', 'cardinality', 'nextval', 'now', 'clock_timestamp',
				'gen_random_uuid', 'set_config', 'current_setting', 'pg_advisory_xact_lock', 'json_typeof', 'json_build_object', 'json_strip_nulls', 'to_regclass', 'starts_with',
				'lower', 'concat', 'format', 'abs', 'mod', 'round', 'jsonb_typeof', 'array_length', 'timezone', 'greatest', 'regexp_replace',
				'pg_control_system', 'pg_is_in_recovery', 'pg_walfile_name', 'pg_current_wal_lsn'))
			and not exists (select from unnest(p.proallargtypes || p.proargtypes::oid[] || p.prorettype) a (type) join pg_type t on t.oid = a.type where t.typtype = 'p' and t.typname not in ('void', 'record'))`)
	functions = testkit.Do(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	require.Greater(t, len(functions), 60)

	var sql strings.Builder
	sql.WriteString("create schema mine; set search_path = mine;\n")
	for _, f := range functions {
		sql.WriteString("create function mine." + f + " language plpgsql as 'begin raise exception ''hijacked''; end';\n")
	}
	for _, operands := range []string{"text", "uuid", "bigint", "integer", "boolean", "bytea", "varchar"} {
		sql.WriteString("create function mine.compare(" + operands + ", " + operands + ") returns boolean language plpgsql as 'begin raise exception ''hijacked''; end';\n")
		for _, operator := range []string{"=", "<>", "<", ">", "<=", ">=", "~", "!~"} {
			sql.WriteString("create operator mine." + operator + " (leftarg = " + operands + ", rightarg = " + operands + ", function = mine.compare);\n")
		}
	}
	for _, name := range names {
		sql.WriteString("create temp table " + pgx.Identifier{name}.Sanitize() + " (hijacked integer);\n")
	}
	for _, name := range []string{"text", "uuid", "jsonb", "json", "int4", "int8", "bool", "varchar", "timestamptz", "bytea", "regclass"} {
		sql.WriteString("create domain pg_temp." + name + " as pg_catalog.point; create domain mine." + name + " as pg_catalog.point;\n")
	}
	sql.WriteString("set search_path = pg_temp, mine, public, pg_catalog;\n")
	testkit.Do(conn.Exec(t.Context(), sql.String()))(t)
}

// No name in the functions is looked up in a schema of the caller's, and no setting of the
// caller's changes their results.
func TestPlantedNamesChangeNothing(t *testing.T) {
	t.Parallel()
	url, superuser := migrated(t)
	conn, _ := connectAs(t, url, "in role "+strings.Join(allRoles, ", "))
	plant(t, superuser, conn)
	for _, statement := range []string{
		"select split_part('a', 'b', 1)", "select 'a'::pg_catalog.text = 'b'::pg_catalog.text", "select lock_key('a'::pg_catalog.text)",
		"select from pg_control_system()", "select pg_is_in_recovery()", "select pg_walfile_name(pg_catalog.pg_current_wal_lsn())", "select pg_current_wal_lsn()", "select gen_random_uuid()",
	} {
		require.ErrorContains(t, testkit.ErrorOf(conn.Exec(t.Context(), statement)), "hijacked", "or else this test shows nothing: %s", statement)
	}
	testkit.Do(conn.Exec(t.Context(), `
		set standard_conforming_strings = off; set backslash_quote = on; set transform_null_equals = on; set array_nulls = off; set row_security = off;
		set check_function_bodies = off; set plan_cache_mode = force_custom_plan; set enable_indexscan = off; set join_collapse_limit = 1; set lock_timeout = 0;
		set dibs.retention = 'on'; set dibs.allow_unsafe_settings = 'on'; set "dibs.migration" = '9999_mine.sql';
		set default_transaction_deferrable = on; set datestyle = 'German'; set timezone = 'Asia/Kathmandu'; set intervalstyle = 'iso_8601'; set bytea_output = 'escape'; set extra_float_digits = -15;
		set xmloption = document; set client_min_messages = error; set escape_string_warning = off; set quote_all_identifiers = on`))(t)
	for _, call := range []struct{ sql, want string }{
		{`select outcome from dibs.append('{a-1}', '{-1}', '{1}', '{00000000-0000-0000-0000-000000000001}', '{T}', '{"{}"}', array_fill(null::pg_catalog.json, '{1}'))`, "written"},
		{`select outcome from dibs.append('{a-1}', '{-1}', '{1}', '{00000000-0000-0000-0000-000000000001}', '{T}', '{"{}"}', array_fill(null::pg_catalog.json, '{1}'))`, "duplicate"},
		{`select outcome from dibs.append('{a-1}', '{-1}', '{1}', '{00000000-0000-0000-0000-000000000002}', '{T}', '{"{}"}', array_fill(null::pg_catalog.json, '{1}'))`, "version_conflict"},
		{`select outcome from dibs.append('{a-1}', '{0}', '{1}', '{00000000-0000-0000-0000-000000000001}', '{U}', '{"{}"}', array_fill(null::pg_catalog.json, '{1}'))`, "id_conflict"},
		{`select outcome from dibs.append('{a-2,b-2}', '{-1,-1}', '{1,1}', '{00000000-0000-0000-0000-000000000003,00000000-0000-0000-0000-000000000004}', '{T,T}', '{"{}","{}"}', array_fill(null::pg_catalog.json, '{2}'), '{0,0}') limit 1`, "written"},
		{`select stream_name from dibs.find_messages('a-1', '{00000000-0000-0000-0000-000000000001,00000000-0000-0000-0000-000000000009}')`, "a-1"},
		{`select stream_name from dibs.read_stream('a-1')`, "a-1"},
		{`select stream_name from dibs.read_stream('a-1', 5, 10, true)`, "a-1"},
		{`select stream_name from dibs.read_category('b') limit 1`, "b-2"},
		{`select stream_name from dibs.read_category('b', 0, 10, '{T}', null, 1, 0) limit 1`, "b-2"},
		{`select stream_name from dibs.last_message('a-1', 'T')`, "a-1"},
		{`select dibs.stream_version('a-1')::pg_catalog.text`, "0"},
		{`select version::pg_catalog.text from dibs.schema_version()`, "9"},
		{`select messages::pg_catalog.text from dibs.report('{category}') limit 1`, "2"},
		{`select c from dibs.categories() c limit 1`, "a"},
		{`select dibs.count_category('a')::pg_catalog.text`, "2"},
		{`select stream_name from dibs.category_streams('a') limit 1`, "a-1"},
		{`select coalesce(max(rule), 'none') from dibs.verify_table() where rule is not null and stream is not null`, "none"},
		{`select coalesce(max(rule), 'none') from dibs.verify_store() where rule is not null and stream is not null`, "none"},
		{`select coalesce(max(rule), 'none') from dibs.verify_category('a') where rule is not null and stream is not null`, "none"},
		{`select coalesce(max(rule), 'none') from dibs.verify_queues() where rule is not null and stream is not null`, "none"},
		{`select dibs.epoch()`, one[string](t, superuser, "select dibs.epoch()")},
		{`select pg_catalog.split_part(dibs.raise_epoch('00000000-0000-0000-0000-000000000006'), '/', 3)`, "1.00000000-0000-0000-0000-000000000006"},
		{`select pg_catalog.split_part(dibs.raise_epoch('00000000-0000-0000-0000-000000000006'), '/', 3)`, "1.00000000-0000-0000-0000-000000000006"},
		{`select pg_catalog.split_part(pg_catalog.split_part(dibs.raise_epoch(), '/', 3), '.', 1)`, "2"},
		{`select outcome from dibs.trim('a-1', 1)`, "nothing"},
		{`select outcome from dibs.forget('a', '1 day')`, "no_key_life"},
		{`select outcome from dibs.forget('a:inbox', '1 day')`, "nothing"},
		{`select message_store.write_message('00000000-0000-0000-0000-000000000005', 'c-1', 'T', '{}', null, -1)::pg_catalog.text`, "0"},
		{`select message_store.acquire_lock('c-1')::pg_catalog.text`, one[string](t, superuser, "select ('x' || left(md5('c'), 16))::bit(64)::bigint::text")},
		{`select stream_name from message_store.get_stream_messages('c-1', 0, 10)`, "c-1"},
		{`select stream_name from message_store.get_category_messages('c', 0, 10, null, 0, 1)`, "c-1"},
		{`select stream_name from message_store.get_last_stream_message('c-1', 'T')`, "c-1"},
		{`select message_store.stream_version('c-1')::pg_catalog.text`, "0"},
		{`select message_store.category('c-1') || message_store.id('c-1') || message_store.cardinal_id('c-1+2') || message_store.is_category('c')`, "c11true"},
		{`insert into message_store.messages (stream_name, type, data) values ('c-1', 'T', '{}') returning stream_name`, "c-1"},
		{`select type from message_store.type_summary`, "T"},
		{`select outcome from dibs.delete_stream('a-1', 0)`, "deleted"},
		{`select outcome from dibs.delete_stream('a-2', 0, true)`, "deleted"},
	} {
		var got string
		require.NoError(t, conn.QueryRow(t.Context(), call.sql).Scan(&got), call.sql)
		require.Equal(t, call.want, got, call.sql)
	}
}

// A message gets its position, its global position and its time when it is written: no client
// chooses them, and a rollback leaves a gap and no more.
func TestPositionsAndTimesAreNotTheClients(t *testing.T) {
	t.Parallel()
	url, superuser := migrated(t)
	conn, _ := connectAs(t, url, "in role dibs_writer, message_store")
	for _, statement := range []string{
		"insert into message_store.messages (stream_name, type, data, global_position) values ('a-1', 'T', '{}', 41)",
		"insert into message_store.messages (stream_name, type, data, time) values ('a-1', 'T', '{}', '2000-01-01')",
		"insert into message_store.messages (stream_name, type, data, position) values ('a-1', 'T', '{}', 41)",
		"insert into message_store.messages (stream_name, type, data, position) values ('a-1', 'T', '{}', -1)",
		"insert into message_store.messages (stream_name, type, data, position) values ('a-1', 'T', '{}', 0), ('a-1', 'T', '{}', 0)",
		"insert into message_store.messages (stream_name, type, data) values ('a-1', 'T', '{}') on conflict (id) do update set position = 41",
		"select message_store.write_message(gen_random_uuid()::text, 'a-1', 'T', '{}', null, 40)",
		`select dibs.append('{a-1}', '{40}', '{1}', array[gen_random_uuid()], '{T}', '{"{}"}', array[null::json])`,
		`select dibs.append('{a-1}', '{-1}', '{1}', array[gen_random_uuid()], '{T}', '{"{}"}', array['{"globalPosition": 41, "position": 41, "time": "2000-01-01"}'::json])`,
		"update message_store.messages set global_position = 41",
	} {
		_, err := conn.Exec(t.Context(), statement)
		if err == nil {
			require.Contains(t, statement, "dibs.append", statement)
		}
	}
	testkit.Do(conn.Exec(t.Context(), "begin; "+writeTo("a-1")+"; rollback"))(t)
	testkit.Do(conn.Exec(t.Context(), writeTo("a-1")))(t)

	require.Equal(t, []int64{0, 1}, one[[]int64](t, superuser, "select array_agg(position order by position) from dibs.messages where stream_name = 'a-1'"))
	require.True(t, one[bool](t, superuser, "select bool_and(global_position < 41 and time > now() - interval '1 hour') from dibs.messages"))
}

// Any user who can connect may take any advisory lock, as in every database. A session that
// takes a category's and keeps it holds its writers up: each ends by itself, with an error that
// says that nothing was written. The lock goes with its holder, and the DBA can keep it from
// strangers.
func TestHeldLockHoldsWritersUpForABoundedTime(t *testing.T) {
	t.Parallel()
	url, superuser := migrated(t)
	require.Equal(t, int64(6), one[int64](t, superuser, `
		select count(*) from pg_proc
		where oid in ('dibs.append'::regproc, 'dibs.find_messages'::regproc, 'dibs.trim'::regproc, 'dibs.delete_stream'::regproc)
			and 'lock_timeout=10s' = any (proconfig)
			or oid in ('message_store.write_message'::regproc, 'message_store.acquire_lock'::regproc)`), "10 seconds for each of ours; clients of message-db have their role's setting")
	for _, f := range []string{"append", "find_messages", "trim", "delete_stream"} {
		testkit.Do(superuser.Exec(t.Context(), "alter function dibs."+f+" set lock_timeout = '20ms'"))(t)
	}
	writer, user := connectAs(t, url, "in role dibs_writer, dibs_admin, message_store")
	testkit.Do(superuser.Exec(t.Context(), writeTo("a-1")))(t)
	const free = "select pg_advisory_unlock_all()"

	for name, hold := range map[string]struct{ role, take, free string }{
		"a stranger's":      {"", "select pg_advisory_lock(1684628083, hashtext('dibs.' || 'a'))", free},
		"by append":         {"in role dibs_writer", "begin; " + writeTo("a-2"), "rollback"},
		"by find_messages":  {"in role dibs_writer", "begin; select from dibs.find_messages('a-1', '{}')", "rollback"},
		"by acquire_lock":   {"in role message_store", "begin; select message_store.acquire_lock('a-1')", "rollback"},
		"by write_message":  {"in role message_store", "begin; select message_store.write_message(gen_random_uuid()::text, 'a-3', 'T', '{}')", "rollback"},
		"by an admin's own": {"in role dibs_admin", "begin; select from dibs.delete_stream('a-1')", "rollback"},
	} {
		holder, _ := connectAs(t, url, hold.role)
		require.NoError(t, testkit.ErrorOf(holder.Exec(t.Context(), hold.take)), name)
		for _, call := range []string{
			writeTo("a-1"), "select from dibs.find_messages('a-1', '{}')", "select from dibs.delete_stream('a-1')",
			"set lock_timeout = '20ms'; select message_store.write_message(gen_random_uuid()::text, 'a-1', 'T', '{}')", "set lock_timeout = '20ms'; select message_store.acquire_lock('a-1')",
		} {
			testkit.Do(writer.Exec(t.Context(), "set lock_timeout = 0"))(t)
			_, err := writer.Exec(t.Context(), call)
			require.Equal(t, "55P03", code(t, err), "%s: %s", name, call)
		}
		require.NoError(t, testkit.ErrorOf(writer.Exec(t.Context(), writeTo("b-1"))), "other categories go on")
		require.EqualValues(t, 0, one[int64](t, writer, "select dibs.stream_version('a-1')"), "readers take no lock")
		testkit.Do(holder.Exec(t.Context(), hold.free))(t)
	}
	require.Equal(t, int64(0), one[int64](t, superuser, "select count(*) from dibs.messages where stream_name in ('a-2', 'a-3')"))

	// The DBA's bounds: a role's setting ends a transaction that sits, and a lock that is
	// the session's ends with it.
	testkit.Do(superuser.Exec(t.Context(), "alter function dibs.append set lock_timeout = 0; alter role "+user+" set idle_in_transaction_session_timeout = '50ms'; alter role "+user+" set idle_session_timeout = '50ms'"))(t)
	for _, take := range []string{"begin; " + writeTo("a-2"), "select pg_advisory_lock(1684628083, hashtext('dibs.' || 'a'))"} {
		var sits *pgx.Conn
		testkit.Await(t, "a session has taken the lock before the bound ended it", func() (bool, any) {
			var err error
			sits = testkit.Do(pgx.ConnectConfig(t.Context(), writer.Config()))(t)
			if _, err = sits.Exec(t.Context(), take); err != nil {
				sits.Close(t.Context())
			}
			return err == nil, err
		})

		testkit.Do(superuser.Exec(t.Context(), writeTo("a-1")))(t)

		require.Error(t, testkit.ErrorOf(sits.Exec(t.Context(), "select 1")))
		sits.Close(context.WithoutCancel(t.Context()))
	}

	// Only the owner of the functions has to be able to take locks.
	testkit.Do(superuser.Exec(t.Context(), `
		revoke execute on function pg_advisory_lock(int, int), pg_try_advisory_lock(int, int), pg_advisory_xact_lock(int, int), pg_try_advisory_xact_lock(int, int),
			pg_advisory_lock_shared(int, int), pg_try_advisory_lock_shared(int, int), pg_advisory_xact_lock_shared(int, int), pg_try_advisory_xact_lock_shared(int, int) from public;
		grant execute on function pg_advisory_xact_lock(int, int), pg_try_advisory_xact_lock(int, int), pg_try_advisory_lock(int, int), pg_advisory_lock(int, int),
			pg_advisory_lock_shared(int, int), pg_try_advisory_xact_lock_shared(int, int)
			to dibs_owner`))(t)
	stranger, _ := connectAs(t, url, "in role dibs_writer")
	_, err := stranger.Exec(t.Context(), "select pg_advisory_lock(1684628083, hashtext('dibs.' || 'a'))")
	require.Equal(t, "42501", code(t, err))
	for _, write := range []string{
		writeTo("a-1"),
		`select outcome from dibs.append_one('a-1', -2, gen_random_uuid(), 'T', '{}', null, notify => true)`,
		`select outcome from dibs.append_several('a-1', -2, array[gen_random_uuid()], '{T}', array['{}'::json], array[null::json], notify => true)`,
		`select outcomes from dibs.append_each('{a-1}', '{-2}', '{1}', '{0}', array[gen_random_uuid()], '{T}', array['{}'::json], array[null::json], true)`,
		`select dibs.listen()`,
	} {
		require.NoError(t, testkit.ErrorOf(stranger.Exec(t.Context(), write)), write)
	}
}
