package compat_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Names, operators, types and tables that a hostile path could put in the way.
const hostile = `
	create schema evil;
	create temp table messages (id text, stream_name text, type text, position bigint, global_position bigint, data json, metadata json, time timestamptz, category text);
	create temp table stored_messages as select true as evil;
	create temp table settings as select true as sql_condition, true as strict_names;
	create type pg_temp.message as (evil boolean);
	create table evil.messages as select true as evil;
	create table evil.stored_messages as select true as evil;
	create function evil.no(text, text) returns boolean language sql as 'select false';
	create function evil.no(bigint, bigint) returns boolean language sql as 'select false';
	create function evil.none(bigint, bigint) returns bigint language sql as 'select -7::bigint';
	create function evil.nothing(text, text) returns text language sql as 'select ''evil''::text';
	create operator evil.= (leftarg = text, rightarg = text, function = evil.no);
	create operator evil.<> (leftarg = bigint, rightarg = bigint, function = evil.no);
	create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.no);
	create operator evil.>= (leftarg = bigint, rightarg = bigint, function = evil.no);
	create operator evil.< (leftarg = bigint, rightarg = bigint, function = evil.no);
	create operator evil.+ (leftarg = bigint, rightarg = bigint, function = evil.none);
	create operator evil.% (leftarg = bigint, rightarg = bigint, function = evil.none);
	create operator evil.|| (leftarg = text, rightarg = text, function = evil.nothing);
	create function evil.split_part(text, text, integer) returns text language sql as 'select ''evil''::text';
	create function evil.strpos(text, text) returns integer language sql as 'select 9';
	create function evil.substr(text, integer) returns text language sql as 'select ''evil''::text';
	create function evil.md5(text) returns text language sql as 'select ''0''::text';
	create function evil.now() returns timestamptz language sql as 'select null::timestamptz';
	create function evil.abs(bigint) returns bigint language sql as 'select 0::bigint';
	create function evil.current_setting(text, boolean) returns text language sql as 'select ''on''::text';
	create function evil.category(varchar) returns varchar language sql as 'select ''evil''::varchar';
	create function evil.id(varchar) returns varchar language sql as 'select ''evil''::varchar';
	create function evil.is_category(varchar) returns boolean language sql as 'select true';
	create function evil.hash_64(varchar) returns bigint language sql as 'select 1::bigint';
	create function evil.acquire_lock(varchar) returns bigint language sql as 'select 1::bigint';
	create function evil.stream_version(varchar) returns bigint language sql as 'select 40::bigint';
	create function evil.lock_category(text) returns void language sql as 'select';
	create function evil.starts_with(text, text) returns boolean language sql as 'select true';
	create function pg_temp.category(varchar) returns varchar language sql as 'select ''evil''::varchar';
`

func TestNothingDependsOnTheSearchPath(t *testing.T) {
	t.Parallel()
	ask := []string{
		"select MS.write_message('" + id(1) + "', 'a-1', 'T', '{\"a\": 1}', '{\"correlationStreamName\": \"c-1\"}', -1)",
		"select MS.write_message('" + id(2) + "', 'a-1', 'T', '{}', null, 0)",
		"select MS.write_message('" + id(3) + "', 'a-2+x', 'T', '{}')",
		"select MS.write_message('" + id(4) + "', 'a-1', 'T', '{}', null, 0)",
		"select MS.write_message('" + id(4) + "', 'b', 'T', '[]')",
		"insert into MS.messages (id, stream_name, type) values ('" + id(5) + "', 'a-', 'T')",
		row + "MS.get_stream_messages('a-1')",
		row + "MS.get_stream_messages('a-1', 1, 5)",
		row + "MS.get_category_messages('a')",
		row + "MS.get_category_messages('a', 2, 1, null, 0, 1)",
		row + "MS.get_category_messages('a', correlation => 'c')",
		row + "MS.get_category_messages('a', consumer_group_member => 1, consumer_group_size => 2)",
		row + "MS.get_stream_messages('a-1', condition => 'position = 1 and category(stream_name) = ''a''')",
		row + "MS.get_category_messages('a', condition => 'messages.type = ''T''')",
		row + "MS.get_last_stream_message('a-1')",
		"select MS.stream_version('a-1'), MS.acquire_lock('a-1'), MS.hash_64('a'), MS.id('a-1+2'), MS.cardinal_id('a-1+2'), MS.category('a-1'), MS.is_category('a'), MS.message_store_version()",
		"select * from MS.stream_summary", "select * from MS.type_summary", "select * from MS.stream_type_summary", "select * from MS.type_stream_summary", "select * from MS.category_type_summary", "select * from MS.type_category_summary",
		"select global_position, position, stream_name, type, data, metadata, id from MS.messages",
		"select * from MS.get_stream_messages('a')", "select * from MS.get_category_messages('a-1')", "select * from MS.get_category_messages('a', condition => 'true) or (true')",
	}
	database := opened(t)
	admin := connect(t, database)
	calm := open(t, database, member(t, database), "message_store, public")
	var want []answer
	for _, sql := range ask {
		want = append(want, calm.do(t, step{sql: sql}, modes[0], "message_store."))
	}
	require.Empty(t, want[0].Error)
	require.Len(t, want[8].Rows, 4)

	user := role(t, []string{database}, "grant message_store to %[1]s; do $do$ begin execute format('grant create on database %%I to %[1]s', current_database()); end $do$")
	first := open(t, database, user, "")
	require.Empty(t, first.do(t, step{sql: hostile}, modes[0], "").Error)
	for _, path := range []string{"evil, pg_temp, message_store, pg_catalog", "pg_temp, evil, pg_catalog, message_store", "evil", "message_store, evil", "public", "dibs, evil", "''"} {
		empty(t, admin)
		for i, sql := range ask {
			require.Empty(t, first.do(t, step{sql: "set search_path = " + path}, modes[0], "").Error)
			require.Equal(t, want[i], first.do(t, step{sql: sql}, modes[0], "message_store."), "%s: %s", path, sql)
		}
	}
}

// A user with another name than message_store, and no search_path, calls functions by the
// schema's name. That is enough here.
func TestQualifiedCallIsEnough(t *testing.T) {
	t.Parallel()
	theirs, ours := messageDB(t), dibs(t)
	user := member(t, theirs, ours)
	a, b := open(t, theirs, user, ""), open(t, ours, user, "")
	require.Equal(t, "ERROR 42883 function acquire_lock(character varying) does not exist", a.do(t, write(1, "a-1"), modes[1], "message_store.").Error)
	require.Equal(t, answer{Columns: []string{"write_message 20 -1"}, Rows: []string{"0"}, Tag: "SELECT 1"}, b.do(t, write(1, "a-1"), modes[1], "message_store."))
	for _, sql := range []string{
		"select position from MS.get_stream_messages('a-1')", "select position from MS.get_category_messages('a')", "select position from MS.get_last_stream_message('a-1')", "select MS.stream_version('a-1')", "select MS.is_category('a')",
	} {
		require.NotEmpty(t, b.do(t, step{sql: sql}, modes[0], "message_store.").Rows, sql)
	}
	require.Equal(t, a.do(t, write(1, "a-1"), modes[1], "").Error, b.do(t, write(1, "a-1"), modes[1], "").Error, "a name without the schema is found in neither")
}

// Every function that runs with the owner's rights, and every other of plpgsql, says
// where names are looked up, and temporary objects come last.
func TestFunctionsHaveAPathOfTheirOwn(t *testing.T) {
	t.Parallel()
	conn := connect(t, dibs(t))

	require.Equal(t, []string{
		"acquire_lock true pg_catalog, pg_temp",
		"get_category_messages false pg_catalog, message_store, pg_temp",
		"get_last_stream_message false pg_catalog, message_store, pg_temp",
		"get_stream_messages false pg_catalog, message_store, pg_temp",
		"readable true pg_catalog, pg_temp",
		"stream_version true pg_catalog, pg_temp",
		"write_message true pg_catalog, pg_temp",
	}, all(t, conn, `
		select format('%s %s %s', proname, prosecdef::text, (select split_part(c, '=', 2) from unnest(proconfig) c where c like 'search_path=%'))
		from pg_proc where pronamespace = 'message_store'::regnamespace and prolang <> (select oid from pg_language where lanname = 'sql') order by 1`))
	require.Empty(t, all(t, conn, "select proname from pg_proc where pronamespace = 'message_store'::regnamespace and proconfig::text like '%lock_timeout%'"), "how long to wait is the session's to say")
}
