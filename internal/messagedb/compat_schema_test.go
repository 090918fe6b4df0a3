package messagedb_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/migrations"
)

// strings returns the first column of a query.
func all(t *testing.T, conn *pgx.Conn, sql string) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), sql)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err, sql)
	return values
}

func TestTwelveFunctionsHaveTheSameSignatures(t *testing.T) {
	t.Parallel()
	const signatures = `
		select format('%s(%s) %s%s %s %s %s %s rows %s', proname, pg_get_function_arguments(oid),
			case when proretset then 'setof ' end, prorettype::regtype, proargnames, provolatile, proisstrict, proparallel, prorows)
		from pg_proc where pronamespace = 'message_store'::regnamespace and proname <> 'readable' order by proname collate "C"`
	want := all(t, connect(t, pgtest.MessageDB(t)), signatures)

	got := all(t, connect(t, dibs(t)), signatures)

	require.Len(t, want, 12)
	require.Equal(t, want, got)
}

func TestViewsAndTypeHaveTheSameColumns(t *testing.T) {
	t.Parallel()
	const columns = `
		select format('%s %s %s %s', relname, attnum, attname, format_type(atttypid, atttypmod))
		from pg_attribute join pg_class c on c.oid = attrelid
		where relnamespace = 'message_store'::regnamespace and relkind in ('r', 'v', 'c') and attnum > 0 and not attisdropped
			and relname not in ('stored_messages', 'settings') -- what ours has besides
		order by relname collate "C", attnum`
	want := all(t, connect(t, pgtest.MessageDB(t)), columns)

	got := all(t, connect(t, dibs(t)), columns)

	require.Len(t, want, 8+8+3+3+4+4+4+4)
	require.Equal(t, want, got)
}

// An INSERT, UPDATE, DELETE or TRUNCATE is in another test: the answers differ, since views are
// not tables.
func TestRoleHasTheSameRights(t *testing.T) {
	t.Parallel()
	const rights = `
		select format('%s %s %s', c.relname, p, has_table_privilege('message_store', c.oid, p))
		from pg_class c, unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) p
		where relnamespace = 'message_store'::regnamespace and relkind in ('r', 'v') and relname not in ('stored_messages', 'settings')
		union all
		select format('%s %s', oid::regproc, has_function_privilege('message_store', oid, 'execute'))
		from pg_proc where pronamespace = 'message_store'::regnamespace and proname <> 'readable' -- what ours has besides
		union all
		select format('schema %s %s', p, has_schema_privilege('message_store', 'message_store', p))
		from unnest(array['usage', 'create']) p
		order by 1`
	want := all(t, connect(t, pgtest.MessageDB(t)), rights)

	got := all(t, connect(t, dibs(t)), rights)

	require.Len(t, want, 7*7+12+2)
	require.Equal(t, want, got)
}

func TestRoleHasNothingElse(t *testing.T) {
	t.Parallel()
	conn := connect(t, dibs(t))

	require.Equal(t, []string{"settings SELECT", "stored_messages SELECT"}, all(t, conn, `
		select relname || ' ' || privilege_type
		from pg_class, aclexplode(relacl) where grantee = 'message_store'::regrole and relname in ('stored_messages', 'settings') order by 1`))
	require.Empty(t, all(t, conn, `
		select nspname from pg_namespace n where nspname = 'dibs' and has_schema_privilege('message_store', oid, 'usage, create')
		union all
		select relname from pg_class where relnamespace = 'dibs'::regnamespace and relkind = 'r' and has_table_privilege('message_store', oid, 'select, insert, update, delete, truncate')
		union all
		select relname from pg_class where relnamespace = 'dibs'::regnamespace and case relkind when 'S' then has_sequence_privilege('message_store', oid, 'usage, select, update') end
		union all
		select proname from pg_proc where pronamespace = 'dibs'::regnamespace and has_function_privilege('message_store', oid, 'execute')`))
	require.Empty(t, all(t, conn, `
		select proname from pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner)))
		where pronamespace in ('message_store'::regnamespace, 'dibs'::regnamespace) and grantee = 0`), "EXECUTE is not the public's")
	require.True(t, one[bool](t, conn, `
		select rolcanlogin and not (rolsuper or rolcreatedb or rolcreaterole or rolreplication or rolbypassrls) and rolpassword is null
		from pg_authid where rolname = 'message_store'`))
	require.Equal(t, []string{"dibs_owner"}, all(t, conn, `
		select distinct pg_get_userbyid(relowner)::text from pg_class where relnamespace = 'message_store'::regnamespace
		union select pg_get_userbyid(proowner)::text from pg_proc where pronamespace = 'message_store'::regnamespace
		union select pg_get_userbyid(nspowner)::text from pg_namespace where nspname = 'message_store'`))
}

func TestViewsAreTheSame(t *testing.T) {
	t.Parallel()
	some := steps{
		writing(1, "a-1"), writing(2, "a-1"), writing(3, "b-1"), writing(4, "a:x-1"), writing(5, "solo"),
		{sql: "select MS.write_message($1, 'a-1', 'U', null)", args: []any{id(6)}},
		{sql: "select MS.write_message($1, 'B-1', 'u', '[1]', '{}')", args: []any{id(7)}},
	}
	var summaries steps
	for _, view := range []string{"stream_summary", "type_summary", "stream_type_summary", "type_stream_summary", "category_type_summary", "type_category_summary"} {
		summaries = append(summaries, step{sql: "select * from MS." + view}, step{sql: "select percent, message_count from MS." + view + " where message_count > 1"})
	}
	summaries = append(summaries, step{sql: "select * from MS.stream_summary where stream_name like '%a%' limit 2"})
	compare(t, []kase{
		{"reports count, and give a percentage of all messages", after(some, summaries...)},
		{"reports of nothing are empty", summaries},
		{"percentages have two places", after(steps{{sql: "select count(MS.write_message(md5(n::text), case n % 7 when 0 then 'a-' when 1 then 'b-' else 'c-' end || n % 3, 'T' || n % 11, '{}')) from generate_series(1, 101) n"}}, summaries...)},
		{"messages is read directly", after(some,
			step{sql: "select * from MS.messages where false"},
			step{sql: "select m.* from MS.messages m where time is null"},
			step{sql: "select global_position, position, stream_name, type, data, metadata, id from MS.messages where stream_name = $1 order by position", args: []any{"a-1"}},
			step{sql: "select global_position, position, stream_name, type, data, metadata, id from MS.messages where global_position > $1 order by global_position limit $2", args: []any{1, 2}},
			step{sql: "select data->>'n', metadata->>'x', data @> '{\"n\": 1}' from MS.messages where id = $1", args: []any{id(1)}},
			step{sql: "select type, count(*) from MS.messages group by type order by type"},
		)},
	})
}

func TestWritesToTheViewAreWrites(t *testing.T) {
	t.Parallel()
	const into = "insert into MS.messages (id, stream_name, position, type, data, metadata) values ($1, $2, $3, $4, $5, $6)"
	compare(t, []kase{
		{"the next position is taken", steps{
			{sql: into, args: []any{id(1), "a-1", 0, "T", js(`{}`), nil}},
			{sql: into + " returning id, stream_name, position, type, data, metadata, global_position, time = now() at time zone 'utc'", args: []any{id(2), "a-1", 1, "T", js(`{"a": 1}`), js(`{}`)}},
			writing(3, "a-1"),
			{sql: "insert into MS.messages (stream_name, position, type) select 'b-1', n, 'T' from generate_series(0, 4) n"},
			{sql: "select count(distinct id), max(position), max(global_position) from MS.messages where data is null"},
		}},
		{"an id is made if there is none, and NULL is none", steps{
			{sql: "insert into MS.messages (stream_name, position, type) values ('a-1', 0, 'T') returning id is not null"},
			{sql: into, args: []any{nil, "a-1", 1, "T", js(`{}`), nil}},
			{sql: into, args: []any{id(1), nil, 1, "T", js(`{}`), nil}, ours: fails("P0001", "Wrong expected version: 0 (Stream: <NULL>, Stream Version: -1)")},
			{sql: into, args: []any{id(1), "a-1", 1, nil, js(`{}`), nil}},
			{sql: into, args: []any{id(1), "a-1", 1, "T", js(`{}`), nil}},
			{sql: into, args: []any{id(1), "a-1", 2, "T", js(`{}`), nil}},
		}},
		{"no other position can be taken", steps{
			writing(1, "a-1"),
			{sql: into, args: []any{id(2), "a-1", 41, "T", js(`{}`), nil}, ours: fails("P0001", "Wrong expected version: 40 (Stream: a-1, Stream Version: 0)")},
			{sql: into, args: []any{id(2), "a-1", 0, "T", js(`{}`), nil}, ours: fails("P0001", "Wrong expected version: -1 (Stream: a-1, Stream Version: 0)")},
			{sql: into, args: []any{id(2), "a-1", -5, "T", js(`{}`), nil}, ours: fails("P0001", "Wrong expected version: -6 (Stream: a-1, Stream Version: 0)")},
			{sql: "insert into MS.messages (stream_name, position, type, global_position) values ('a-1', 1, 'T', 70)", ours: fails("428C9", "a message gets its global_position and its time when it is written")},
			{sql: "insert into MS.messages (stream_name, position, type, time) values ('a-1', 1, 'T', '2000-01-01')", ours: fails("428C9", "a message gets its global_position and its time when it is written")},
			{sql: "insert into MS.messages (stream_name, type) values ('c-1', 'T')", ours: func(answer) answer { return answer{Tag: "INSERT 0 1"} }},
			{sql: "insert into MS.messages (stream_name, position, type) values ('d-1', 0, 'dibs:Tombstone')", ours: fails("P0001", "invalid type: must be a message type")},
		}},
		{"nothing is changed or removed", steps{
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}')", args: []any{id(1)}},
			{sql: "update MS.messages set type = 'U'", ours: fails("42501", "permission denied for view messages")},
			{sql: "delete from MS.messages", ours: fails("42501", "permission denied for view messages")},
			{sql: "truncate MS.messages", ours: fails("42809", `"messages" is not a table`)},
			{sql: "insert into MS.messages (stream_name, position, type) values ('a-2', 0, 'T') on conflict do nothing"},
			{sql: "insert into MS.messages (stream_name, position, type) values ('a-1', 0, 'T') on conflict do nothing", ours: fails("P0001", "Wrong expected version: -1 (Stream: a-1, Stream Version: 0)")},
			{sql: "create table message_store.mine ()"},
			{sql: "drop view message_store.stream_summary"},
		}},
	})
}

// Statements that work on a table and not on a view.
func TestViewIsNoTable(t *testing.T) {
	t.Parallel()
	none := fails("42P01", `relation "message_store.messages_global_position_seq" does not exist`)
	compare(t, []kase{{"messages is a view", steps{
		writing(1, "a-1"),
		{sql: "select position from MS.messages for update", ours: fails("42501", "permission denied for view messages")},
		{sql: "copy (select stream_name, position from MS.messages) to stdout"},
		{sql: "copy MS.messages (stream_name, position) to stdout", ours: fails("42809", `cannot copy from view "messages"`)},
		{sql: "insert into MS.messages (stream_name, position, type) values ('a-1', 1, 'T') on conflict (id) do nothing", ours: fails("42P10", "there is no unique or exclusion constraint matching the ON CONFLICT specification")},
		{sql: "select last_value > 0 from message_store.messages_global_position_seq", ours: none},
		{sql: "select nextval('message_store.messages_global_position_seq') > 0", ours: none},
	}}})
}

func TestRowsAreCopiedIntoTheView(t *testing.T) {
	t.Parallel()
	theirs, ours := pgtest.MessageDB(t), dibs(t)
	var sessions []session
	for _, database := range []string{theirs, ours} {
		sessions = append(sessions, open(t, database, "message_store", ""))
	}
	same := func(rows string) (errs []string) {
		t.Helper()
		for _, s := range sessions {
			_, err := s.conn.CopyFrom(t.Context(), strings.NewReader(rows), "copy messages (id, stream_name, position, type, data, metadata) from stdin")
			text := ""
			if e, ok := errors.AsType[*pgconn.PgError](err); ok {
				text = e.Code + " " + e.Message
			}
			errs = append(errs, text)
		}
		require.Equal(t, sessions[0].do(t, written, modes[0], ""), sessions[1].do(t, written, modes[0], ""))
		return errs
	}

	require.Equal(t, []string{"", ""}, same(id(1)+"\ta-1\t0\tT\t{\"b\": 1}\t\\N\n"+id(2)+"\ta-1\t1\tT\t\\N\t[]\n"+id(3)+"\tb-1\t0\tT\t\\N\t\\N\n"))
	require.Equal(t, []string{
		`23505 duplicate key value violates unique constraint "messages_stream"`,
		"P0001 Wrong expected version: 0 (Stream: a-1, Stream Version: 1)",
	}, same(id(4)+"\ta-1\t1\tT\t\\N\t\\N\n"))

	for _, forged := range []string{"global_position", "time"} {
		_, err := sessions[1].conn.CopyFrom(t.Context(), strings.NewReader("a-1\t2\tT\t"+map[string]string{"global_position": "41", "time": "2000-01-01"}[forged]+"\n"), "copy messages (stream_name, position, type, "+forged+") from stdin")
		require.ErrorContains(t, err, "428C9")
	}
}

// EXECUTE is the public's in message-db. Here writes are made with the owner's rights, and so a
// role is granted the functions that it calls; to read, also the views.
func TestRoleIsGrantedWhatItCalls(t *testing.T) {
	t.Parallel()
	theirs, ours := pgtest.MessageDB(t), dibs(t)
	part := role(t, []string{theirs, ours}, "grant usage on schema message_store to %[1]s; grant select, insert on message_store.messages to %[1]s; grant usage on all sequences in schema message_store to %[1]s")
	a, b := open(t, theirs, part, "message_store"), open(t, ours, part, "message_store")
	for sql, refused := range map[string]string{
		writing(1, "a-1").sql:                      "function write_message",
		"select * from get_stream_messages('a-3')": "function get_stream_messages",
		"select category('a-1')":                   "function category",
	} {
		st := step{sql: sql, args: writing(1, "a-1").args}

		require.Empty(t, a.do(t, st, modes[0], "").Error)
		require.Equal(t, "ERROR 42501 permission denied for "+refused, b.do(t, st, modes[0], "").Error)
	}
	require.Equal(t, answer{Columns: []string{"count 20 -1"}, Rows: []string{"0"}, Tag: "SELECT 1"}, b.do(t, step{sql: "select count(*) from messages"}, modes[0], ""))
}

func TestRoleWithoutRightsHasNone(t *testing.T) {
	t.Parallel()
	theirs, ours := pgtest.MessageDB(t), dibs(t)
	stranger := role(t, []string{theirs, ours}, "select '%s'")
	a, b := open(t, theirs, stranger, "message_store"), open(t, ours, stranger, "message_store")
	for _, sql := range []string{
		"select MS.write_message('x', 'a-1', 'T', '{}')", "select * from MS.messages", "select * from MS.get_stream_messages('a-1')", "select MS.category('a-1')", "select * from MS.stream_summary",
	} {
		want, got := a.do(t, step{sql: sql}, modes[0], "message_store."), b.do(t, step{sql: sql}, modes[0], "message_store.")

		require.Equal(t, answer{Error: "ERROR 42501 permission denied for schema message_store"}, want)
		require.Equal(t, want, got)
	}
}

func TestWhoWasGrantedEverythingStillForgesNothing(t *testing.T) {
	t.Parallel()
	database := dibs(t)
	user := role(t, []string{database}, "grant usage on schema message_store to %[1]s; grant all on all tables in schema message_store to %[1]s; grant all on all functions in schema message_store to %[1]s")
	s := open(t, database, user, "")
	require.Empty(t, s.do(t, writing(1, "a-1"), modes[0], "message_store.").Error)
	exec(t, connect(t, database), "alter role "+user+" set dibs.retention = 'on'") // which is for the functions that remove
	s = open(t, database, user, "")

	for sql, code := range map[string]string{
		"update MS.messages set type = 'x'":        "ERROR 42501",
		"delete from MS.messages":                  "",
		"update MS.stored_messages set type = 'x'": "ERROR 42501",
		"delete from MS.stored_messages":           "",
		"insert into MS.stored_messages (stream_name, position, type, id) values ('a-1', 41, 'T', gen_random_uuid())": "ERROR 42501",
		"update MS.settings set sql_condition = true":                                                                 "ERROR 55000",
		"delete from MS.settings": "ERROR 55000",
	} {
		got := s.do(t, step{sql: sql}, modes[0], "message_store.")
		if code != "" {
			require.Contains(t, got.Error, code, sql)
		}
	}

	admin := connect(t, database)
	require.Equal(t, []string{"0 T"}, all(t, admin, "select position || ' ' || type from dibs.messages"))
	require.False(t, one[bool](t, admin, "select sql_condition from dibs.settings"))
}

// message-db's columns have the collation of the database; ours have not.
func TestReportsAreInTheOrderOfTheDatabase(t *testing.T) {
	t.Parallel()
	conn := connect(t, migrateTo(t, pgtest.DatabaseInEnglish(t)))
	for _, name := range []string{"B", "a", "A", "b", "é", "f", "a:x", "ab"} {
		exec(t, conn, "select message_store.write_message(gen_random_uuid()::varchar, '"+name+"-1', '"+name+"', '{}')")
	}
	want := []string{"a", "A", "a:x", "ab", "b", "B", "é", "f"}
	require.Equal(t, want, all(t, conn, `select type collate "default" from dibs.messages order by 1`))
	require.NotEqual(t, want, all(t, conn, `select type from dibs.messages order by 1`))

	for _, sql := range []string{
		"select type from message_store.type_summary", "select type from message_store.type_stream_summary", "select type from message_store.type_category_summary",
		"select category from message_store.category_type_summary", "select category(stream_name) from message_store.stream_summary", "select category(stream_name) from message_store.stream_type_summary",
		"select type from (select * from message_store.type_summary order by message_count, type) t",
	} {
		exec(t, conn, "set search_path = message_store")
		require.Equal(t, want, all(t, conn, sql), sql)
	}
}

func TestOrdinaryTableIsNotReplaced(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.MessageDB(t))
	const functions = "select oid::regprocedure::text from pg_proc where pronamespace = 'message_store'::regnamespace order by 1"
	before := all(t, conn, functions)
	for range 2 {
		exec(t, conn, script(t))

		require.Equal(t, before, all(t, conn, functions))
		require.False(t, one[bool](t, conn, "select to_regclass('dibs.settings') is not null"))
	}
}

// The role is the server's, and other tests use it: so it is out of the way only in a
// transaction that is not committed.
func TestRoleThatIsMadeDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	connect(t, dibs(t)) // so that the role is there
	exec(t, conn, "begin")
	exec(t, conn, "alter role message_store rename to test_"+one[string](t, conn, "select md5(random()::text)"))
	exec(t, conn, script(t))

	require.Equal(t, []string{"idle_in_transaction_session_timeout=1min", "lock_timeout=10s"},
		all(t, conn, "select unnest(setconfig) from pg_db_role_setting where setrole = 'message_store'::regrole and setdatabase = 0 order by 1"))
	require.True(t, one[bool](t, conn, "select rolcanlogin from pg_roles where rolname = 'message_store'"))
	require.True(t, one[bool](t, conn, "select has_function_privilege('message_store', 'message_store.acquire_lock(varchar)', 'execute')"))
	exec(t, conn, "rollback")
}

// script returns the SQL that makes everything, for any client.
func script(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, migrations.PrintGoose(&b, nil))
	return b.String()
}

// A plan is kept for a session, so one that was made for an empty table has to be
// good when the table has grown.
func TestReadersUseTheIndexesFromTheFirstRow(t *testing.T) {
	t.Parallel()
	conn := connect(t, dibs(t))
	exec(t, conn, "begin; set local search_path = message_store")
	calls := strings.Join([]string{
		"select count(*) from get_stream_messages('a-1', 0, 10)", "select count(*) from get_category_messages('a', 1, 10)", "select count(*) from get_category_messages('a', 1, 10, 'c', 0, 2)",
		"select count(*) from get_last_stream_message('a-1')", "select count(*) from get_last_stream_message('a-1', 'T')", "select stream_version('a-1')", "select write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')",
	}, "; ")
	const scans = "select format('%s rows of %s', seq_tup_read, seq_scan) from pg_stat_xact_user_tables where relid = 'dibs.messages'::regclass"
	for range 7 {
		exec(t, conn, calls)
	}
	exec(t, conn, "select count(write_message(gen_random_uuid()::varchar, 'a-' || n % 50, 'T', '{}')) from generate_series(1, 2000) n")
	for range 7 {
		exec(t, conn, calls)
	}

	require.Equal(t, "0 rows of 0", one[string](t, conn, scans))
	exec(t, conn, "rollback")
}

func TestViewIsReadByItsIndexes(t *testing.T) {
	t.Parallel()
	conn := connect(t, dibs(t))
	exec(t, conn, "set search_path = message_store; set enable_bitmapscan = off; select count(write_message(gen_random_uuid()::varchar, 'a-' || n % 500, 'T', '{}')) from generate_series(1, 5000) n; analyze dibs.messages")
	plan := func(sql string) string { return strings.Join(all(t, conn, "explain (costs off) "+sql), "\n") }

	require.Contains(t, plan("select * from messages where stream_name = 'a-1' order by position"), "Index Scan using messages_stream")
	require.Contains(t, plan("select * from messages where stream_name = 'a-1' order by position"), "Index Cond: (stream_name = 'a-1'::text)")
	require.Contains(t, plan("select * from messages where id = '"+id(1)+"'"), "Index Scan using messages_id")

	const everything = "select * from messages where global_position > 4000 order by global_position limit 100"
	require.Contains(t, plan(everything), "Sort")
	exec(t, conn, "create index concurrently messages_global_position on dibs.messages (global_position)")
	require.Contains(t, plan(everything), "Index Scan using messages_global_position")
	require.NotContains(t, plan(everything), "Sort")

	exec(t, conn, "drop index dibs.messages_global_position")
	const last = "select max(global_position) from messages where category(stream_name) = 'a'"
	require.NotContains(t, plan(last), "Index Cond: ((split_part")
	exec(t, conn, "create index concurrently messages_split_category on dibs.messages (message_store.category(stream_name), global_position)")
	require.Contains(t, plan(last), "messages_split_category")
}

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
	theirs, ours := pgtest.MessageDB(t), dibs(t)
	user := member(t, theirs, ours)
	a, b := open(t, theirs, user, ""), open(t, ours, user, "")
	require.Equal(t, "ERROR 42883 function acquire_lock(character varying) does not exist", a.do(t, writing(1, "a-1"), modes[1], "message_store.").Error)
	require.Equal(t, answer{Columns: []string{"write_message 20 -1"}, Rows: []string{"0"}, Tag: "SELECT 1"}, b.do(t, writing(1, "a-1"), modes[1], "message_store."))
	for _, sql := range []string{
		"select position from MS.get_stream_messages('a-1')", "select position from MS.get_category_messages('a')", "select position from MS.get_last_stream_message('a-1')", "select MS.stream_version('a-1')", "select MS.is_category('a')",
	} {
		require.NotEmpty(t, b.do(t, step{sql: sql}, modes[0], "message_store.").Rows, sql)
	}
	require.Equal(t, a.do(t, writing(1, "a-1"), modes[1], "").Error, b.do(t, writing(1, "a-1"), modes[1], "").Error, "a name without the schema is found in neither")
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
