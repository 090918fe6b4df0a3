package messagedb_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// opened returns a database in which conditions are taken.
func opened(t *testing.T) string {
	t.Helper()
	database := dibs(t)
	exec(t, connect(t, database), "update dibs.settings set sql_condition = true")
	return database
}

func TestConditionsAreTheSameWhereTheyAreOpened(t *testing.T) {
	t.Parallel()
	theirs := pgtest.MessageDB(t)
	owner := connect(t, theirs)
	exec(t, owner, "alter database "+owner.Config().Database+" set message_store.sql_condition = 'on'")
	some := steps{ // and then they are only read
		writing(1, "a-1"), writing(2, "a-1", js(`{"correlationStreamName": "c-1", "x": "it's"}`)), writing(3, "a-2"), writing(4, "b-1"), writing(5, "a-1"),
		{sql: "select MS.write_message($1, 'a-1', 'U', $2)", args: []any{id(6), js(`{"n": 2}`)}},
	}
	for _, condition := range []string{
		"true", "false", "null", " true ", "position = 1", "messages.position = 1", "messages.global_position in (1, 2, 3)", "global_position > 2 and position < 9",
		"type = 'T' or type = 'U'", "false or true", "type = 'U' or true", "not (type = 'T')", "data->>'n' = '2'", `data @> '{"n": 1}'`, `metadata ? 'x'`, "metadata->>'x' = 'it''s'", "metadata is null",
		"time <= now() at time zone 'utc'", "id::text like '%3'", "id = '" + id(3) + "'", "category(stream_name) = 'a'", "message_store.category(stream_name) = 'a'", "cardinal_id(stream_name) = '1'",
		"stream_name like 'a-%'", "stream_name = 'b-1'", "type = $$T$$", "type = $q$T$q$", `type = E'\x54'`, `type = U&'\0054'`, "true /* ) or (true */", "true -- so\n", "\ntrue\n", "(true)", "((position) = (1))",
		"exists (select 1 from messages m where m.stream_name = messages.stream_name and m.position > messages.position)", "position = (select max(position) from messages)",
		"position between 1 and 2", "case when position = 1 then true else false end", "position is distinct from 1", "row(position, 1) = row(1, 1)", "position = any ('{1,2}')", "type ~ '^[TU]$' collate \"C\"",
		"(select true)", "(values (true))", "type = 'T' = true", "messages is not null", "messages.* is not null", "messages is null", "to_jsonb(messages) ? 'category'", "(select count(*) from jsonb_object_keys(to_jsonb(messages))) = 8",
		"row(messages.*)::text like '%a-1%'", "upper(type) = 'T'", "set_config('mine.x', 'y', true) = 'y'", "current_setting('mine.none', true) is null", "pg_advisory_xact_lock(1)::text = ''", "pg_sleep(0)::text = ''",
		"exists (select from get_stream_messages('a-1') s where s.position = messages.position)", "stream_version(stream_name) > 1", strings.Repeat("position >= 0 and ", 3000) + "true", strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000),
		"global_position >= $2 and $2 is not null", "$3 = 7", `"position" = 1`, "current_setting('server_version_num')::int > 1", "%s", "type = '%s'", "type like 'T%'",
		// None of these is one expression, or a boolean, and message-db says so too.
		"", " ", "1", "'t'", "'x'", "position", "no_such_column", "no_such_function()", "true;", ";", "(", ")", "true)", "true)) or ((true", "true)) --", "/* */", "true true", "true, true", "true as x",
		"1 / 0 = 1", "1 / (position - position) = 1", "'x'::int = 1", "count(*) > 0", "row_number() over () = 1", "generate_series(1, 2) = 1", "category = 'a'", "messages.category = 'a'", "stored.category = 'a'", "message is not null",
		"member_hash > 0", "correlation_category = 'c'", "grouping(type) = 0", "default", "true and", "not", "exists (select from no_such_table)",
		"true order by 1", "true limit 1", "true union select true", "end", "then true", "true then true end or case when true", "$9 is null",
	} {
		some = append(some,
			step{sql: row + "MS.get_category_messages($1, 1, 7, condition => $2)", args: []any{"a", condition}},
			step{sql: row + "MS.get_category_messages($1, 1, 7, null, 0, 1, $2)", args: []any{"a", condition}},
			step{sql: row + "MS.get_stream_messages($1, 1, 7, $2)", args: []any{"a-1", condition}},
		)
	}
	// These errors quote the rest of the statement, which is another.
	for _, condition := range []string{"true /*", "'", `"`, "$$", "$a$ true", "E'"} {
		some = append(some,
			step{sql: row + "MS.get_category_messages($1, condition => $2)", args: []any{"a", condition}, ours: quotes},
			step{sql: row + "MS.get_stream_messages($1, condition => $2)", args: []any{"a-1", condition}, ours: quotes},
		)
	}
	for condition, message := range map[string]string{
		"(true":                         "syntax error at end of input",
		"true -- so":                    "syntax error at end of input",
		"true) or (true":                `syntax error at or near ")"`,
		"stream_name = 'b-1') or (true": `syntax error at or near ")"`,
		"true) or (true) --":            "syntax error at end of input",
		"true) order by position --":    "syntax error at end of input",
		"select true":                   `syntax error at or near "select"`,
		"values (true)":                 `syntax error at or near "("`,
		"select true limit 1":           `syntax error at or near "select"`,
	} {
		deviation := fails("42601", message)
		some = append(some,
			step{sql: row + "MS.get_category_messages($1, condition => $2)", args: []any{"a", condition}, ours: deviation},
			step{sql: row + "MS.get_stream_messages($1, condition => $2)", args: []any{"a-1", condition}, ours: deviation},
		)
	}
	users := []way{{0, 0, ""}, {1, 1, "message_store."}, {2, 1, ""}} // a condition is a text in every mode
	if testkit.Long() {
		users = ways()
	}
	compareIn(t, theirs, opened(t), []kase{{"a condition is one expression about a message", some}}, users)
}

var rest = regexp.MustCompile(`\)\n    ORDER BY\n      (\w+) ASC\n      LIMIT\n        \$3`)

func quotes(theirs answer) answer {
	theirs.Error = rest.ReplaceAllString(theirs.Error, ")) order by $1 limit nullif($$3, -1)")
	return theirs
}

// message-db's columns have the collation of the database; ours have not.
func TestConditionsCompareTextsAsTheDatabaseDoes(t *testing.T) {
	t.Parallel()
	theirs, ours := pgtest.DatabaseInEnglish(t), migrateTo(t, pgtest.DatabaseInEnglish(t))
	pgtest.InstallMessageDB(t, theirs, pgtest.MessageDBNewest)
	exec(t, connect(t, ours), "update dibs.settings set sql_condition = true")
	var names steps
	for n, name := range []string{"B", "a", "A", "b", "é", "É", "f"} {
		names = append(names, step{sql: "select MS.write_message($1, $2, $3, '{}')", args: []any{id(n), "a-" + name, name}})
	}
	var sessions []session
	for _, database := range []string{theirs, ours} {
		sessions = append(sessions, open(t, database, "message_store", ""))
	}
	sessions[0].do(t, step{sql: "set message_store.sql_condition = 'on'"}, modes[0], "")
	for _, st := range names {
		require.Equal(t, sessions[0].do(t, st, modes[0], ""), sessions[1].do(t, st, modes[0], ""))
	}
	for _, condition := range []string{"type < 'B'", "stream_name > 'a-b'", "type ilike 'É'", "lower(type) = 'é'", "type ~* 'é'", "type between 'a' and 'f'", `type collate "C" < 'B'`, "messages.type > 'e'", "upper(stream_name) = 'A-É'"} {
		st := step{sql: "select type from get_category_messages('a', condition => $1)", args: []any{condition}}
		want, got := sessions[0].do(t, st, modes[1], ""), sessions[1].do(t, st, modes[1], "")

		require.Empty(t, want.Error, condition)
		require.NotEmpty(t, want.Rows, condition)
		require.Equal(t, want, got, condition)
	}
}

// A condition chooses among the rows that there would be without it, and can do
// nothing else that its caller could not do anyway.
func TestConditionCannotLeaveItsPlace(t *testing.T) {
	t.Parallel()
	database := opened(t)
	s := open(t, database, "message_store", "message_store")
	admin := connect(t, database)
	exec(t, admin, "create table public.probe (n int); grant all on public.probe to public")
	for i, stream := range []string{"a-1", "b-1", "b-2", "a-2"} {
		require.Empty(t, s.do(t, writing(i+1, stream), modes[0], "").Error)
	}

	attacks := []string{
		// The condition is in two parentheses.
		"true)) or ((true", "true)) or true --", "true)) --", "true)) union all select (message).* from stored_messages --", "true)); insert into public.probe values (1); select ((true", "true)) or exists (select from stored_messages where (true",
		"true)) or (exists (select from stored_messages where (true", "true) or (stored.stream_name = stored.stream_name", "stored.stream_name = stored.stream_name", "true) from stored_messages where (true", "true group by type having (true", "true) messages, stored_messages where (true",
		"true) or (true", "true) or true --", "true) --", "1=1) or (1=1", "true) union all select (message).* from stored_messages where (true", "true) union all select (message).* from stored_messages --",
		"true); insert into public.probe values (1); select (true", "true); insert into public.probe values (1) --", "true; insert into public.probe values (1)", "true then true end; insert into public.probe values (1); select case when true",
		"true then true end from messages; insert into public.probe values (1); select case when true", "true) limit 1; insert into public.probe values (1); --", "true) order by position; drop view message_store.messages; --",
		"true /*", "*/ true /*", "true */", "/* ' */ true", "true -- \n) or (true", "true --\n) or (true --\n", "true /* ) */ ) or ( /* ( */ true", "$$) or ($$ = $$", "'true) or (true", "true) or ('a' = 'a", "type <> ') or case when ", "true) or case when type <> '",
		`"`, `true) or ("type" = "type`, `E'\') or (true --'`, `'\') or (true --'`, `'a' 'b`, "'a'\n'b'", "U&'\\0027) or (true --'", "U&'x' UESCAPE '", "$a$ ) or ( $a$ = $a$", "$1) or ($1 is not null", "true)::boolean or (true",
		"true) is true or (true", "true) and exists (select from stored_messages where true) or (true", "with x as (insert into public.probe values (1) returning 1) select true", "exists (with x as (insert into public.probe values (1) returning 1) select from x)",
		"(select true) or true); select (true", "case when true then true end) or (true", "true else true end or case when true", "true then true when true", "when true then true", "true collate \"C\") or (true", "true) for update --", "true) into public.stolen --",
		"row(true) or (true)", "(true, true)", "true, true", "*", "messages.*", "array(select true)", "true as x", "lateral (true)", "all (true)", "overlaps", "true) overlaps (true", "1, 2) overlaps (1, 2",
	}
	tokens := []string{
		"(", ")", "'", "''", `"`, "$$", "$x$", "--", "\n", "/*", "*/", ";", "true", "or", "and", "then", "else", "end", "case", "when", "select", "union all select (message).* from stored_messages", "E'", `\`, "U&'", "uescape",
		",", "$1", "::boolean", "limit 1", "order by 1", "insert into public.probe values (1)", "1 = 1", "stream_name = 'b-1'", "is null", "not", "where", "from stored_messages",
	}
	random := rand.New(rand.NewPCG(1, 2))
	drawn := 400
	if testkit.Long() {
		drawn = 4000
	}
	t.Logf("%d random conditions; 4000 in the long tier", drawn)
	for i := range drawn {
		var b strings.Builder
		for range 1 + random.IntN([]int{9, 3}[i%2]) { // of the short ones more are valid
			b.WriteString(tokens[random.IntN(len(tokens))])
			b.WriteString([]string{"", " "}[random.IntN(2)])
		}
		attacks = append(attacks, b.String())
	}
	taken := 0
	for _, settings := range []string{"standard_conforming_strings = on", "standard_conforming_strings = off; set backslash_quote = on"} {
		exec(t, admin, "truncate public.probe")
		s := open(t, database, "message_store", "message_store")
		require.Empty(t, s.do(t, step{sql: "set escape_string_warning = off; set " + settings}, modes[0], "").Error)
		for _, condition := range attacks {
			got := s.do(t, step{sql: "select id from get_category_messages($1, condition => $2)", args: []any{"a", condition}}, modes[1], "")
			if got.Error == "" {
				taken++
			}
			require.Subset(t, []string{id(1), id(4)}, got.Rows, "%q", condition)
			got = s.do(t, step{sql: "select id from get_stream_messages($1, condition => $2)", args: []any{"a-1", condition}}, modes[1], "")
			require.Subset(t, []string{id(1)}, got.Rows, "%q", condition)
		}
		require.Zero(t, one[int](t, admin, "select count(*) from public.probe"), "something was inserted")
	}
	require.Greater(t, taken, drawn/80, "some are valid")
	require.True(t, one[bool](t, admin, "select to_regclass('message_store.messages') is not null"))
}

func TestConditionHasTheRightsOfItsCaller(t *testing.T) {
	t.Parallel()
	database := opened(t)
	s := open(t, database, "message_store", "")
	require.Empty(t, s.do(t, writing(1, "a-1"), modes[0], "").Error)
	for _, call := range []string{"get_category_messages('a', condition => $1)", "get_stream_messages('a-1', condition => $1)"} {
		for condition, want := range map[string]string{
			"current_user = 'message_store' and session_user = 'message_store'": "",
			"exists (select from dibs.messages)":                                "ERROR 42501 permission denied for schema dibs",
			"exists (select from pg_authid)":                                    "ERROR 42501 permission denied for table pg_authid",
			"pg_read_file('/etc/passwd') is not null":                           "ERROR 42501 permission denied for function pg_read_file",
			"set_config('role', 'dibs_owner', false) is not null":               `ERROR 42501 permission denied to set role "dibs_owner"`,
		} {
			got := s.do(t, step{sql: "select count(*) from message_store." + call, args: []any{condition}}, modes[1], "")

			require.Equal(t, want, got.Error, condition)
			if want == "" {
				require.Equal(t, []string{"1"}, got.Rows)
			}
		}
	}
}

// A function of the caller's may be planned with a constant, and so be run before the
// second context was parsed: with the caller's rights too.
func TestWhatIsRunWhileAConditionIsParsedHasTheRightsOfItsCaller(t *testing.T) {
	t.Parallel()
	database := opened(t)
	admin := connect(t, database)
	exec(t, admin, "grant create on schema public to message_store")
	s := open(t, database, "message_store", "")
	require.Empty(t, s.do(t, writing(1, "a-1"), modes[0], "").Error)
	require.Empty(t, s.do(t, step{sql: "create function public.spy() returns boolean language plpgsql immutable as $$ begin raise notice '%', current_user; return true; end $$"}, modes[0], "").Error)

	got := s.do(t, step{sql: "select id from message_store.get_category_messages('a', condition => 'public.spy()) or (public.spy()')"}, modes[0], "")

	require.Contains(t, got.Error, "ERROR 42601")
	for _, notice := range got.Notices {
		require.Equal(t, "NOTICE 00000 message_store", notice)
	}
}

func TestOnlyTheOwnerOpensConditions(t *testing.T) {
	t.Parallel()
	database := dibs(t)
	admin := connect(t, database)
	s := open(t, database, "message_store", "")
	const get = "select count(*) from message_store.get_category_messages('a', condition => 'true')"
	const closed = "ERROR P0001 Retrieval with SQL condition is not activated"
	for _, sql := range []string{"set message_store.sql_condition = 'on'", "set message_store.sql_condition = ''", "create temp table settings as select true as sql_condition, false as strict_names", "set search_path = pg_temp, message_store"} {
		require.Empty(t, s.do(t, step{sql: sql}, modes[0], "").Error)
		require.Equal(t, closed, s.do(t, step{sql: get}, modes[0], "").Error, sql)
	}
	require.Contains(t, s.do(t, step{sql: "update message_store.settings set sql_condition = true"}, modes[0], "").Error, "ERROR 55000")
	require.Contains(t, s.do(t, step{sql: "update dibs.settings set sql_condition = true"}, modes[0], "").Error, "ERROR 42501")

	exec(t, admin, "set role dibs_owner; update dibs.settings set sql_condition = true; reset role")
	require.Empty(t, s.do(t, step{sql: get}, modes[0], "").Error)
	require.Equal(t, []string{"t | f"}, s.do(t, step{sql: "select * from message_store.settings"}, modes[0], "").Rows, "a client may look")

	exec(t, admin, "delete from dibs.settings")
	require.Equal(t, closed, s.do(t, step{sql: get}, modes[0], "").Error)
	exec(t, admin, "insert into dibs.settings default values")
	require.ErrorContains(t, testkit.ErrorOf(admin.Exec(t.Context(), "insert into dibs.settings values (true, true)")), "settings_one_row")
}

func TestStrictNamesRefuseWhatAppendWould(t *testing.T) {
	t.Parallel()
	database := dibs(t)
	s := open(t, database, "message_store", "")
	n := 0
	put := func(stream, kind, data any) string {
		n++
		return s.do(t, step{sql: "select write_message($1, $2, $3, $4)", args: []any{id(n), stream, kind, data}}, modes[1], "").Error
	}
	cases := []struct{ stream, kind, data, wrong any }{
		{"a-1", "T", js(`{}`), nil},
		{"a:command-1+2", "T", nil, nil},
		{"a", "T", js(`{}`), "stream_name: must be a stream name"},
		{"", "T", js(`{}`), "stream_name: must be a stream name"},
		{"a-", "T", js(`{}`), "stream_name: must be a stream name"},
		{"a-1\n", "T", js(`{}`), "stream_name: must be a stream name"},
		{"a-" + strings.Repeat("1", 254), "T", js(`{}`), "stream_name: must be a stream name"},
		{"a-2", "", js(`{}`), "type: must be a message type"},
		{"a-2", " T", js(`{}`), "type: must be a message type"},
		{"a-2", "T", js(`[]`), "data: must be a JSON object that can be stored"},
		{"a-2", "T", js(`"x"`), "data: must be a JSON object that can be stored"},
		{"a-2", "T", js(fmt.Sprintf(`{"a": %q}`, strings.Repeat("x", 983040))), "data: must be a JSON object that can be stored"},
	}
	for _, c := range cases {
		require.Empty(t, put(c.stream, c.kind, c.data), "%v", c)
	}
	exec(t, connect(t, database), "update dibs.settings set strict_names = true")

	for _, c := range cases {
		want := ""
		if wrong, ok := c.wrong.(string); ok {
			want = "ERROR P0001 invalid " + wrong
		}
		require.Equal(t, want, put(c.stream, c.kind, c.data), "%.100v", c)
	}
	require.Equal(t, "ERROR P0001 invalid stream_name: must be a stream name", s.do(t, step{sql: "insert into messages (stream_name, type) values ('a', 'T')"}, modes[0], "").Error)
}

// The owner opens conditions for all; a session may close them for itself, as in message-db.
func TestSessionClosesConditionsForItself(t *testing.T) {
	t.Parallel()
	ours := dibs(t)
	exec(t, connect(t, ours), "update dibs.settings set sql_condition = true")
	s := open(t, ours, "message_store", "")
	for _, call := range []string{"select from get_stream_messages('a-1', condition => 'true')", "select from get_category_messages('a', condition => 'true')"} {
		require.Empty(t, s.do(t, step{sql: call}, modes[0], "").Error)
		for _, value := range []string{"off", "false", "no"} {
			s.do(t, step{sql: "set message_store.sql_condition = '" + value + "'"}, modes[0], "")
			require.Contains(t, s.do(t, step{sql: call}, modes[0], "").Error, "Retrieval with SQL condition is not activated", value)
		}
		for _, open := range []string{"set message_store.sql_condition = 'on'", "set message_store.sql_condition = ''", "reset message_store.sql_condition"} {
			s.do(t, step{sql: open}, modes[0], "")
			require.Empty(t, s.do(t, step{sql: call}, modes[0], "").Error, open)
		}
	}
}
