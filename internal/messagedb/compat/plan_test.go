package compat_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
