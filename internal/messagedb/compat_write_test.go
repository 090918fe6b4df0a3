package messagedb_test

import (
	"strings"
	"testing"
)

// The messages after a case has written.
var written = step{sql: "select id, stream_name, type, position, global_position, data, metadata from MS.messages order by global_position"}

func writing(n int, stream string, more ...any) step {
	st := step{sql: "select MS.write_message($1, $2, $3, $4)", args: []any{id(n), stream, "T", js(`{"n": 1}`)}}
	for i, arg := range more {
		st.sql = strings.TrimSuffix(st.sql, ")") + ", $" + string(rune('5'+i)) + ")"
		st.args = append(st.args, arg)
	}
	return st
}

func version(n int, stream string, expected any) step { return writing(n, stream, nil, expected) }

// long returns a name that does not compress.
func long(n int) string {
	var b strings.Builder
	for state := uint32(1); b.Len() < n; {
		state = state*1664525 + 1013904223
		b.WriteByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."[state>>26])
	}
	return b.String()
}

func TestWriteMessageIsTheSame(t *testing.T) {
	t.Parallel()
	compare(t, []kase{
		{"it returns the position, and not the global position", steps{
			writing(1, "a-1"), writing(2, "b-1"), writing(3, "a-1"), written,
		}},
		{"parameters have names and defaults", steps{
			{sql: "select MS.write_message(expected_version => -1, data => $1, type => 'T', stream_name => $2, id => $3, metadata => $4)", args: []any{js(`{}`), "a-1", id(1), js(`{"b": 2}`)}},
			{sql: "select MS.write_message(id => $1, stream_name => $2, type => $3, data => $4)", args: []any{id(2), "a-1", "T", js(`{}`)}},
			{sql: "select * from MS.write_message($1, $2, $3, $4, expected_version => $5)", args: []any{id(3), "a-1", "T", js(`{}`), 1}},
			{sql: "select MS.write_message($1, $2, $3)", args: []any{id(4), "a-1", "T"}},
			{sql: "select MS.write_message($1, $2, $3, $4, $5, $6, null)", args: []any{id(4), "a-1", "T", nil, nil, nil}},
			written,
		}},
		{"six untyped parameters are enough for one function to be found", steps{
			{sql: "select MS.write_message($1, $2, $3, $4, $5, $6)", args: []any{id(1), "a-1", "T", js(`{}`), js(`{"x": 1}`), -1}},
			{sql: "select MS.write_message($1, $2, $3, $4, $5, $6)", args: []any{id(2), "a-1", "T", nil, nil, nil}},
			written,
		}},
		{"arguments are of types that become its own, or no function is found", steps{
			{sql: "select MS.write_message($1::text, $2::name, $3::char(3), $4::jsonb, null, -1::smallint)", args: []any{id(1), "a-1", "T", js(`{}`)}},
			{sql: "select MS.write_message($1::uuid, 'a-1', 'T', '{}')", args: []any{id(2)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}'::json)", args: []any{id(2)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}'::text)", args: []any{id(2)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}', null, 0::numeric)", args: []any{id(2)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}', null, '0')", args: []any{id(2)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}', expected => 0)", args: []any{id(2)}},
			{sql: "select MS.write_message(id := $1, stream_name := 'a-1', \"type\" := 'T', data := '{}')", args: []any{id(3)}},
			{sql: "call MS.write_message($1, 'a-1', 'T', '{}')", args: []any{id(4)}},
			written,
		}},
		{"a savepoint takes back what was written after it", steps{
			{sql: "begin"}, writing(1, "a-1"), {sql: "savepoint s"}, writing(1, "a-1"), {sql: "rollback to s"}, version(2, "a-1", 1), {sql: "rollback to s"}, version(2, "a-1", 0), {sql: "commit"}, written,
		}},
		{"an expected version that is not the version is an error with both in it", steps{
			version(1, "a-1", 0), version(1, "a-1", -1), version(2, "a-1", -1), version(2, "a-1", 1), version(2, "a-1", 0), version(3, "a-1", 0), written,
		}},
		{"no version is checked for NULL, and no other number is special", steps{
			version(1, "a-1", nil), version(2, "a-1", -2), version(2, "a-1", -3), version(2, "b-1", -2), version(2, "a-1", 9223372036854775807), version(2, "a-1", -9223372036854775808), version(2, "a-1", nil), written,
		}},
		{"the version is checked before the id is read", steps{
			version(1, "a-1", -1),
			{sql: "select MS.write_message('no id', 'a-1', 'T', '{}', null, -1)"},
			{sql: "select MS.write_message('no id', 'a-1', 'T', '{}', null, 0)"},
			{sql: "select MS.write_message('no id', 'a-1', 'T', '{}')"},
			{sql: "select MS.write_message('', 'a-1', null, '{}')"},
			{sql: "select MS.write_message(null, 'a-1', 'T', '{}', null, -1)"},
			{sql: "select MS.write_message(null, null, 'T', '{}', null, 0)"},
			{sql: "select MS.write_message('no id', null, 'T', '{}', null, -1)"},
			written,
		}},
		{"an id is whatever PostgreSQL takes for a uuid, and comes back in lower case", steps{
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}')", args: []any{"{ABCDEF00-0000-4000-8000-00000000000A}"}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}')", args: []any{"ABCDEF0000004000800000000000000B"}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}')", args: []any{"abcdef00-0000-4000-8000-00000000000a"}},
			{sql: "select MS.write_message($1, 'a-1', 'T', '{}')", args: []any{"00000000-0000-0000-0000-000000000000"}},
			{sql: "select id from MS.get_stream_messages('a-1')"},
			written,
		}},
		{"NULL is no id, stream or type, but data and metadata", steps{
			{sql: "select MS.write_message($1, $2, $3, $4)", args: []any{nil, "a-1", "T", js(`{}`)}},
			{sql: "select MS.write_message($1, $2, $3, $4)", args: []any{id(1), nil, "T", js(`{}`)}},
			{sql: "select MS.write_message($1, $2, $3, $4)", args: []any{id(1), "a-1", nil, js(`{}`)}},
			{sql: "select MS.write_message($1, $2, $3, $4)", args: []any{nil, nil, nil, nil}},
			{sql: "select MS.write_message($1, $2, $3, $4, $5, $6)", args: []any{nil, nil, nil, nil, nil, -1}},
			{sql: "select MS.write_message($1, $2, $3, $4, $5, $6)", args: []any{nil, nil, nil, nil, nil, 0}},
			{sql: "select MS.write_message($1, $2, $3, $4, $5)", args: []any{id(1), "a-1", "T", nil, nil}},
			written,
		}},
		{"a conflict draws no global position, and what fails later does", steps{
			version(1, "a-1", nil), version(2, "a-1", 7), version(2, "a-1", nil), writing(1, "b-1"), writing(3, "b-1"), written,
		}},
		{"the same id again is a duplicate of messages_id, in whatever stream and with the same content", steps{
			writing(1, "a-1"), writing(1, "a-1"), writing(1, "b-1"), version(1, "a-1", 0), version(1, "a-1", -1), version(1, "a-1", 1), written,
		}},
		{"data is any JSON", steps{
			{sql: "select MS.write_message($1, 'a-1', 'T', $2, $3)", args: []any{id(1), js(`[1, 2]`), js(`[]`)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', $2, $3)", args: []any{id(2), js(`"text"`), js(`1`)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', $2, $3)", args: []any{id(3), js(`null`), js(`null`)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', $2, $3)", args: []any{id(4), js(`{"b":1e3,"a":"é\u00e9","a":  2}`), js(`{"correlationStreamName": 5}`)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', $2)", args: []any{id(5), js(`{"a": "\u0000"}`)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', $2)", args: []any{id(5), js(`{`)}},
			{sql: "select MS.write_message($1, 'a-1', 'T', $2)", args: []any{id(5), js(``)}},
			{sql: "select data, metadata, pg_typeof(data) from MS.get_stream_messages('a-1')"},
			written,
		}},
		{"a stream may have any name, and a type too", steps{
			writing(1, ""), writing(2, "a"), writing(3, "-"), writing(4, "-1"), writing(5, "a-"), writing(6, "a-1+2+3-4"), writing(7, " é\n\t"), writing(8, ""), writing(9, "a:b:c-1"),
			{sql: "select MS.write_message($1, 'a-1', $2, '{}')", args: []any{id(10), ""}},
			{sql: "select MS.write_message($1, 'a-1', $2, '{}')", args: []any{id(11), strings.Repeat("t", 3000)}},
			{sql: "select stream_name, MS.category(stream_name), MS.stream_version(stream_name) from MS.messages order by global_position"},
			written,
		}},
		{"a stream name that no index holds is an error", steps{
			writing(1, "a-"+long(2600)), writing(2, "a-"+long(2800)), writing(3, "a-"+strings.Repeat("1", 2800)), {sql: "select count(*) from MS.messages"},
		}},
		{"a correlation that message-db's index does not hold is written", steps{
			{
				sql: writing(1, "a-1", nil).sql, args: append(writing(1, "a-1").args, js(`{"correlationStreamName": "`+long(3000)+`-1"}`)),
				ours: func(answer) answer {
					return answer{Columns: []string{"write_message 20 -1"}, Rows: []string{"0"}, Tag: "SELECT 1"}
				},
			},
		}},
		{"a version is lost and won in a block with an exception, and goes on", steps{
			{sql: "do $do$ begin perform MS.write_message('" + id(1) + "', 'a-1', 'T', '{}', null, -1); perform MS.write_message('" + id(2) + "', 'a-1', 'T', '{}', null, -1); exception when raise_exception then raise notice '% %', sqlstate, sqlerrm; end $do$"},
			version(2, "a-1", -1), written,
		}},
		{"messages of one transaction have its time", steps{
			{sql: "set timezone = 'Asia/Kolkata'"},
			{sql: "begin"},
			writing(1, "a-1"), writing(2, "a-1"), writing(3, "b-1"),
			{sql: "select count(distinct time), bool_and(time = now() at time zone 'utc') from MS.messages"},
			{sql: "select bool_and(time = now() at time zone 'utc'), pg_typeof(max(time)) from MS.get_category_messages('a')"},
			{sql: "rollback"},
			written,
		}},
		{"a batch is several calls in a transaction, and an error undoes it", steps{
			{sql: "begin"}, writing(1, "a-1"), version(2, "a-1", 0), version(3, "a-1", 0), writing(4, "a-1"), {sql: "commit"}, written,
		}},
		{"types that begin with dibs: are ours", steps{
			{sql: "select MS.write_message($1, 'a-1', 'dibs:Tombstone', '{}')", args: []any{id(1)}, ours: fails("P0001", "invalid type: must be a message type")},
			{sql: "select MS.write_message($1, 'b-1', 'dibs', '{}')", args: []any{id(2)}},
		}},
	})
}

func TestNamesAndHashesAreTheSame(t *testing.T) {
	t.Parallel()
	all := "select MS.category(%s), MS.is_category(%s), MS.id(%s), MS.cardinal_id(%s), MS.hash_64(%s)"
	var cases []kase
	for _, name := range []any{
		nil, "", "a", "a-", "-a", "-", "--", "a-1", "a-1-2", "a-1+2", "a-1+2+3", "a-+2", "a-1+", "a+b-1", "a:b", "a:b+c-1", "+", "a+1", "é-ü+ß", " ", "a - 1",
		"someStream", "account", "account:command", "123", "abc", "1", "2", "é", strings.Repeat("x", 5000),
	} {
		cases = append(cases, kase{"names", steps{{sql: strings.ReplaceAll(all, "%s", "$1"), args: []any{name}}}})
	}
	compare(t, append(cases, []kase{
		{"parameters have names", steps{
			{sql: "select MS.category(stream_name => $1), MS.is_category(stream_name => $1), MS.id(stream_name => $1), MS.cardinal_id(stream_name => $1), MS.hash_64(value => $1), MS.stream_version(stream_name => $1), MS.acquire_lock(stream_name => $1)", args: []any{"a-1+2"}},
		}},
		{"hash_64 is the first half of the MD5", steps{
			{sql: `select MS.hash_64('someStream') = 2053039834977696644, MS.hash_64('account') = -2132379389342958165, MS.hash_64('account:command') = 4331363904667975395,
				MS.hash_64('') = -3162216497309240828, MS.hash_64('123') = 2318431741638412123, MS.hash_64('abc') = -8070080442485551184, MS.hash_64('1') = -4266524885998034046,
				MS.hash_64('2') = -4026655064267673757, MS.hash_64('é') = 7412306613632936882`},
		}},
		{"acquire_lock returns the hash of the category", steps{
			{sql: "select MS.acquire_lock($1) = MS.hash_64($2)", args: []any{"account-1", "account"}},
			{sql: "select MS.acquire_lock($1), MS.acquire_lock($2), MS.acquire_lock($3)", args: []any{"account", "", nil}},
			{sql: "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"},
			{sql: "begin"},
			{sql: "select MS.acquire_lock($1), MS.acquire_lock($2)", args: []any{"account-1", nil}},
			{sql: "select count(*), max(mode) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"},
			{sql: "commit"},
		}},
		{"the version is 1.3.0", steps{{sql: "select MS.message_store_version()"}, {sql: "select * from MS.message_store_version()"}}},
		{"stream_version is the last position, or NULL", steps{
			writing(1, "a-1"), writing(2, "a-1"), writing(3, "a"),
			{sql: "select MS.stream_version($1), MS.stream_version($2), MS.stream_version($3), MS.stream_version($4)", args: []any{"a-1", "a-2", "a", nil}},
		}},
		{"functions of names may stand in an index or a filter", steps{
			writing(1, "a-1"), writing(2, "b-1"),
			{sql: "select max(global_position) from MS.messages where MS.category(stream_name) = $1", args: []any{"a"}},
			{sql: "select stream_name from MS.messages where MS.category(stream_name) = $1 and MS.is_category(stream_name) is false order by MS.hash_64(MS.cardinal_id(stream_name))", args: []any{"b"}},
		}},
	}...))
}
