package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A session keeps the plans that it made when the table had nothing in it. By itself, because
// tables that other tests create and drop may make it plan anew.
func TestAPlanThatWasMadeForAnEmptyTableReadsNoMoreThanItHasTo(t *testing.T) {
	pool, schema := pgtest.Schema(t)
	conn := testkit.Do(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	exec := func(sql string, args ...any) {
		t.Helper()
		testkit.Do(conn.Exec(t.Context(), strings.ReplaceAll(sql, "dibs.", schema+"."), args...))(t)
	}
	id := uuid.New()
	calls := map[string]struct {
		sql      string
		messages int // that it returns of the large table
		rows     int // that it may look at
	}{
		"a page":             {"select from dibs.read_category('a', 10000, 10) where id is not null", 10, 25},
		"an empty page":      {"select from dibs.read_category('a', 30000, 1000) where id is not null", 0, 0},
		"a member's page":    {"select from dibs.read_category('a', 10000, 10, null, null, 4, 1) where id is not null", 10, 200},
		"types' page":        {"select from dibs.read_category('a', 10000, 10, '{T}') where id is not null", 10, 15},
		"a correlation":      {"select from dibs.read_category('a', 19990, 10, null, 'none') where id is not null", 0, 15},
		"a stream":           {"select from dibs.read_stream('a-7', 100, 10)", 10, 10},
		"a stream backwards": {"select from dibs.read_stream('a-7', 100, 10, true)", 10, 10},
		"no stream":          {"select from dibs.read_stream('a-none')", 0, 0},
		"the last":           {"select from dibs.last_message('a-7')", 1, 1},
		"the last of a type": {"select from dibs.last_message('a-7', 'T')", 1, 1},
		"a version":          {"select where 199 = dibs.stream_version('a-7')", 1, 1},
		"an id":              {"select from dibs.find_messages('a-7', array['" + id.String() + "']::uuid[])", 1, 1},
	}
	exec("vacuum analyze dibs.messages") // to the planner, a table that is known to have no pages
	for _, call := range calls {
		exec(call.sql)
	}
	exec(`insert into dibs.messages (id, category, group_hash, stream_name, position, type, data)
		select case n when 7 then $1 else gen_random_uuid() end, 'a', dibs.group_hash('a-' || n % 100), 'a-' || n % 100, n / 100, 'T', '{}' from generate_series(0, 19999) n`, id)

	looked := func() (rows, scans int) {
		require.NoError(t, conn.QueryRow(t.Context(),
			"select coalesce(seq_tup_read + idx_tup_fetch, 0), seq_scan from pg_stat_xact_user_tables where relid = $1::text::regclass", schema+".messages",
		).Scan(&rows, &scans))
		return rows, scans
	}
	for name, call := range calls {
		exec("begin")
		rows, scans := looked()
		messages := testkit.Do(conn.Exec(t.Context(), strings.ReplaceAll(call.sql, "dibs.", schema+".")))(t)
		rowsAfter, scansAfter := looked()
		exec("rollback")

		require.EqualValues(t, call.messages, messages.RowsAffected(), name)
		require.Equal(t, scans, scansAfter, "%s: it went through the whole table", name)
		require.LessOrEqual(t, rowsAfter-rows, call.rows, "%s: rows looked at", name)
		require.GreaterOrEqual(t, rowsAfter-rows, call.messages-1, "%s: the server counts, but for what the index alone tells", name)
	}
}

// A call with a filter looks at 10,000 messages, and the page says so.
func TestAFilteredPageSaysHowFarItHasLooked(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
	insert := func(first, last int, category, messageType string) {
		t.Helper()
		testkit.Do(pool.Exec(t.Context(), `insert into `+schema+`.messages (id, category, group_hash, stream_name, position, global_position, type, data)
			select gen_random_uuid(), $3::text, n, $3 || '-' || n, 0, n, $4, '{}' from generate_series($1::bigint, $2) n`, first, last, category, messageType))(t)
	}
	// The messages' global positions are read, and where to go on, and whether there is more.
	requirePage := func(category messagestore.Category, from messagestore.GlobalPosition, limit int, filter messagestore.Filter, next messagestore.GlobalPosition, more bool, want ...messagestore.GlobalPosition) {
		t.Helper()
		page := testkit.Do(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: category, From: from, Limit: limit, Filter: filter}))(t)
		var got []messagestore.GlobalPosition
		for _, m := range page.Messages {
			got = append(got, m.GlobalPosition)
		}
		require.Equal(t, want, got)
		require.Equal(t, next, page.Next)
		require.Equal(t, more, page.More)
	}
	rare, none := messagestore.Filter{Types: []string{"Rare"}}, messagestore.Filter{Types: []string{"none"}}

	insert(1, 10_000, "a", "Opened")
	requirePage("a", 0, 1, none, 10_001, false)
	requirePage("a", 1, 1, none, 10_001, false)
	requirePage("a", 10_001, 1, none, 10_001, false)
	insert(10_001, 10_001, "a", "Rare")
	requirePage("a", 0, 1, rare, 10_001, true)
	requirePage("a", 1, 1, rare, 10_001, true)
	requirePage("a", 2, 1, rare, 10_002, false, 10_001)
	requirePage("a", 2, 2, rare, 10_002, false, 10_001)
	requirePage("a", 2, 1, none, 10_002, false)
	insert(10_002, 10_002, "a", "Opened")
	requirePage("a", 2, 1, rare, 10_002, true, 10_001)
	requirePage("a", 2, 2, rare, 10_002, true, 10_001)
	requirePage("a", 3, 2, rare, 10_003, false, 10_001)

	// Few messages, far from each other.
	insert(20_000, 20_000, "b", "Opened")
	insert(50_000, 50_000, "b", "Rare")
	requirePage("b", 0, 10, none, 50_001, false)
	requirePage("b", 0, 1, rare, 50_001, false, 50_000)
	requirePage("b", 0, 1, messagestore.Filter{}, 20_001, true, 20_000)
	requirePage("b", 0, 2, messagestore.Filter{}, 50_001, false, 20_000, 50_000)
	requirePage("b", 0, 3, messagestore.Filter{}, 50_001, false, 20_000, 50_000)

	// There is nothing after the last position there can be.
	insert(math.MaxInt64-1, math.MaxInt64, "c", "Rare")
	for _, filter := range []messagestore.Filter{{}, rare} {
		requirePage("c", 0, 1, filter, math.MaxInt64, true, math.MaxInt64-1)
		requirePage("c", 0, 2, filter, math.MaxInt64, false, math.MaxInt64-1, math.MaxInt64)
		requirePage("c", math.MaxInt64, 2, filter, math.MaxInt64, false, math.MaxInt64)
	}
}

// Clients in other languages may call the function with any arguments.
func TestWhatFiltersNothingIsNoFilter(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	testkit.Do(pool.Exec(t.Context(), `insert into `+schema+`.messages (id, category, group_hash, stream_name, position, type, data)
		select gen_random_uuid(), 'a', n, 'a-' || n, 0, 'T', '{}' from generate_series(1, 5) n`))(t)
	for _, limit := range []int{1, 4, 5, 6} {
		for _, from := range []int{0, 1, 3, 5, 6, 100} {
			var pages []string
			for _, args := range []string{"", ", '{}'", ", null, null, 1, 0", ", '{T}'", ", '{}', null, 1, 0"} {
				page := pgtest.Value[string](t, pool, fmt.Sprintf("select string_agg(case when more is null then to_json(p)::text else global_position || ' ' || more end, ' ') from %s.read_category('a', %d, %d%s) p", schema, from, limit, args))
				pages = append(pages, page)
			}
			for _, page := range pages {
				require.Equal(t, pages[0], page, "%d from %d", limit, from)
			}
		}
	}
}

// hidden is a DB with a connection that the driver does not find.
type hidden struct{ postgres.DB }

func TestMessagesAreTheSameInWhateverFormatTheyCome(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema})), nil))
	full := messagestore.Envelope{ID: uuid.New(), Body: messagestore.Raw{Type: "Opened", Data: json.RawMessage(`{"a": "é\n", "b":[1.10]}`)}, Metadata: messagestore.Metadata{
		CausationStream: "b-1", CausationPosition: 3, CausationGlobalPosition: 4, Properties: messagestore.Properties{"n": json.Number("1.10")},
	}}
	testkit.Do(store.Write(t.Context(), "a-1", messagestore.NoStream, full, messagestore.Raw{Type: "Closed", Data: json.RawMessage(`{}`)}))(t)
	// Messages that clients of message-db may have written.
	odd := uuid.New()
	testkit.Do(pool.Exec(t.Context(), "insert into "+schema+`.messages (id, category, group_hash, stream_name, position, type, data, metadata, time) values
		($1, 'a', 0, 'a-1', 2, '', null, null, 'infinity'), (gen_random_uuid(), 'a', 0, 'a-2', 0, 'Opened', '[]', 'null', '-infinity'),
		(gen_random_uuid(), 'a', 0, 'a-2', 1, 'Opened', ' {} ', '{"causationMessageStreamName": 7}', '0001-01-01 00:00:00.000001+00 BC'),
		(gen_random_uuid(), 'a', 0, 'a-2', 2, 'Opened', null, null, '2026-01-02 03:04:05.678901+02')`, odd))(t)
	// Positions of as many digits as a number has bytes.
	testkit.Do(pool.Exec(t.Context(), "insert into "+schema+`.messages (id, category, group_hash, stream_name, position, global_position, type) values
		(gen_random_uuid(), 'a', 0, 'a-2', 87654321, 12345677, 'Opened')`))(t)

	type answers struct {
		one, two, none, found []*messagestore.Message
		last                  *messagestore.Message
		pages                 []messagestore.CategoryPage
	}
	read := func(d messagestore.Driver) (a answers) {
		for stream, into := range map[messagestore.StreamName]*[]*messagestore.Message{"a-1": &a.one, "a-2": &a.two, "a-none": &a.none} {
			*into = testkit.Do(d.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, Limit: 10}))(t)
		}
		for _, filter := range []messagestore.Filter{{}, {Types: []string{"Opened"}}, {Types: []string{"none"}}} {
			for _, limit := range []int{4, 100} {
				page := testkit.Do(d.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "a", Limit: limit, Filter: filter}))(t)
				a.pages = append(a.pages, page)
			}
		}
		a.last = testkit.Do(d.Last(t.Context(), "a-2", ""))(t)
		a.found = testkit.Do(d.Find(t.Context(), "a-1", []uuid.UUID{full.ID, odd}))(t)
		return a
	}
	want := read(testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema})))
	first, second := want.one, want.two
	require.Len(t, first, 3)
	require.Equal(t, full.ID, first[0].ID)
	require.Equal(t, full.Metadata, first[0].Metadata)
	require.JSONEq(t, `{"a": "é\n", "b":[1.10]}`, string(first[0].Data))
	require.WithinDuration(t, time.Now(), first[0].Time, time.Hour)
	require.Equal(t, &messagestore.Message{ID: odd, Stream: "a-1", Position: 2, GlobalPosition: first[2].GlobalPosition}, first[2])
	require.Equal(t, time.Date(0, 1, 1, 0, 0, 0, 1000, time.UTC), second[1].Time)
	require.Equal(t, &messagestore.Message{
		ID: second[2].ID, Stream: "a-2", Position: 2, GlobalPosition: second[1].GlobalPosition + 1, Time: time.Date(2026, 1, 2, 1, 4, 5, 678_901_000, time.UTC), Type: "Opened",
	}, second[2])

	config := &postgres.Config{Schema: schema}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		for _, descriptions := range []int{0, 16} {
			if mode == pgx.QueryExecModeCacheDescribe && descriptions == 0 {
				continue // pgx refuses that itself
			}
			c := testkit.Do(pgx.ParseConfig(pool.Config().ConnString()))(t)
			c.DefaultQueryExecMode, c.DescriptionCacheCapacity = mode, descriptions
			conn := testkit.Do(pgx.ConnectConfig(t.Context(), c))(t)
			require.Equal(t, want, read(testkit.Must(postgres.New(conn, config))), "%v", mode)
			tx := testkit.Do(conn.Begin(t.Context()))(t)
			require.Equal(t, want, read(testkit.Must(postgres.New(tx, config))), "%v in a transaction", mode)
			require.NoError(t, tx.Rollback(t.Context()))
			if mode == pgx.QueryExecModeExec {
				require.Equal(t, want, read(testkit.Must(postgres.New(hidden{conn}, config))), "%v of a connection that is not found", mode)
			}
			require.NoError(t, conn.Close(context.WithoutCancel(t.Context())))
		}
	}
}

// Its connection may be another's by then.
func TestTransactionThatHasEndedReadsNothing(t *testing.T) {
	t.Parallel()
	tx := testkit.Do(pgtest.Pool(t).Begin(t.Context()))(t)
	driver := testkit.Must(postgres.New(tx, nil))
	stream := storetest.Category(t).Stream("1")
	testkit.Do(driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, Limit: 1}))(t)

	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, testkit.ErrorOf(driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, Limit: 1})), pgx.ErrTxClosed)
	require.ErrorIs(t, testkit.ErrorOf(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: stream.Category(), Limit: 1})), pgx.ErrTxClosed)
}

// A limit is sent as an integer of four bytes, which must not make a good one of it.
func TestLimitThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, limit := range []int{0, -1, 10_001, 1<<32 + 5, -1<<32 + 5} {
		driver := testkit.Must(postgres.New(pool, nil))
		require.ErrorContains(t, testkit.ErrorOf(driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: "a-1", Limit: limit})), "invalid limit", "%d", limit)
		require.ErrorContains(t, testkit.ErrorOf(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "a", Limit: limit})), "invalid limit", "%d", limit)
	}
}

// A message does not change while other messages are changed and the connection is reused.
func TestMessagesShareNothing(t *testing.T) {
	t.Parallel()
	pool := testkit.Do(pgxpool.New(t.Context(), pgtest.URL(t)+"&pool_max_conns=1"))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	category, driver := storetest.Category(t), testkit.Must(postgres.New(pool, nil))
	for i := range 3 {
		bodies := make([]messagestore.Body, 100)
		for n := range bodies {
			bodies[n] = opened()
		}
		write(t, testkit.Must(messagestore.New(driver, nil)), category.Stream(fmt.Sprint(i)), messagestore.NoStream, bodies...)
	}
	page := testkit.Do(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 1000}))(t)
	require.Len(t, page.Messages, 300)
	before := fmt.Sprintf("%+v", values(page.Messages))

	for _, m := range page.Messages {
		_ = append(m.Data, "overwritten"...)
	}
	for i := range 3 {
		testkit.Do(driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: category.Stream(fmt.Sprint(i)), Limit: 100}))(t)
	}
	require.Equal(t, before, fmt.Sprintf("%+v", values(page.Messages)))
}

func values(messages []*messagestore.Message) []messagestore.Message {
	all := make([]messagestore.Message, len(messages))
	for i, m := range messages {
		all[i] = *m
	}
	return all
}

// A page ends before it is too large to hold, and the next goes on from there.
func TestAPageOfLargeMessagesEndsEarly(t *testing.T) {
	t.Parallel()
	const messages, size, pageBytes = 50, 700_000, 16 << 20
	category := storetest.Category(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil))
	body := messagestore.Raw{Type: "T", Data: json.RawMessage(fmt.Sprintf(`{"note": %q}`, strings.Repeat("x", size)))}
	for range messages / 10 {
		testkit.Do(store.Write(t.Context(), category.Stream("1"), messagestore.AnyVersion, body, body, body, body, body, body, body, body, body, body))(t)
	}
	q := messagestore.CategoryQuery{Category: category, Limit: messages}
	for _, want := range []int{23, 23, 4} {
		page := testkit.Do(store.ReadCategoryPage(t.Context(), q))(t)
		require.Len(t, page.Messages, want)
		require.LessOrEqual(t, want*len(body.Data), pageBytes)
		require.Equal(t, page.Messages[want-1].GlobalPosition+1, page.Next)
		require.Equal(t, want == 23, page.More)
		q.From = page.Next
	}
	n := messagestore.Version(0)
	for m, err := range store.ReadCategory(t.Context(), category, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		require.Equal(t, n, m.Position)
		n++
	}
	require.Equal(t, messagestore.Version(messages), n)
}

// pageFaults returns how many pages of memory the process of a session has asked the system for.
func pageFaults(t *testing.T, pid uint32) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || !strings.Contains(string(stat), "(postgres)") {
		pgtest.Missing(t, "the server's processes are not on this machine, or not in /proc")
	}
	const minorFaults = 7 // behind the name: see proc(5)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return testkit.Do(strconv.Atoi(fields[minorFaults]))(t)
}

// glibc gives the memory of a page's result back to the system behind each statement.
func TestASessionKeepsTheMemoryOfAPageForTheNext(t *testing.T) {
	t.Parallel()
	category := storetest.Category(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil))
	body := messagestore.Raw{Type: "T", Data: json.RawMessage(fmt.Sprintf(`{"note": %q}`, strings.Repeat("x", 300)))}
	bodies := make([]messagestore.Body, 1000)
	for i := range bodies {
		bodies[i] = body
	}
	testkit.Do(store.Write(t.Context(), category.Stream("1"), messagestore.AnyVersion, bodies...))(t)
	perPage := func(config *postgres.Config) int {
		pool, pid := pgtest.PoolOfOne(t, nil)
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil))
		const pages = 20
		before := 0
		for i := range 2 * pages {
			if i == pages { // by now it has what it keeps
				before = pageFaults(t, pid)
			}
			require.Len(t, testkit.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: len(bodies)}))(t).Messages, len(bodies))
		}
		return (pageFaults(t, pid) - before) / pages
	}

	given := perPage(&postgres.Config{GiveMemoryBack: true})
	if given < 20 {
		t.Skipf("the server's allocator keeps memory by itself: %d faults a page", given)
	}
	require.Less(t, perPage(nil), given/4)
}

// Our functions refuse a stream without an identifier, but clients of message-db
// write to such ones. In a group they are one member's, where message-db itself
// delivers them to none.
func TestStreamWithoutIdentifierIsOneMembers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	testkit.Do(pool.Exec(t.Context(), `insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
		values (dibs.category($1), dibs.group_hash($1), $1, 0, 'Opened', gen_random_uuid(), '{}')`, string(category)))(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))

	for _, size := range []int{1, 2, 3, 64} {
		var members []int
		for member := range size {
			for m, err := range store.ReadCategory(t.Context(), category, 0, messagestore.Filter{GroupSize: size, GroupMember: member}) {
				require.NoError(t, err)
				require.Equal(t, messagestore.StreamName(category), m.Stream)
				members = append(members, member)
			}
		}
		require.Equal(t, []int{messagestore.StreamName(category).GroupMember(size)}, members)
	}
}
