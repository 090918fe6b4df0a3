package postgres_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
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
	refused := testkit.As[*pgconn.PgError](t, err)
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
			refused := testkit.As[*pgconn.PgError](t, appendEachRaw(t, pool, call))
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
		refused := testkit.As[*pgconn.PgError](t, err)
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

		refused := testkit.As[*pgconn.PgError](t, append1(stream, past))
		require.Equal(t, "DB001", refused.Code, "%s: %s", past, refused.Message)
		require.Equal(t, "past", refused.ColumnName, past)
		require.Nil(t, lastOf(t, testkit.Must(postgres.New(pool, nil)), stream), past)
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
		refused := testkit.As[*pgconn.PgError](t, err)
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
		refused := testkit.As[*pgconn.PgError](t, err)
		require.Equal(t, "DB001", refused.Code, "%s: %s", call, refused.Message)
		require.Equal(t, column, refused.ColumnName, call)
	}
}

// The driver says it in the library's words, when a validator of its own was
// passed by.
func TestRefusalOfTheDatabaseIsAnInvalidError(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(pgtest.Pool(t), nil))

	a := appendOne("canary-", messagestore.NoStream)
	_, err := driver.Append(t.Context(), a)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorIs(t, err, messagestore.ErrInvalid)

	a = appendOne(storetest.Category(t).Stream("1"), messagestore.NoStream)
	a.Records[0].Data = []byte(`["canary"]`)
	require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), a)), messagestore.ErrInvalid)
}

// The details that the server gives for an error show the row.
func TestErrorsShowNoValuesOfRows(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	a := appendOne(storetest.Category(t).Stream("1"), messagestore.NoStream)
	a.Records[0].Data = []byte(`{"secret":"canary",}`)

	_, err := driver.Append(t.Context(), a)

	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "22P02", refused.Code)
	require.NotContains(t, refused.Detail+refused.Where+refused.Hint+refused.InternalQuery+err.Error(), "canary")
}

// 2^63 has no positive counterpart; its remainder has.
func TestGroupOfTheSmallestHash(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	testkit.Do(pool.Exec(t.Context(), "insert into "+schema+".messages (category, stream_name, position, type, id, group_hash) values ('a', 'a-1', 0, 'T', gen_random_uuid(), -9223372036854775808)"))(t)
	driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
	found := 0
	for member := range 3 {
		page := testkit.Do(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: "a", Limit: 10, Filter: messagestore.Filter{GroupSize: 3, GroupMember: member}}))(t)
		found += len(page.Messages)
	}
	require.Equal(t, 1, found)
}

// If invalid writes reach the driver past the store's validators, it refuses them in every way of
// sending, writes nothing, and still works. Only the store validates the contents of data and
// metadata.
func TestHostileCallsLeaveThePoolUsable(t *testing.T) {
	t.Parallel()
	record := func(change func(*messagestore.Encoded)) func(*messagestore.Append) {
		return func(a *messagestore.Append) { change(&a.Records[len(a.Records)-1]) }
	}
	data := func(text string) func(*messagestore.Append) {
		return record(func(r *messagestore.Encoded) { r.Data = []byte(text) })
	}
	metadata := func(text string) func(*messagestore.Append) {
		return record(func(r *messagestore.Encoded) { r.Metadata = []byte(text) })
	}
	named := func(format string) func(*messagestore.Append) {
		return func(a *messagestore.Append) {
			a.Stream = messagestore.StreamName(fmt.Sprintf(format, a.Stream.Category()))
		}
	}
	for name, test := range map[string]struct {
		spoil func(*messagestore.Append)
		kind  error // nil if the server cannot even read it
	}{
		"a stream without a name":              {func(a *messagestore.Append) { a.Stream = "" }, messagestore.ErrInvalid},
		"a category for a stream":              {named("%s"), messagestore.ErrInvalid},
		"an empty identifier":                  {named("%s-"), messagestore.ErrInvalid},
		"an empty cardinal identifier":         {named("%s-+x"), messagestore.ErrInvalid},
		"a line end in a name":                 {named("%s-1\n"), messagestore.ErrInvalid},
		"a format character in a name":         {named("%s-\u202e1"), messagestore.ErrInvalid},
		"white space at the end of a name":     {named("%s-1\u3000"), messagestore.ErrInvalid},
		"a name that is too long":              {named("%s-" + strings.Repeat("x", 255)), messagestore.ErrInvalid},
		"a name of ten million bytes":          {named("%s-" + strings.Repeat("x", 10_000_000)), messagestore.ErrInvalid},
		"U+0000 in a name":                     {named("%s-\x00"), nil},
		"a name that is not UTF-8":             {named("%s-\xff"), nil},
		"an overlong name":                     {named("%s-\xc0\x80"), nil},
		"a surrogate in a name":                {named("%s-\xed\xa0\x80"), nil},
		"an expected version of -3":            {func(a *messagestore.Append) { a.Expected = -3 }, messagestore.ErrInvalid},
		"the least expected version":           {func(a *messagestore.Append) { a.Expected = math.MinInt64 }, messagestore.ErrInvalid},
		"the nil id":                           {record(func(r *messagestore.Encoded) { r.ID = uuid.Nil }), messagestore.ErrInvalid},
		"a message without a type":             {record(func(r *messagestore.Encoded) { r.Type = "" }), messagestore.ErrInvalid},
		"a type that is too long":              {record(func(r *messagestore.Encoded) { r.Type = strings.Repeat("T", 256) }), messagestore.ErrInvalid},
		"a control character in a type":        {record(func(r *messagestore.Encoded) { r.Type = "T\x1b[31m" }), messagestore.ErrInvalid},
		"a type of the store's own":            {record(func(r *messagestore.Encoded) { r.Type = removal.TombstoneType }), messagestore.ErrInvalid},
		"a type that is not UTF-8":             {record(func(r *messagestore.Encoded) { r.Type = "T\xff" }), nil},
		"an empty text for data":               {record(func(r *messagestore.Encoded) { r.Data = []byte{} }), nil},
		"a number for data":                    {data(`1`), messagestore.ErrInvalid},
		"a list for data":                      {data(`[]`), messagestore.ErrInvalid},
		"null for data":                        {data(`null`), messagestore.ErrInvalid},
		"data that would overflow the stack":   {data(`{"a":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + "}"), nil},
		"a byte too many":                      {data(`{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes-7) + `"}`), messagestore.ErrInvalid},
		"two documents":                        {data(`{}{}`), nil},
		"data with a byte order mark":          {data("\ufeff{}"), nil},
		"data that is not UTF-8":               {data("{\"a\":\"\xff\"}"), nil},
		"NaN":                                  {data(`{"a":NaN}`), nil},
		"a list for metadata":                  {metadata(`[]`), messagestore.ErrInvalid},
		"metadata that does not end":           {metadata(`{"a":`), nil},
		"data and metadata that are too large": {metadata(`{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes-9) + `"}`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			driver := testkit.Must(postgres.New(pool, nil))
			category := storetest.Category(t)
			good, beside := category.Stream("good"), category.Stream("beside")
			for way, write := range map[string]func(messagestore.Append) error{
				"alone": func(a messagestore.Append) error {
					_, err := driver.Append(t.Context(), a)
					return err
				},
				"after others of its stream": func(a messagestore.Append) error {
					a.Records = append(append(appendOne("", 0).Records, appendOne("", 0).Records...), a.Records...)
					_, err := driver.Append(t.Context(), a)
					return err
				},
				"after another stream": func(a messagestore.Append) error {
					_, err := driver.AppendAll(t.Context(), []messagestore.Append{appendOne(beside, messagestore.AnyVersion), a})
					return err
				},
				"in a group": func(a messagestore.Append) error {
					return driver.AppendEach(t.Context(), []messagestore.Append{a})[0].Err
				},
			} {
				a := appendOne(category.Stream("bad"), messagestore.AnyVersion)
				test.spoil(&a)

				err := write(a)

				require.Error(t, err, way)
				require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, "%s: nothing can have been written", way)
				if test.kind != nil {
					require.ErrorIs(t, err, test.kind, way)
					require.ErrorIs(t, err, messagestore.ErrInvalid, way)
				} else if !errors.Is(err, messagestore.ErrInvalid) {
					refused := testkit.As[*pgconn.PgError](t, err)
					require.Contains(t, []string{"22", "54"}, refused.Code[:2], "%s: %v", way, err)
				}
				require.Less(t, len(err.Error()), 500)
				require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err)
				require.Zero(t, pool.Stat().AcquiredConns(), way)
			}
			page := testkit.Do(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 10}))(t)
			require.Empty(t, page.Messages, "neither it nor what came before it was written")
			require.Zero(t, testkit.Do(driver.Append(t.Context(), appendOne(good, messagestore.NoStream)))(t).Version)
		})
	}
}

// Invalid reads, past the store's validators.
func TestHostileReadsAreRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := testkit.Must(postgres.New(pool, nil))
	stream := func(q messagestore.StreamQuery) error {
		_, err := driver.ReadStream(t.Context(), q)
		return err
	}
	category := func(q messagestore.CategoryQuery) error {
		_, err := driver.ReadCategory(t.Context(), q)
		return err
	}
	for name, test := range map[string]struct {
		err  error
		kind error
	}{
		"a stream from -1":              {stream(messagestore.StreamQuery{Stream: "a-1", From: -1, Limit: 1}), messagestore.ErrInvalid},
		"a stream from the least":       {stream(messagestore.StreamQuery{Stream: "a-1", From: math.MinInt64, Limit: 1}), messagestore.ErrInvalid},
		"no message of a stream":        {stream(messagestore.StreamQuery{Stream: "a-1", Limit: 0}), messagestore.ErrInvalid},
		"less than none of a stream":    {stream(messagestore.StreamQuery{Stream: "a-1", Limit: -1}), messagestore.ErrInvalid},
		"too many of a stream":          {stream(messagestore.StreamQuery{Stream: "a-1", Limit: 10_001}), messagestore.ErrInvalid},
		"backwards from -1":             {stream(messagestore.StreamQuery{Stream: "a-1", From: -1, Limit: 1, Backwards: true}), messagestore.ErrInvalid},
		"a category from -5":            {category(messagestore.CategoryQuery{Category: "a", From: -5, Limit: 1}), messagestore.ErrInvalid},
		"no message of a category":      {category(messagestore.CategoryQuery{Category: "a", Limit: 0}), messagestore.ErrInvalid},
		"too many of a category":        {category(messagestore.CategoryQuery{Category: "a", Limit: 10_001}), messagestore.ErrInvalid},
		"a member that is not there":    {category(messagestore.CategoryQuery{Category: "a", Limit: 1, Filter: messagestore.Filter{GroupSize: 2, GroupMember: 2}}), messagestore.ErrInvalid},
		"a member of less than nothing": {category(messagestore.CategoryQuery{Category: "a", Limit: 1, Filter: messagestore.Filter{GroupSize: 2, GroupMember: -1}}), messagestore.ErrInvalid},
		"a group of 32,768":             {category(messagestore.CategoryQuery{Category: "a", Limit: 1, Filter: messagestore.Filter{GroupSize: 32_768}}), messagestore.ErrInvalid},
	} {
		require.ErrorIs(t, test.err, test.kind, name)
		require.ErrorIs(t, test.err, messagestore.ErrInvalid, name)
	}
	require.Zero(t, pool.Stat().AcquiredConns())
	require.NoError(t, stream(messagestore.StreamQuery{Stream: "a-1", From: math.MaxInt64, Limit: 10_000}))
	require.NoError(t, category(messagestore.CategoryQuery{Category: "nobody", From: math.MaxInt64, Limit: 10_000}))
}

// Every role that can connect can notify on the channel. That wakes, and never keeps a message
// back.
func TestForgedNotificationsLoseNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	writer, reader := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	stream := storetest.Category(t).Stream("1")
	bell, stop := reader.Watch(stream.Category(), 50*time.Millisecond)
	defer stop()
	for _, payload := range []string{
		"", "-", "dibs", "dibs.", "dibs.-", "dibs.-1", "dibs.x", "dibs." + string(stream.Category()), "dibs." + string(stream.Category()) + "-", "dibs." + string(stream.Category()) + "--1",
		"dibs." + string(stream.Category()) + "-9223372036854775808", "dibs." + string(stream.Category()) + "-x", "dibs." + strings.Repeat("x", 7000), "dibs.\u202e\n-1",
		"dibs." + string(stream.Category()) + "-9223372036854775807", // that there will be no more
	} {
		testkit.Do(pool.Exec(t.Context(), "select pg_notify('dibs_messages', $1)", payload))(t)
	}
	for n := range 3 {
		write(t, writer, stream, messagestore.Version(n-1), opened())
		testkit.AwaitEqual(t, "the version at a wake-up", messagestore.Version(n), func() messagestore.Version {
			testkit.Receive(t, "a wake-up", bell)
			return testkit.Do(reader.Version(t.Context(), stream))(t)
		})
	}
}

// Messages that a client of message-db wrote by its loose rules are read, handled or refused one
// by one, and break no log.
func TestWhatOtherClientsWriteNeverStopsAReader(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	for _, m := range []struct{ id, messageType, data, metadata string }{
		{"1", "Opened", `{}`, `{}`},
		{"\n[31m level=error fake", "Opened", `{}`, `{}`},
		{"\u202e\u200d", "Type\nx", `{}`, `{}`},
		{"", "Opened", `{}`, `{}`},
		{"+x", "Opened", `{}`, `{}`},
		{strings.Repeat("long", 200), strings.Repeat("Long", 200), `{}`, `{}`},
		{"2", "Opened", `[1, 2]`, `[]`},
		{"2", "Opened", `"text"`, `"text"`},
		{"2", "Opened", `null`, `null`},
		{"2", "Opened", `{"amount": 1e400}`, `{"causationMessagePosition": 1e30, "properties": []}`},
		{"2", "Opened", `{"amount": ` + strings.Repeat("7", 3000) + `}`, `{"causationMessageStreamName": "a-1", "causationMessagePosition": -1, "causationMessageGlobalPosition": "x"}`},
		{"2", "Opened", strings.Repeat(`{"a": `, 600) + "1" + strings.Repeat("}", 600), `{"correlationStreamName": "x\ny", "schemaVersion": 7, "x": {"y": null}}`},
		{"3", "", `{}`, `{}`},
		{"4", "Opened", `{"amount": 4}`, `{}`},
	} {
		_, err := pool.Exec(t.Context(), "select message_store.write_message(gen_random_uuid()::text, $1, $2, $3::text::jsonb, $4::text::jsonb)", string(category)+"-"+m.id, m.messageType, m.data, m.metadata)
		require.NoError(t, err, "%q", m)
	}
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	mux := handler.New()
	mux.IgnoreUnknown()
	var handled []int
	handler.On(mux, func(_ context.Context, m handler.Message[amount]) error {
		handled = append(handled, m.Body.Amount)
		return nil
	})
	var log bytes.Buffer
	config := &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage}, Logger: logger.Zerolog(zerolog.New(&log))}
	c := testkit.Must(consumer.New(store, category, "ledger", mux, config))

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, 4, handled[len(handled)-1])
	stats := c.Stats()
	require.Equal(t, int64(14), stats.Handled+stats.Parked)
	require.Equal(t, int64(4), stats.Parked, "those whose data is no amount: %v", handled)
	for line := range bytes.Lines(log.Bytes()) {
		var object map[string]any
		require.NoError(t, json.Unmarshal(line, &object), "%s", line)
		require.Less(t, len(line), 4000)
		require.NotContains(t, string(line), strings.Repeat("7", 1000))
	}
	parked := testkit.Do(testkit.Must(operate.Consumer(store, category, "ledger").Parked()).Items(t.Context(), queue.Dead, 0, 100))(t)
	require.Len(t, parked, 4)
	for _, p := range parked {
		require.Less(t, len(p.Error), 1100)
		require.False(t, strings.ContainsFunc(p.Error, unicode.IsControl), "%q", p.Error)
	}
}

type amount struct {
	Amount int `json:"amount"`
}

func (amount) MessageType() string { return "Opened" }
