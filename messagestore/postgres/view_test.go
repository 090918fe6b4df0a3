package postgres_test

import (
	"crypto/rand"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// goesByViews reports whether a new connection of the pool reads by views.
func goesByViews(t *testing.T, pool *pgxpool.Pool, driver *postgres.Driver) bool {
	t.Helper()
	pool.Reset()
	_, err := driver.Version(t.Context(), "nobody-1")
	require.NoError(t, err)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	return driver.ReadsByViews(conn.Conn())
}

// The plan of a view's query is good from the size on at which it is used, whatever is known
// of the categories, and stays.
func TestReadsOfALargeStoreByViewsLookAtNoMoreThanTheyReturn(t *testing.T) {
	pool, schema := pgtest.Schema(t)
	driver := postgres.New(pool, &postgres.Config{Schema: schema})
	require.False(t, goesByViews(t, pool, driver), "an empty store")
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), strings.ReplaceAll(sql, "dibs.", schema+"."))
		require.NoError(t, err)
	}
	exec("insert into dibs.messages (id, category, group_hash, stream_name, position, type) select gen_random_uuid(), 'c', n, 'c-' || n, 0, 'T' from generate_series(1, 100) n")
	exec("analyze dibs.messages")
	require.False(t, goesByViews(t, pool, driver), "a small one")
	// As few as are enough, in no order: half in one category, half in thousands of small ones.
	exec(`insert into dibs.messages (id, category, group_hash, stream_name, position, type, data)
		select gen_random_uuid(), c.name, dibs.group_hash(c.name || '-' || n % 50), c.name || '-' || n % 50, n / 50, 'T', to_json(repeat('x', 600))
		from generate_series(0, 101999) n
		cross join lateral (select case when n % 2 = 0 then 'a' else 'b' || abs(hashint8(n) % 2000) end) c (name)`)
	var small string
	var messages int64
	require.NoError(t, conn.QueryRow(t.Context(), "select category, count(*) from "+schema+".messages where category like 'b%' group by 1 limit 1").Scan(&small, &messages))
	for _, known := range []string{"", "a.n_distinct = 1", "a.n_distinct = 200", "a.n_distinct = 100000", "many rows"} {
		t.Run(known, func(t *testing.T) {
			if distinct, ok := strings.CutPrefix(known, "a."); ok {
				for _, column := range []string{"category", "stream_name"} {
					exec("alter table dibs.messages alter " + column + " set (" + distinct + ")")
				}
			}
			exec("analyze dibs.messages")
			if known == "many rows" {
				exec("update pg_class set reltuples = 1e9 where oid = 'dibs.messages'::regclass")
			}
			require.True(t, goesByViews(t, pool, driver))
			exec("set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_index_scan_size = 0; set min_parallel_table_scan_size = 0")
			require.NoError(t, conn.Conn().DeallocateAll(t.Context()))
			stream, backwards, category := driver.ViewQueries()
			for name, query := range map[string]struct {
				sql      string
				args     []any
				messages int64
			}{
				"a page":             {category, []any{"a", 10_000, 11}, 11},
				"a whole page":       {category, []any{"a", 0, 1002}, 1002},
				"an empty page":      {category, []any{"a", 300_000, 1002}, 0},
				"a small category":   {category, []any{small, 0, 1002}, messages},
				"no category":        {category, []any{"ab", 0, 1002}, 0},
				"a stream":           {stream, []any{"a-8", 100, 10}, 10},
				"a whole stream":     {stream, []any{"a-8", 0, 1001}, 1001},
				"the end of one":     {stream, []any{"a-8", 3000, 10}, 0},
				"a stream backwards": {backwards, []any{"a-8", 100, 10}, 10},
				"the last":           {backwards, []any{"a-8", int64(math.MaxInt64), 1}, 1},
				"no stream":          {stream, []any{"a-none", 0, 10}, 0},
			} {
				for range 7 { // the sixth is by the plan that stays
					found, looked, scans := readAndCount(t, conn.Conn(), schema, query.sql, query.args)
					require.Equal(t, query.messages, found, name)
					require.Zero(t, scans, "%s: it went through the whole table", name)
					// The one after a category's or stream's last is looked at in the index.
					require.LessOrEqual(t, looked, found+1, "%s: rows looked at", name)
				}
			}
			for _, sql := range []string{stream, backwards, category} {
				plan := explain(t, conn.Conn(), sql)
				require.Contains(t, plan, "Index Scan")
				for _, other := range []string{"Seq Scan on messages", "Bitmap", "Gather", "JIT"} {
					require.NotContains(t, plan, other)
				}
			}
		})
	}
}

func readAndCount(t *testing.T, conn *pgx.Conn, schema, sql string, args []any) (found, looked, scans int64) {
	t.Helper()
	counts := func() (looked, scans int64) {
		require.NoError(t, conn.QueryRow(t.Context(),
			"select coalesce(seq_tup_read + idx_tup_fetch, 0), seq_scan from pg_stat_xact_user_tables where relid = $1::text::regclass", schema+".messages",
		).Scan(&looked, &scans))
		return looked, scans
	}
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it only read
	lookedBefore, scansBefore := counts()
	tag, err := conn.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	looked, scans = counts()
	return tag.RowsAffected(), looked - lookedBefore, scans - scansBefore
}

// explain returns the plan that stays.
func explain(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	for _, statement := range []string{"set plan_cache_mode = force_generic_plan", "prepare stays as " + sql} {
		_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	}
	rows, err := conn.Query(t.Context(), "explain execute stays ('a', 0, 1000)", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "deallocate stays; reset plan_cache_mode", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}

// Whatever is asked, of streams and categories whose names begin alike, and of what was
// trimmed, deleted and erased.
func TestViewsAnswerAsFunctionsDo(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	byViews := postgres.New(a.pool, nil).ByViews()
	byFunctions := postgres.New(pgtest.Connect(t, pgtest.URL(t)), nil)
	require.True(t, goesByViews(t, a.pool, byViews))
	c := a.category
	streams := []messagestore.StreamName{c.Stream("1"), c.Stream("12"), c.Stream("trimmed"), c.Stream("deleted"), c.Stream("erased"), c.Stream("none"), (c + ":command").Stream("1"), (c + "b").Stream("1")}
	for _, stream := range streams {
		if stream != c.Stream("none") {
			a.fill(t, stream, 5)
		}
	}
	_, err := a.admin.Trim(t.Context(), c.Stream("trimmed"), anyAge)
	require.NoError(t, err)
	_, err = a.admin.Delete(t.Context(), c.Stream("deleted"), messagestore.AnyVersion, nil)
	require.NoError(t, err)
	_, err = a.admin.Delete(t.Context(), c.Stream("erased"), messagestore.AnyVersion, erase)
	require.NoError(t, err)

	empty := 0
	for _, stream := range streams {
		for _, from := range []messagestore.Version{0, 1, 3, 4, 5, 6, math.MaxInt64} {
			for _, limit := range []int{1, 2, 5, 999, 1001, 1002, 10_000} {
				for _, backwards := range []bool{false, true} {
					q := messagestore.StreamQuery{Stream: stream, From: from, Limit: limit, Backwards: backwards}
					want, err := byFunctions.ReadStream(t.Context(), q)
					require.NoError(t, err)
					got, err := byViews.ReadStream(t.Context(), q)
					require.NoError(t, err)
					require.Equal(t, want, got, "%+v", q)
					if len(want) == 0 {
						empty++
					}
				}
			}
		}
		want, wantErr := byFunctions.Last(t.Context(), stream, "")
		got, err := byViews.Last(t.Context(), stream, "")
		require.Equal(t, wantErr, err)
		require.Equal(t, want, got)
	}
	require.Positive(t, empty)
	all, err := byFunctions.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: c, Limit: 1000})
	require.NoError(t, err)
	froms := []messagestore.GlobalPosition{0, math.MaxInt64 - 1, math.MaxInt64}
	for _, m := range all.Messages {
		froms = append(froms, m.GlobalPosition, m.GlobalPosition+1)
	}
	for _, category := range []messagestore.Category{c, (c + ":command"), c + "b", c + "c", c[:len(c)-1]} {
		for _, from := range froms {
			for _, limit := range []int{1, 2, 3, len(all.Messages) - 1, len(all.Messages), 1001, 1002} {
				q := messagestore.CategoryQuery{Category: category, From: from, Limit: limit}
				want, err := byFunctions.ReadCategory(t.Context(), q)
				require.NoError(t, err)
				got, err := byViews.ReadCategory(t.Context(), q)
				require.NoError(t, err)
				require.Equal(t, want, got, "%+v", q)
			}
		}
	}
}

// Who was granted the functions one by one, as is, reads as ever.
func TestWhoMayNotReadTheViewsReadsByFunctions(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	owner := connect(t, pgtest.URL(t))
	exec := func(sql string) {
		t.Helper()
		_, err := owner.Exec(contextOf(t), sql)
		require.NoError(t, err)
	}
	role := "test_" + strings.ToLower(rand.Text())
	exec("create role " + role)
	t.Cleanup(func() { exec("drop owned by " + role + "; drop role " + role) })
	exec("grant usage on schema dibs to " + role)
	exec("grant execute on all functions in schema dibs to " + role)
	pool := poolAs(t, role)
	driver := postgres.New(pool, nil).ByViews()
	stream := storetest.Category(t).Stream("1")
	write(t, messagestore.New(driver, nil), stream, messagestore.NoStream, opened())
	read := func() {
		t.Helper()
		found, err := driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, Limit: 10})
		require.NoError(t, err)
		require.Len(t, found, 1)
	}

	read()
	require.False(t, goesByViews(t, pool, driver))
	exec("grant select on dibs.stored_messages, dibs.erased to " + role)
	require.True(t, goesByViews(t, pool, driver))
	read()
	exec("revoke select on dibs.erased from " + role)
	_, err := driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, Limit: 10})
	requireDenied(t, err)
	read()
}
