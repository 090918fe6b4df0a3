package messagedb_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// All but the time, which differs.
const row = "select id, stream_name, type, position, global_position, data, metadata, time is not null from "

// correlated writes a message with a correlation stream.
func correlated(n int, stream string, correlation any) step {
	return writing(n, stream, js(fmt.Sprintf(`{"correlationStreamName": %s}`, correlation)))
}

var threeMessages = steps{writing(1, "a-1"), writing(2, "a-2"), writing(3, "a-1"), correlated(4, "a-1", `"c-1"`), writing(5, "b-1")}

func after(before steps, then ...step) steps { return append(append(steps{}, before...), then...) }

func TestGetStreamMessagesIsTheSame(t *testing.T) {
	t.Parallel()
	const get = row + "MS.get_stream_messages"
	compare(t, []kase{
		{"rows have eight columns, of which data and metadata are text", after(threeMessages,
			step{sql: "select * from MS.get_stream_messages('a-3')"},
			step{sql: "select MS.get_stream_messages('a-3')"},
			step{sql: "select pg_typeof(m.*)::text in ('message', 'message_store.message') from MS.get_stream_messages('a-1') m"},
			step{sql: "select data::jsonb, metadata::jsonb, pg_typeof(data), pg_typeof(metadata), pg_typeof(id), pg_typeof(time) from MS.get_stream_messages('a-1')"},
			step{sql: get + "($1)", args: []any{"a-1"}},
		)},
		{"positions are inclusive and ascend", after(threeMessages,
			step{sql: get + "($1, $2)", args: []any{"a-1", 0}},
			step{sql: get + "($1, $2)", args: []any{"a-1", 1}},
			step{sql: get + "($1, $2)", args: []any{"a-1", 2}},
			step{sql: get + "($1, $2)", args: []any{"a-1", 3}},
			step{sql: get + "($1, $2)", args: []any{"a-1", -5}},
			step{sql: get + "($1, $2, $3)", args: []any{"a-1", 1, 1}},
		)},
		{"NULL is the default", after(threeMessages,
			step{sql: get + "($1, $2, $3, $4)", args: []any{"a-1", nil, nil, nil}},
			step{sql: get + "(stream_name => $1, position => $2, batch_size => $3, condition => $4)", args: []any{"a-1", 1, 2, nil}}, // a syntax error
			step{sql: get + `(stream_name => $1, "position" => $2, batch_size => $3, condition => $4)`, args: []any{"a-1", 1, 2, nil}},
			step{sql: get + `(stream_name := $1, "position" := $2)`, args: []any{"a-1", 1}},
			step{sql: get + "(batch_size => $1, stream_name => $2)", args: []any{1, "a-1"}},
		)},
		{"-1 is no limit, 0 no rows, and other negatives fail", after(threeMessages,
			step{sql: get + "($1, 0, $2)", args: []any{"a-1", -1}},
			step{sql: get + "($1, 0, $2)", args: []any{"a-1", 0}},
			step{sql: get + "($1, 0, $2)", args: []any{"a-1", -2}},
			step{sql: get + "($1, 0, $2)", args: []any{"a-3", -2}},
			step{sql: get + "($1, 0, $2)", args: []any{"a-1", 9223372036854775807}},
		)},
		{"a name may be longer than any that is written", steps{
			writing(1, "a-1"),
			{sql: get + "($1)", args: []any{"a-" + long(9000)}},
			{sql: row + "MS.get_category_messages($1)", args: []any{long(9000)}},
			{sql: row + "MS.get_category_messages('a', correlation => $1)", args: []any{long(9000)}},
			{sql: row + "MS.get_last_stream_message($1)", args: []any{"a-" + long(9000)}},
		}},
		{"a statement is prepared once, and the table changes", after(threeMessages,
			step{sql: "prepare page as select stream_name, position from MS.get_stream_messages($1, $2, $3)"},
			step{sql: "prepare pages as select stream_name, position from MS.get_category_messages($1, $2, $3)"},
			step{sql: "execute page('a-1', 0, 2)"}, step{sql: "execute pages('a', 0, 9)"}, writing(9, "a-1"),
			step{sql: "execute page('a-1', 1, 9)"}, step{sql: "execute pages('a', 1, 9)"}, step{sql: "deallocate all"},
		)},
		{"a cursor goes over the rows there were", after(threeMessages,
			step{sql: "begin"}, step{sql: "declare c cursor with hold for select stream_name, position from MS.get_category_messages('a')"}, step{sql: "fetch 1 from c"}, writing(9, "a-1"), step{sql: "commit"}, step{sql: "fetch all from c"}, step{sql: "close c"},
		)},
		{"a category is no stream, and an unknown stream has no rows", after(threeMessages,
			step{sql: get + "($1)", args: []any{"a"}},
			step{sql: get + "($1)", args: []any{""}},
			step{sql: get + "($1)", args: []any{nil}},
			step{sql: get + "($1, -1, -5, 'x')", args: []any{"a"}},
			step{sql: get + "($1)", args: []any{"a-"}},
			step{sql: get + "($1)", args: []any{"unknown-1"}},
		)},
		{"a condition is refused", after(threeMessages,
			step{sql: get + "($1, condition => $2)", args: []any{"a-1", "position = 1"}},
			step{sql: get + "($1, -1, -5, $2)", args: []any{"a-1", ""}},
			step{sql: get + "($1, condition => $2)", args: []any{"a", "position = 1"}},
		)},
		{"a session does not open conditions", after(threeMessages,
			step{sql: "set message_store.sql_condition = 'off'"},
			step{sql: get + "($1, condition => $2)", args: []any{"a-1", "position = 1"}},
			step{sql: "set message_store.sql_condition = 'on'"},
			step{sql: get + "($1, condition => $2)", args: []any{"a-1", "position = 1"}, ours: fails("P0001", "Retrieval with SQL condition is not activated")},
		)},
	})
}

// Many are written, so it is run in one way alone.
func TestNoMoreThanAThousandComeByDefault(t *testing.T) {
	t.Parallel()
	compareIn(t, pgtest.MessageDB(t), dibs(t), []kase{
		{"no more than 1000 come by default", steps{
			{sql: "select count(MS.write_message(md5(n::text), 'a-1', 'T', '{}')) from generate_series(1, 1010) n"},
			{sql: "select count(*), min(position), max(position) from MS.get_stream_messages('a-1')"},
			{sql: "select count(*), min(position), max(position) from MS.get_stream_messages('a-1', 5, null)"},
			{sql: "select count(*), min(position), max(position) from MS.get_stream_messages('a-1', 5, -1)"},
			{sql: "select count(*), min(global_position), max(global_position) from MS.get_category_messages('a')"},
			{sql: "select count(*), min(global_position), max(global_position) from MS.get_category_messages('a', 5, -1)"},
		}},
	}, []way{{0, 1, ""}})
}

func TestGetCategoryMessagesIsTheSame(t *testing.T) {
	t.Parallel()
	const get = row + "MS.get_category_messages"
	var groups, odd steps
	for n := range 10 {
		groups = append(groups, writing(n+1, fmt.Sprintf("g-%d", n+1)), writing(n+21, fmt.Sprintf("g-%d+%d", n+1, n)))
	}
	for n, name := range []string{"g", "g-", "g-+x", "g-++", "g--", "g-+", "g-1+", "g--1", "g", "g-"} {
		odd = append(odd, writing(n+1, name))
	}
	members := func(sizes ...int) (s steps) {
		for _, size := range sizes {
			for member := range size {
				s = append(s, step{sql: "select stream_name from MS.get_category_messages($1, 0, 1000, null, $2, $3)", args: []any{"g", member, size}})
			}
		}
		return s
	}
	compare(t, []kase{
		{"rows have eight columns", after(threeMessages,
			step{sql: "select * from MS.get_category_messages('none')"},
			step{sql: get + "($1)", args: []any{"a"}},
		)},
		{"positions are inclusive, ascend, and NULL is the default", after(threeMessages,
			step{sql: get + "($1, $2)", args: []any{"a", 0}},
			step{sql: get + "($1, $2)", args: []any{"a", 2}},
			step{sql: get + "($1, $2)", args: []any{"a", 3}},
			step{sql: get + "($1, $2, $3)", args: []any{"a", 2, 1}},
			step{sql: get + "($1, $2, $3, $4, $5, $6, $7)", args: []any{"a", nil, nil, nil, nil, nil, nil}},
			step{sql: get + `(category => $1, "position" => $2, batch_size => $3, correlation => $4, consumer_group_member => $5, consumer_group_size => $6, condition => $7)`, args: []any{"a", 2, 9, nil, 0, 1, nil}},
			step{sql: get + `(consumer_group_size => $1, consumer_group_member => $2, category => $3, "position" => $4)`, args: []any{2, 1, "a", 2}},
			step{sql: get + "(category_name => $1)", args: []any{"a"}},
		)},
		{"-1 is no limit, 0 no rows, and other negatives fail", after(threeMessages,
			step{sql: get + "($1, 0, $2)", args: []any{"a", -1}},
			step{sql: get + "($1, 0, $2)", args: []any{"a", 0}},
			step{sql: get + "($1, 0, $2)", args: []any{"a", -2}},
		)},
		{"a stream is no category, and NULL has no rows", after(threeMessages,
			step{sql: get + "($1)", args: []any{"a-1"}},
			step{sql: get + "($1)", args: []any{"-"}},
			step{sql: get + "($1)", args: []any{nil}},
			step{sql: get + "($1)", args: []any{""}},
		)},
		{"a category is its exact name", steps{
			writing(1, "account-1"), writing(2, "account:command-1"), writing(3, "account"), writing(4, "account+x-1"), writing(5, "accounts-1"), writing(6, "-1"), writing(7, "-"), writing(8, ""),
			{sql: get + "($1)", args: []any{"account"}},
			{sql: get + "($1)", args: []any{"account:command"}},
			{sql: get + "($1)", args: []any{""}},
		}},
		{"a correlation is a category, by exact name", steps{
			correlated(1, "a-1", `"c-1"`), correlated(2, "a-1", `"c"`), correlated(3, "a-2", `"c:x-1"`), correlated(4, "a-2", `""`), correlated(5, "a-2", `"-c"`), correlated(6, "a-2", `null`), correlated(7, "a-2", `5`),
			writing(8, "a-1"), writing(9, "a-1", js(`[]`)), writing(10, "a-1", js(`"correlationStreamName"`)), correlated(11, "a-1", `{"c": 1}`), correlated(12, "b-1", `"c-1"`),
			{sql: get + "($1, correlation => $2)", args: []any{"a", "c"}},
			{sql: get + "($1, correlation => $2)", args: []any{"a", "c:x"}},
			{sql: get + "($1, correlation => $2)", args: []any{"a", ""}},
			{sql: get + "($1, correlation => $2)", args: []any{"a", "5"}},
			{sql: get + "($1, correlation => $2)", args: []any{"a", "none"}},
			{sql: get + "($1, correlation => $2)", args: []any{"a", "c-1"}},
			{sql: get + "($1, correlation => $2)", args: []any{"a", "-"}},
			{sql: get + "($1, 2, 1, $2, 0, 1)", args: []any{"a", "c"}},
		}},
		{"a group has a member and a size, in bounds", after(groups,
			step{sql: get + "('g', consumer_group_member => $1)", args: []any{0}},
			step{sql: get + "('g', consumer_group_size => $1)", args: []any{1}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{0, 0}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{-1, 0}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{-1, 1}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{-1, -1}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{1, 1}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{2, 1}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{nil, nil}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{nil, 0}},
			step{sql: get + "('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{-1, nil}},
		)},
		{"a size is a smallint", after(groups,
			step{sql: "select count(*) from MS.get_category_messages('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{1, 32767}},
			step{sql: "select count(*) from MS.get_category_messages('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{1, 32768}},
			step{sql: "select count(*) from MS.get_category_messages('none', consumer_group_member => $1, consumer_group_size => $2)", args: []any{1, 32768}},
			step{sql: "select count(*) from MS.get_category_messages('g', batch_size => 0, consumer_group_member => $1, consumer_group_size => $2)", args: []any{70000, 9223372036854775807}},
			step{sql: "select count(*) from MS.get_category_messages('g', consumer_group_member => $1, consumer_group_size => $2)", args: []any{70000, 70000}},
			step{sql: "select count(*) from MS.get_category_messages('g', consumer_group_member => $1, consumer_group_size => $2, condition => 'x')", args: []any{1, 70000}},
		)},
		{"members divide streams by their cardinal ids", after(groups, members(1, 2, 3, 5)...)},
		{"a stream without an id is no member's, and an empty id is one", after(odd, members(1, 2, 3)...)},
		{"category, correlation, group and condition are checked in this order", steps{
			{sql: get + "('a-1', correlation => 'c-1', consumer_group_member => 1, condition => 'x')"},
			{sql: get + "('a', correlation => 'c-1', consumer_group_member => 1, condition => 'x')"},
			{sql: get + "('a', correlation => 'c', consumer_group_member => 1, condition => 'x')"},
			{sql: get + "('a', correlation => 'c', consumer_group_member => 1, consumer_group_size => 2, condition => 'x')"},
			{sql: get + "('a', batch_size => -5, condition => 'x')"},
		}},
	})
}

func TestGetLastStreamMessageIsTheSame(t *testing.T) {
	t.Parallel()
	const get = row + "MS.get_last_stream_message"
	compare(t, []kase{
		{"it is the message at the highest position, of a type if there is one", steps{
			writing(1, "a-1"), writing(2, "a-1"),
			{sql: "select MS.write_message($1, 'a-1', 'U', '{}')", args: []any{id(3)}},
			writing(4, "a-2"),
			{sql: get + "($1)", args: []any{"a-1"}},
			{sql: get + "($1, $2)", args: []any{"a-1", "T"}},
			{sql: get + "($1, $2)", args: []any{"a-1", nil}},
			{sql: get + "(type => $1, stream_name => $2)", args: []any{"U", "a-1"}},
			{sql: get + "($1, $2)", args: []any{"a-1", "V"}},
			{sql: get + "($1, $2)", args: []any{"a-1", ""}},
			{sql: "select * from MS.get_last_stream_message('a-3')"},
		}},
		{"a name without an id is a stream like others, and no category", steps{
			writing(1, "solo"), writing(2, "solo-1"), writing(3, ""),
			{sql: get + "($1)", args: []any{"solo"}},
			{sql: get + "($1)", args: []any{""}},
			{sql: get + "($1)", args: []any{"none"}},
			{sql: get + "($1)", args: []any{nil}},
		}},
	})
}

// The command in a notice is the one that is run, and not message-db's.
func TestNoticesAreTheSame(t *testing.T) {
	t.Parallel()
	const from = "select (message).* from message_store.stored_messages stored where "
	var cases []kase
	for _, setting := range []string{"debug_get", "debug_write", "debug", "debug_benchmark"} {
		deviates := func(command string) func(answer) answer {
			if setting == "debug_write" || setting == "debug_benchmark" {
				return nil
			}
			return generates(command)
		}
		cases = append(cases, kase{setting, steps{
			{sql: "set message_store." + setting + " = 'on'"},
			writing(1, "a-1"), writing(2, "a-1", js(`{"x":1}`), 0), version(3, "a-1", 0), writing(2, "b-1"),
			{sql: "select MS.write_message('x', null, null, null)"},
			{sql: "select MS.acquire_lock($1)", args: []any{"a-1"}},
			{sql: "select MS.acquire_lock($1)", args: []any{nil}},
			{sql: "select MS.stream_version($1)", args: []any{"a-1"}},
			{sql: row + "MS.get_stream_messages($1)", args: []any{"a-1"}, ours: deviates(from + "stream_name = $1 and position >= $2 order by position limit nullif($3, -1)")},
			{sql: row + "MS.get_stream_messages($1, null, $2)", args: []any{"a-1", -1}, ours: deviates(from + "stream_name = $1 and position >= $2 order by position limit nullif($3, -1)")},
			{sql: row + "MS.get_stream_messages($1, 1, $2)", args: []any{"a", -1}},
			{sql: row + "MS.get_stream_messages($1, 1, 10, $2)", args: []any{"a-1", "true"}},
			{sql: row + "MS.get_category_messages($1)", args: []any{"a"}, ours: deviates(from + "category = $1 and global_position >= $2 and global_position <= $7 order by global_position limit nullif($3, -1)")},
			{sql: row + "MS.get_category_messages($1, 0, 5, $2, $3, $4)", args: []any{"a", "c", 0, 1}, ours: deviates(from + "category = $1 and global_position >= $2 and global_position <= $7 and correlation_category = $4 and abs(member_hash % $6) = $5 order by global_position limit nullif($3, -1)")},
			{sql: row + "MS.get_category_messages($1, consumer_group_member => $2, consumer_group_size => $3)", args: []any{"a", 0, 70000}, ours: deviates(from + "category = $1 and global_position >= $2 and global_position <= $7 and abs(member_hash % $6) = $5 order by global_position limit nullif($3, -1)")},
			{sql: row + "MS.get_category_messages($1, condition => $2)", args: []any{"a", "true"}},
			{sql: row + "MS.get_last_stream_message($1)", args: []any{"a-1"}, ours: deviates(from + "stream_name = $1 order by position desc limit 1")},
			{sql: row + "MS.get_last_stream_message($1, $2)", args: []any{"a-1", "T"}, ours: deviates(from + "stream_name = $1 and type = $2 order by position desc limit 1")},
			{sql: "set message_store." + setting + " = 'ON'"},
			writing(10, "a-1"),
			{sql: row + "MS.get_stream_messages($1)", args: []any{"a-1"}},
			{sql: row + "MS.get_category_messages($1)", args: []any{"a"}},
			{sql: row + "MS.get_last_stream_message($1)", args: []any{"a-1"}},
		}})
	}
	compare(t, cases)
}

// uuidgen is for the tools, which call it, and for machines that do not have it: ids
// come in one order, in each database.
const uuidgen = `#!/usr/bin/env bash
n=$(($(cat "$0.n" 2>/dev/null) + 1))
echo $n > "$0.n"
printf '00000000-0000-4000-8000-%012d\n' $n
`

// The parts that differ from one run to the next.
var moments = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?|test_\w+|[0-9.]+ ms|\(cost=[^)]*\) \([^)]*\)|psql:[^ ]+|-{3,}| {2,}`)

// The tools that come with message-db print the same of ours.
func TestToolsOfMessageDBPrintTheSame(t *testing.T) {
	t.Parallel()
	pgtest.NeedsAsNewAsServer(t, "psql") // it describes tables
	var printed [][]string
	for _, database := range []string{pgtest.MessageDB(t), dibs(t)} {
		bin := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(bin, "uuidgen"), []byte(uuidgen), 0o700))
		path := "PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")
		var all []string
		for _, call := range []string{
			"write-test-message.sh STREAM_NAME=a-1 INSTANCES=3", "write-test-message.sh STREAM_NAME=a:command-1+2 TYPE=Other METADATA='{\"correlationStreamName\": \"c-1\"}'", "write-test-message.sh", "write-test-message.sh STREAM_NAME=solo METADATA=null",
			"print-messages.sh", "print-messages.sh STREAM_NAME=a-1", "print-message-store-version.sh",
			"print-stream-summary.sh STREAM_NAME=a", "print-type-summary.sh", "print-type-summary.sh TYPE=Other", "print-category-type-summary.sh CATEGORY=a", "print-type-category-summary.sh TYPE=Some",
			"print-stream-type-summary.sh STREAM_NAME=a", "print-type-stream-summary.sh TYPE=Other", "benchmark.sh STREAM_NAME=bench-1 CYCLES=9", "print-stream-summary.sh STREAM_NAME=bench", "print-category-type-summary.sh",
		} {
			words := strings.SplitN(call, " ", 2)
			env := []string{path}
			if len(words) > 1 {
				env = append(env, variables.FindAllString(words[1], -1)...)
			}
			all = append(all, call+"\n"+moments.ReplaceAllString(pgtest.RunMessageDB(t, database, words[0], env...), "…"))
		}
		printed = append(printed, all)
	}

	require.Equal(t, printed[0], printed[1])
	require.Contains(t, printed[1][0], "Instance: 3, Message ID: 00000000-0000-4000-8000-000000000004")
	require.Contains(t, printed[1][6], "1.3.0")
}

var variables = regexp.MustCompile(`[A-Z_]+=('[^']*'|\S+)`)
