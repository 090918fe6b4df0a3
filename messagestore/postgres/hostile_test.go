package postgres_test

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// contextOf returns a context for a cleanup, when the test's own is over.
func contextOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

// A rawAppend is a call of the function by a client that checks nothing.
type rawAppend struct {
	stream, messageType, data, metadata string
	twice                               bool // two messages, which go another way
	trusted                             bool // by the functions that only drivers call, after the library's validation
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func appendRaw(t *testing.T, db querier, a rawAppend) error {
	t.Helper()
	if a.messageType == "" {
		a.messageType = "Opened"
	}
	if a.data == "" {
		a.data = "{}"
	}
	var metadata *string
	if a.metadata != "" {
		metadata = &a.metadata
	}
	n := 1
	ids, types, data, metadatas := []string{uuid.NewString()}, []string{a.messageType}, []string{a.data}, []*string{metadata}
	if a.twice {
		n = 2
		ids, types, data, metadatas = append(ids, uuid.NewString()), append([]string{"Opened"}, types...), append([]string{"{}"}, data...), append([]*string{nil}, metadatas...)
	}
	rows, err := db.Query(t.Context(), "select outcome from dibs.append(array[$1::text], '{-2}', array[$2::int], $3::text[]::uuid[], $4::text[], $5::text[]::json[], $6::text[]::json[])",
		a.stream, n, ids, types, data, metadatas)
	if err != nil {
		return err
	}
	_, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	return err
}

// requireRefused demands the code and the column by which a client in any language
// can tell, and that the value is not shown.
func requireRefused(t *testing.T, err error, column string) {
	t.Helper()
	refused := must.As[*pgconn.PgError](t, err)
	require.Equal(t, "DB001", refused.Code, refused.Message)
	require.Equal(t, column, refused.ColumnName)
	require.NotContains(t, refused.Message+refused.Detail+refused.Hint, "canary")
}

func TestDatabaseRefusesWhatTheLibraryRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for column, calls := range map[string][]rawAppend{
		"streams": {
			{stream: ""},
			{stream: "account"},
			{stream: "-"},
			{stream: "-x"},
			{stream: "canary-"},
			{stream: "cat-\n\t\x01"},
			{stream: "cat-" + strings.Repeat("x", 252)},
			{stream: "cat-" + strings.Repeat("x", 10_000)},
			{stream: "cat-\u202ex"},
			{stream: "cat-\u200d"},
			{stream: "\ufeffcat-1"},
			{stream: "cat-+x"},
			{stream: "cat-a++b"},
			{stream: "cat-a+"},
			{stream: "c at-1"},
			{stream: "c:-1"},
			{stream: "c:a++b-1"},
			{stream: "c+d-1"},
			{stream: "c:a:b-1"},
			{stream: " c-1"},
			{stream: "c-1\u00a0"},
		},
		"types": {
			{stream: "cat-1", messageType: " "}, {stream: "cat-1", messageType: "canary\x00"[:6] + "\x7f"}, {stream: "cat-1", messageType: "a\u2028"}, {stream: "cat-1", messageType: strings.Repeat("é", 128)},
		},
		"data": {
			{stream: "cat-1", data: "1"},
			{stream: "cat-1", data: "[]"},
			{stream: "cat-1", data: "null"},
			{stream: "cat-1", data: `"canary"`},
			{stream: "cat-1", data: `{"a":"\u0000"}`, trusted: true},
			{stream: "cat-1", data: `{"a":"\ud800"}`, trusted: true},
			{stream: "cat-1", data: `{"a":1e200000}`, trusted: true},
			{stream: "cat-1", data: `{"a":-1e-20000}`, trusted: true},
			{stream: "cat-1", data: `{"a":` + strings.Repeat("[", 512) + strings.Repeat("]", 512) + "}", trusted: true},
			{stream: "cat-1", data: `{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes) + `"}`},
		},
		"metadata": {
			{stream: "cat-1", metadata: "1"},
			{stream: "cat-1", metadata: "[]"},
			{stream: "cat-1", metadata: "null"},
			{stream: "cat-1", metadata: `{"a":"\u0000"}`, trusted: true},
			{stream: "cat-1", metadata: `{"correlationStreamName":"` + strings.Repeat("x", 9000) + `"}`, trusted: true},
			{stream: "cat-1", metadata: `{"replyStreamName":"a\nb"}`, trusted: true},
		},
	} {
		for _, call := range calls {
			for _, call.twice = range []bool{false, true} {
				requireRefused(t, appendRaw(t, pool, call), column)
			}
			if call.trusted {
				continue
			}
			refused := must.As[*pgconn.PgError](t, appendEachRaw(t, pool, call))
			require.Equal(t, "DB001", refused.Code, "%v: %s", call, refused.Message)
		}
	}
	require.NoError(t, appendEachRaw(t, pool, rawAppend{stream: string(storetest.Category(t).Stream("1")), messageType: "Opened", data: "{}"}))
}

// appendEachRaw writes it as the second of two writes, and makes sure that the first was
// not written either if it is refused.
func appendEachRaw(t *testing.T, db querier, a rawAppend) error {
	t.Helper()
	var good messagestore.StreamName
	var metadata *string
	if a.metadata != "" {
		metadata = &a.metadata
	}
	var outcomes []string
	var err error
	// A test of another package that goes through all categories may have the second one's
	// lock just now. Then the first is written, and the next attempt has another stream.
	for busy := true; busy; busy = slices.Equal(outcomes, []string{"wb"}) {
		good = storetest.Category(t).Stream("good")
		rows, queryErr := db.Query(t.Context(), `select outcomes from dibs.append_each(array[$1, $2]::text[], '{-2,-2}', '{1,1}', '{0,0}',
			array[gen_random_uuid(), gen_random_uuid()], array['Opened', $3]::text[], array['{}', $4]::text[]::json[], array[null, $5]::text[]::json[])`,
			string(good), a.stream, cmp.Or(a.messageType, "Opened"), cmp.Or(a.data, "{}"), metadata)
		require.NoError(t, queryErr)
		outcomes, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		rows, versionErr := db.Query(t.Context(), "select dibs.stream_version($1)", string(good))
		require.NoError(t, versionErr)
		version, versionErr := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
		require.NoError(t, versionErr)
		require.Equal(t, int64(-1), version)
		return err
	}
	require.Equal(t, []string{"ww"}, outcomes)
	return nil
}

func TestDatabaseRefusesGroupsThatAreNone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	const id = "'{018f0000-0000-7000-8000-000000000000}'"
	for arguments, column := range map[string]string{
		`null, null, null, null, null, null, null, null`:                                                                                   "streams",
		`'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'`:                                                                                   "streams",
		`'{a-1}', '{-2}', '{1}', '{0}', '{}', '{}', '{}', '{}'`:                                                                            "ids",
		`'{a-1}', '{}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                               "expected",
		`'{a-1}', '{-2}', '{1,0}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                           "counts",
		`'{a-1}', '{-2}', '{1}', null, ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                              "fences",
		`'{a-1}', '{-2}', '{1}', '{0}', ` + id + `, '{}', '{"{}"}', '{null}'`:                                                              "types",
		`'{a-1}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{}', '{null}'`:                                                                 "data",
		`'{a-1}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{}'`:                                                                 "metadata",
		`'{a-1,b-1}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                         "expected",
		`'{null}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                            "streams",
		`'{""}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                              "streams",
		`'{a-1}', '{-3}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                             "streams",
		`'{a-1}', '{null}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                           "streams",
		`'{a-1}', '{-2}', '{0}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                             "streams",
		`'{a-1,b-1}', '{-2,-2}', '{1,1}', '{0,0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                  "counts",
		`'{a-1}', '{-2}', '{1}', '{-1}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                            "streams",
		`'{a-1}', '{-2}', '{1}', '{null}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                          "streams",
		`'{a-1}', '{-2}', '{2}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                             "counts",
		`'[0:0]={a-1}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                       "streams",
		`'{a-1}', '{-2}', '{1}', '{0}', ` + id + `, '[2:2]={T}', '{"{}"}', '{null}'`:                                                       "types",
		`'{{a-1},{b-1}}', '{-2,-2}', '{1,1}', '{0,0}', array[gen_random_uuid(), gen_random_uuid()], '{T,T}', '{"{}","{}"}', '{null,null}'`: "streams",
		`'{a-1}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}', meets => '{}'`:                                              "meets",
		`'{a-1}', '{-2}', '{1}', '{0}', ` + id + `, '{T}', '{"{}"}', '{null}', meets => '{t,t}'`:                                           "meets",
		`'{a-1}', '{-2}', '{1}', '{0}', '{null}', '{T}', '{"{}"}', '{null}'`:                                                               "data",
		`'{a-1}', '{-2}', '{1}', '{0}', '{00000000-0000-0000-0000-000000000000}', '{T}', '{"{}"}', '{null}'`:                               "data",
	} {
		_, err := pool.Exec(t.Context(), "select * from dibs.append_each("+arguments+")")
		refused := must.As[*pgconn.PgError](t, err)
		require.Equal(t, "DB001", refused.Code, "%s: %s", arguments, refused.Message)
		require.Equal(t, column, refused.ColumnName, arguments)
	}
}

// The write of one message at the version of its stream takes a path of its own, which refuses the
// same types that may have come.
func TestDatabaseRefusesTypesThatAreNoneForAWriteOfOneMessage(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	append1 := func(stream messagestore.StreamName, past string) error {
		_, err := pool.Exec(t.Context(), `select * from dibs.append(array[$1], '{-1}', '{1}', array[gen_random_uuid()], '{T}', '{"{}"}', '{null}', past => $2::jsonb)`, string(stream), past)
		return err
	}
	for i, past := range []string{
		`null`, `{}`, `{"0": ["T"]}`, `"T"`, `1`, `[]`, `["T"]`, `[1]`, `[{}]`, `[[]]`, `[["T", 1]]`, `[["T", ["T"]]]`, `[["T", null]]`, `[null, null]`, `[["T"], ["T"]]`, `[["T"], null]`,
		`[[` + strings.Repeat(`"T",`, 100) + `"T"]]`,
	} {
		stream := category.Stream(strconv.Itoa(i))

		refused := must.As[*pgconn.PgError](t, append1(stream, past))
		require.Equal(t, "DB001", refused.Code, "%s: %s", past, refused.Message)
		require.Equal(t, "past", refused.ColumnName, past)
		require.Nil(t, lastOf(t, must.New(postgres.New(pool, nil)), stream), past)
	}
	for i, past := range []string{`[null]`, `[["T"]]`, `[[` + strings.Repeat(`"T",`, 99) + `"T"]]`} {
		require.NoError(t, append1(category.Stream("good"+strconv.Itoa(i)), past))
	}
}

func TestDatabaseRefusesCallsThatAreNone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	const id = "'{018f0000-0000-7000-8000-000000000000}'"
	for arguments, column := range map[string]string{
		`null, null, null, null, null, null, null`:                                                                                                     "streams",
		`'{}', '{}', '{}', '{}', '{}', '{}', '{}'`:                                                                                                     "streams",
		`'{a-1}', '{-1}', '{1}', '{}', '{}', '{}', '{}'`:                                                                                               "counts",
		`'{a-1}', '{-1}', '{0}', null, '{}', '{}', '{}'`:                                                                                               "ids",
		`'{a-1}', '{-2}', '{0}', '{}', '{}', '{}', '{}'`:                                                                                               "expected",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '{}'`:                                                                                 "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '[]'`:                                                                                 "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => 'null'`:                                                                               "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '["T"]'`:                                                                              "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '[[]]'`:                                                                               "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '[["T", 1]]'`:                                                                         "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '[["T", ["T"]]]'`:                                                                     "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '[{"T": 1}]'`:                                                                         "past",
		`'{a-1}', '{0}', '{0}', '{}', '{}', '{}', '{}', after => '{}'`:                                                                                 "after",
		`'{a-1}', '{0}', '{0}', '{}', '{}', '{}', '{}', after => '{null,null}'`:                                                                        "after",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', after => ` + id:                                                                               "after",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => '[null, null]'`:                                                                       "past",
		`'{a-1,b-1}', '{-2,-1}', '{1,0}', ` + id + `, '{T}', '{"{}"}', '{null}', past => '[["T"], null]'`:                                              "past",
		`'{a-1}', '{-1}', '{0}', '{}', '{}', '{}', '{}', past => to_jsonb(array[array_fill('T'::text, '{101}')])`:                                      "past",
		`'{a-1}', null, '{1}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                                  "expected",
		`'{a-1}', '{-1,1}', '{1}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                              "expected",
		`'{a-1}', '{-3}', '{1}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                                "expected",
		`'{a-1}', '{null}', '{1}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                              "expected",
		`'{a-1,b-1}', '{-1,-2}', '{1,0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                       "expected",
		`'{a-1}', '{-1}', '{2}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                                "counts",
		`'{a-1,b-1}', '{-1,-1}', '{2,-1}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                      "counts",
		`'{a-1}', '{-1}', '{null}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                             "counts",
		`'{a-1,a-1}', '{-1,-1}', '{1,0}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                       "streams",
		`'{null}', '{-1}', '{1}', ` + id + `, '{T}', '{"{}"}', '{null}'`:                                                                               "streams",
		`'[0:0]={a-1}', '{-1}', '{1}', '{null}', '{T}', '{"{}"}', '{null}'`:                                                                            "ids",
		`'{a-1}', '{-1}', '{1}', '{00000000-0000-0000-0000-000000000000}', '{T}', '{"{}"}', '{null}'`:                                                  "ids",
		`'{a-1}', '{-1}', '{2}', '{018f0000-0000-7000-8000-000000000000,018f0000-0000-7000-8000-000000000000}', '{T,T}', '{"{}","{}"}', '{null,null}'`: "ids",
		`'{a-1}', '{-1}', '{1}', ` + id + `, '{null}', '{"{}"}', '{null}'`:                                                                             "types",
		`'{a-1}', '{-1}', '{1}', ` + id + `, '{}', '{"{}"}', '{null}'`:                                                                                 "types",
		`'{a-1}', '{-1}', '{1}', ` + id + `, '{T}', '{null}', '{null}'`:                                                                                "data",
		`'{a-1}', '{-1}', '{1}', ` + id + `, '{T}', '{}', '{null}'`:                                                                                    "data",
		`'{a-1}', '{-1}', '{1}', ` + id + `, '{T}', '{"{}"}', '{}'`:                                                                                    "metadata",
		`array_fill('a-1'::text, '{101}'), array_fill(-1::bigint, '{101}'), array_fill(0, '{101}'), ` + id + `, '{T}', '{"{}"}', '{null}'`:             "streams",
		`'{a-1}', '{-1}', '{1001}', array_fill(gen_random_uuid(), '{1001}'), array_fill('T'::text, '{1001}'), array_fill('{}'::json, '{1001}'), array_fill(null::json, '{1001}')`: "ids",
	} {
		_, err := pool.Exec(t.Context(), "select * from dibs.append("+arguments+")")
		refused := must.As[*pgconn.PgError](t, err)
		require.Equal(t, "DB001", refused.Code, "%s: %s", arguments, refused.Message)
		require.Equal(t, column, refused.ColumnName, arguments)
	}
	for call, column := range map[string]string{
		"read_stream('a-1', -1)":                                    "from_position",
		"read_stream('a-1', null)":                                  "from_position",
		"read_stream('a-1', 0, 0)":                                  "max_messages",
		"read_stream('a-1', 0, -1)":                                 "max_messages",
		"read_stream('a-1', 0, 10001)":                              "max_messages",
		"read_stream('a-1', 0, null)":                               "max_messages",
		"read_category('a', -5)":                                    "from_position",
		"read_category('a', 0, 0)":                                  "max_messages",
		"read_category('a', group_size => 0, group_member => 0)":    "group_member",
		"read_category('a', group_size => 2)":                       "group_member",
		"read_category('a', group_member => 0)":                     "group_member",
		"read_category('a', group_size => 2, group_member => 2)":    "group_member",
		"read_category('a', group_size => 2, group_member => -1)":   "group_member",
		"read_category('a', group_size => 1025, group_member => 0)": "group_member",
	} {
		_, err := pool.Exec(t.Context(), "select * from dibs."+call)
		refused := must.As[*pgconn.PgError](t, err)
		require.Equal(t, "DB001", refused.Code, "%s: %s", call, refused.Message)
		require.Equal(t, column, refused.ColumnName, call)
	}
}

// The driver says it in the library's words, when a validator of its own was
// passed by.
func TestRefusalOfTheDatabaseIsAnInvalidError(t *testing.T) {
	t.Parallel()
	driver := must.New(postgres.New(pgtest.Pool(t), nil))

	a := appendOne("canary-", messagestore.NoStream)
	_, err := driver.Append(t.Context(), a)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorIs(t, err, messagestore.ErrInvalid)

	a = appendOne(storetest.Category(t).Stream("1"), messagestore.NoStream)
	a.Records[0].Data = []byte(`["canary"]`)
	require.ErrorIs(t, must.ErrorOf(driver.Append(t.Context(), a)), messagestore.ErrInvalid)
}

// The details that the server gives for an error show the row.
func TestErrorsShowNoValuesOfRows(t *testing.T) {
	t.Parallel()
	driver := must.New(postgres.New(pgtest.Pool(t), nil))
	a := appendOne(storetest.Category(t).Stream("1"), messagestore.NoStream)
	a.Records[0].Data = []byte(`{"secret":"canary",}`)

	_, err := driver.Append(t.Context(), a)

	refused := must.As[*pgconn.PgError](t, err)
	require.Equal(t, "22P02", refused.Code)
	require.NotContains(t, refused.Detail+refused.Where+refused.Hint+refused.InternalQuery+err.Error(), "canary")
}

// 2^63 has no positive counterpart; its remainder has.
func TestGroupOfTheSmallestHash(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	must.Do(pool.Exec(t.Context(), "insert into "+schema+".messages (category, stream_name, position, type, id, group_hash) values ('a', 'a-1', 0, 'T', gen_random_uuid(), -9223372036854775808)"))(t)
	driver := must.New(postgres.New(pool, &postgres.Config{Schema: schema}))
	found := 0
	for member := range 3 {
		page := must.Do(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "a", Limit: 10, Filter: messagestore.Filter{GroupSize: 3, GroupMember: member}}))(t)
		found += len(page.Messages)
	}
	require.Equal(t, 1, found)
}
