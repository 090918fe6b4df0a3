package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func TestConformanceAsAWriterInAnotherSchema(t *testing.T) {
	t.Parallel()
	tier.TakesTurns(t, 2, 4)
	_, schema := pgtest.SchemaInShared(t)
	pool := pgtest.PoolAs(t, "dibs_writer")
	storetest.Run(t, func(*testing.T) messagestore.Driver {
		return must.New(postgres.New(pool, &postgres.Config{Schema: schema}))
	})
}

func TestReaderReadsAndCannotWrite(t *testing.T) {
	t.Parallel()
	stream := storetest.Category(t).Stream("1")
	write(t, must.New(messagestore.New(must.New(postgres.New(pgtest.Pool(t), nil)), nil)), stream, messagestore.NoStream, opened())
	reader := must.New(messagestore.New(must.New(postgres.New(pgtest.PoolAs(t, "dibs_reader"), nil)), nil))

	_, err := reader.Write(t.Context(), stream, messagestore.AnyVersion, opened())
	requireDenied(t, err)
	_, err = reader.Resolve(t.Context(), &messagestore.OutcomeUnknownError{Writes: []messagestore.UnknownWrite{{Stream: stream, IDs: []uuid.UUID{uuid.New()}}}})
	requireDenied(t, err)

	last, err := reader.Last(t.Context(), stream)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), last.Position)
	_, err = reader.Version(t.Context(), stream)
	require.NoError(t, err)
	for _, err := range reader.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
	}
	for _, err := range reader.ReadCategory(t.Context(), stream.Category(), 0, messagestore.Filter{Types: []string{"Opened"}}) {
		require.NoError(t, err)
	}
}

// In a database of its own: some statements take a table's lock before the server looks at the rights, and
// would wait for a transaction of another test, which then waits for them.
func TestNobodyHasRightsOnTables(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	for _, role := range []string{"dibs_writer", "dibs_reader", "dibs_admin", "message_store"} {
		pool := pgtest.Connect(t, with(t, url, "user", loginIn(t, url, role)))
		for _, statement := range []string{
			"select from dibs.messages", "select id from dibs.messages limit 1", "table dibs.migrations",
			"insert into dibs.messages (category, group_hash, stream_name, position, type, id) values ('a', 0, 'a-1', 0, 'T', gen_random_uuid())",
			"insert into dibs.migrations values ('a', 'b')",
			"update dibs.messages set type = 'T'", "delete from dibs.messages", "truncate dibs.messages",
			"select nextval('dibs.messages_global_position_seq')", "select setval('dibs.messages_global_position_seq', 1)",
			"select last_value from dibs.messages_global_position_seq",
			"create table dibs.mine ()", "create function dibs.mine() returns int language sql return 1",
			"drop table dibs.messages", "alter function dibs.stream_version(text) reset all", "drop schema dibs cascade",
			"create index on dibs.messages (type)", "create trigger t before insert on dibs.messages for each row execute function suppress_redundant_updates_trigger()",
			"copy dibs.messages to stdout", "set role dibs_owner",
		} {
			_, err := pool.Exec(t.Context(), statement)
			requireDenied(t, err, "%s: %s", role, statement)
		}
	}
}

// A function that runs as its owner resolves every name itself, and no setting of the caller's
// changes its behaviour.
func TestSessionOfTheCallerHijacksNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolAs(t, "dibs_writer")
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, statement := range []string{
		"create temp table messages (stream_name text, position bigint, fake text)",
		"create temp view unnest as select 1",
		"create function pg_temp.split_part(text, text, integer) returns text language sql as $$ select 'hijacked' $$",
		"create function pg_temp.current_setting(text) returns text language sql as $$ select 'hijacked' $$",
		"create function pg_temp.valid_type(text) returns boolean language sql as $$ select true $$",
		"create function pg_temp.never(text, text) returns boolean language sql as $$ select false $$",
		"create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.never)",
		"set search_path = pg_temp, dibs, public",
		"set standard_conforming_strings = off",
		"set backslash_quote = on",
		"set transform_null_equals = on",
		"set array_nulls = off",
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	store := must.New(messagestore.New(must.New(postgres.New(conn, nil)), nil))
	stream := storetest.Category(t).Stream("1")

	message := opened()
	write(t, store, stream, messagestore.NoStream, message)
	again := write(t, store, stream, messagestore.NoStream, message)
	require.True(t, again.Duplicate)
	_, err = store.Write(t.Context(), stream, messagestore.NoStream, opened(), opened())
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	page, err := store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: stream.Category(), Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Messages, 1)
	for _, name := range []string{"a-\u0001", "a-\u200b", "a-1 ", "a-", "a", " a-1"} {
		err := appendRaw(t, conn, rawAppend{stream: name})
		requireRefused(t, err, "streams")
	}

	for _, name := range []string{"text", "uuid", "jsonb", "json"} {
		_, err := conn.Exec(t.Context(), "create domain pg_temp."+name+" as integer")
		require.NoError(t, err)
	}
	name := string(stream.Category())
	for _, call := range []string{
		"append('{" + name + "-2," + name + "-3}', '{-2,-2}', '{1,1}', array[gen_random_uuid(), gen_random_uuid()], '{T,T}', '{\"{}\",\"{}\"}', array_fill(null::pg_catalog.json, '{2}'))",
		"append('{" + name + "-2}', '{4}', '{1}', array[gen_random_uuid()], '{T}', '{\"{}\"}', array_fill(null::pg_catalog.json, '{1}'))",
		"read_category('" + name + "', 0, 10, '{T}')", "read_stream('" + name + "-2')", "last_message('" + name + "-2', 'T')", "find_messages('" + name + "-2', array[gen_random_uuid()])",
	} {
		_, err := conn.Exec(t.Context(), "select * from dibs."+call)
		require.NoError(t, err, call)
	}
}

func requireDenied(t *testing.T, err error, args ...any) {
	t.Helper()
	refused, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, append([]any{fmt.Sprint(err) + ": %s %s"}, args...)...)
	require.Equal(t, "42501", refused.Code, args...)
}
