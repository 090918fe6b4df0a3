package postgres_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/migrations"
)

func TestConformanceAsAWriterInAnotherSchema(t *testing.T) {
	t.Parallel()
	testkit.TakesTurns(t, 2, 4)
	_, schema := pgtest.SchemaInShared(t)
	pool := pgtest.PoolAs(t, "dibs_writer")
	storetest.Run(t, storetest.Options{Open: func(*testing.T) messagestore.Driver {
		return testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
	}})
}

func TestReaderReadsAndCannotWrite(t *testing.T) {
	t.Parallel()
	stream := storetest.Category(t).Stream("1")
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil)), stream, messagestore.NoStream, opened())
	reader := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.PoolAs(t, "dibs_reader"), nil)), nil))

	requireDenied(t, testkit.ErrorOf(reader.Write(t.Context(), stream, messagestore.AnyVersion, opened())))
	_, err := reader.Resolve(t.Context(), &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: stream, Records: []messagestore.Encoded{{ID: uuid.New()}}}}})
	requireDenied(t, err)

	require.Equal(t, messagestore.Version(0), testkit.Do(reader.Last(t.Context(), stream))(t).Position)
	testkit.Do(reader.Version(t.Context(), stream))(t)
	for _, err := range reader.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
	}
	for _, err := range reader.ReadCategory(t.Context(), stream.Category(), 0, messagestore.Filter{Types: []string{"Opened"}}) {
		require.NoError(t, err)
	}
}

// A producer inserts, also in its own transaction, and cannot touch the items that others work on.
// The error names the role that may.
func TestWriterDoesNotWorkOnQueues(t *testing.T) {
	t.Parallel()
	of := queuing.Queue{Name: string(storetest.Category(t))}
	of.Category = messagestore.Category(of.Name)
	worker := testkit.Must(postgres.New(pgtest.PoolAs(t, "dibs_worker"), nil))
	write(t, testkit.Must(messagestore.New(worker, nil)), of.Category.Stream("1"), messagestore.NoStream, opened())
	take := queuing.Take{Queue: of, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour, Want: 1}
	taken := testkit.Do(worker.QueueTake(t.Context(), take))(t)
	out := taken.Items[0].Delivery()

	for _, role := range []string{"dibs_writer", "dibs_reader", "dibs_operator", "dibs_admin"} {
		other := testkit.Must(postgres.New(pgtest.PoolAs(t, role), nil))
		for name, call := range map[string]func() error{
			"take": func() error { _, err := other.QueueTake(t.Context(), take); return err },
			"extend": func() error {
				_, err := other.QueueExtend(t.Context(), queuing.Extension{Queue: of, Session: 1, Lease: time.Hour})
				return err
			},
			"leave":  func() error { return other.QueueLeave(t.Context(), queuing.Leave{Queue: of, Session: 1}) },
			"finish": func() error { _, err := other.QueueFinish(t.Context(), of, 1, []queuing.Delivery{out}); return err },
		} {
			err := call()
			require.ErrorIs(t, err, messagestore.ErrNotPermitted, role+" "+name)
			require.ErrorContains(t, err, "grant dibs_worker to the user of this connection", role+" "+name)
		}
	}
	require.NoError(t, testkit.ErrorOf(testkit.Must(postgres.New(pgtest.PoolAs(t, "dibs_writer"), nil)).QueueReady(t.Context(), of)), "as a consumer does, which parks")
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(postgres.New(pgtest.PoolAs(t, "dibs_reader"), nil)).QueueReady(t.Context(), of)), messagestore.ErrNotPermitted)
	for _, role := range []string{"dibs_writer", "dibs_reader", "dibs_worker"} {
		other := testkit.Must(postgres.New(pgtest.PoolAs(t, role), nil))
		for _, c := range []queuing.Change{
			{Queue: of, Action: queuing.Pause},
			{Queue: of, Action: queuing.Resume},
			{Queue: of, Action: queuing.Cancel, Positions: []messagestore.GlobalPosition{out.Position}},
			{Queue: of, Action: queuing.Drop, Positions: []messagestore.GlobalPosition{out.Position}},
			{Queue: of, Action: queuing.RetryNow, Positions: []messagestore.GlobalPosition{out.Position}},
		} {
			_, err := other.QueueChange(t.Context(), c)
			require.ErrorIs(t, err, messagestore.ErrNotPermitted, role)
			require.ErrorContains(t, err, "grant dibs_operator to the user of this connection", role)
		}
	}
	for _, role := range []string{"dibs_writer", "dibs_reader", "dibs_worker", "dibs_operator"} {
		_, err := testkit.Must(postgres.New(pgtest.PoolAs(t, role), nil)).QueueRemove(t.Context(), queuing.Removal{Queue: of, Unfinished: true})
		require.ErrorIs(t, err, messagestore.ErrNotPermitted, role)
		require.ErrorContains(t, err, "grant dibs_admin to the user of this connection", role)
	}

	item := testkit.Do(worker.QueueItem(t.Context(), of, out.Position))(t)
	require.Equal(t, queuing.Out, item.State)
	require.Equal(t, int64(1), item.Session)
}

// The error for a missing right names the remedy.
func TestDeniedFunctionNamesARoleThatMayCallIt(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.Pool(t).Query(t.Context(), `
		select p.proname::text, array_agg(r.role order by r.n), count(*) filter (where r.role = 'dibs_reader') > 0
		from pg_proc p
		cross join unnest('{dibs_reader,dibs_writer,dibs_worker,dibs_operator,dibs_admin}'::text[]) with ordinality r (role, n)
		where p.pronamespace = 'dibs'::regnamespace and has_function_privilege(r.role, p.oid, 'execute')
		group by 1`)
	require.NoError(t, err)
	type granted struct {
		Function string
		Roles    []string
		Readers  bool
	}
	all := testkit.Do(pgx.CollectRows(rows, pgx.RowToStructByPos[granted]))(t)
	require.Greater(t, len(all), 30)
	for _, f := range all {
		text := pglink.Failed(&pgconn.PgError{Severity: "ERROR", Code: pglink.Denied, Message: "permission denied for function " + f.Function}).Error()
		if f.Readers {
			require.Contains(t, text, "grant dibs_reader to read, ", f.Function)
			continue
		}
		_, after, _ := strings.Cut(text, ": grant ")
		role, _, _ := strings.Cut(after, " ")
		require.Contains(t, f.Roles, role, f.Function)
		require.Equal(t, "grant "+role+" to the user of this connection", "grant "+after, f.Function)
	}
}

// In a database of its own: some statements take a table's lock before the server looks at the
// rights, and would wait for a transaction of another test, which then waits for them.
func TestNobodyHasRightsOnTables(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	for _, role := range []string{"dibs_writer", "dibs_reader", "dibs_worker", "dibs_operator", "dibs_admin", "message_store"} {
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
			requireDenied(t, testkit.ErrorOf(pool.Exec(t.Context(), statement)), "%s: %s", role, statement)
		}
	}
}

// A function that runs as its owner resolves every name itself, and no setting of the caller's
// changes its behaviour.
func TestSessionOfTheCallerHijacksNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolAs(t, "dibs_writer")
	conn := testkit.Do(pool.Acquire(t.Context()))(t)
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
		require.NoError(t, testkit.ErrorOf(conn.Exec(t.Context(), statement)), statement)
	}
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(conn, nil)), nil))
	stream := storetest.Category(t).Stream("1")

	message := opened()
	write(t, store, stream, messagestore.NoStream, message)
	again := write(t, store, stream, messagestore.NoStream, message)
	require.True(t, again.Duplicate)
	require.ErrorIs(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.NoStream, opened(), opened())), messagestore.ErrVersionConflict)
	require.Len(t, testkit.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: stream.Category(), Limit: 10}))(t).Messages, 1)
	for _, name := range []string{"a-\u0001", "a-\u200b", "a-1 ", "a-", "a", " a-1"} {
		requireRefused(t, appendRaw(t, conn, rawAppend{stream: name}), "streams")
	}

	for _, name := range []string{"text", "uuid", "jsonb", "json"} {
		testkit.Do(conn.Exec(t.Context(), "create domain pg_temp."+name+" as integer"))(t)
	}
	name := string(stream.Category())
	for _, call := range []string{
		"append('{" + name + "-2," + name + "-3}', '{-2,-2}', '{1,1}', array[gen_random_uuid(), gen_random_uuid()], '{T,T}', '{\"{}\",\"{}\"}', array_fill(null::pg_catalog.json, '{2}'))",
		"append('{" + name + "-2}', '{4}', '{1}', array[gen_random_uuid()], '{T}', '{\"{}\"}', array_fill(null::pg_catalog.json, '{1}'))",
		"read_category('" + name + "', 0, 10, '{T}')", "read_stream('" + name + "-2')", "last_message('" + name + "-2', 'T')", "find_messages('" + name + "-2', array[gen_random_uuid()])",
	} {
		require.NoError(t, testkit.ErrorOf(conn.Exec(t.Context(), "select * from dibs."+call)), call)
	}
}

func requireDenied(t *testing.T, err error, args ...any) {
	t.Helper()
	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "42501", refused.Code, args...)
}

// As docs/trust.md says: roles are the server's, so what separates services is the right to
// connect.
func TestASchemaSeparatesNoRightsAndADatabaseDoes(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	admin := pgtest.Connect(t, url)
	_, schema := pgtest.SchemaInShared(t)
	shared := pgtest.PoolAs(t, "dibs_writer")
	for _, in := range []string{"dibs", schema} {
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(shared, &postgres.Config{Schema: in})), nil))
		write(t, store, storetest.Category(t).Stream("1"), messagestore.NoStream, opened())
	}
	user := loginIn(t, url, "dibs_writer")
	testkit.Do(admin.Exec(t.Context(), "do $$ begin execute format('revoke connect on database %I from public', current_database()); end $$"))(t)

	requireDenied(t, testkit.ErrorOf(pgtest.Connect(t, with(t, url, "user", user)).Exec(t.Context(), "select 1")))
	testkit.Do(admin.Exec(t.Context(), "do $$ begin execute format('grant connect on database %I to "+user+"', current_database()); end $$"))(t)

	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Connect(t, with(t, url, "user", user)), nil)), nil)), storetest.Category(t).Stream("1"), messagestore.NoStream, opened())
}

// harden runs the statement by which docs/dba.md takes advisory locks from the public, as the page
// has it.
func harden(t *testing.T, superuser *pgx.Conn) {
	t.Helper()
	page := testkit.Do(os.ReadFile("../../docs/dba.md"))(t)
	var found []string
	for _, part := range strings.Split(string(page), "```sql\n")[1:] {
		if block, _, _ := strings.Cut(part, "```"); strings.Contains(block, "revoke execute") {
			found = append(found, block)
		}
	}
	require.Len(t, found, 1)
	exec(t, superuser, found[0])
}

func TestHardeningOfThePageTakesLocksFromStrangersAndStopsNoService(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	superuser := connect(t, url)
	harden(t, superuser)

	stranger := connect(t, with(t, url, "user", loginIn(t, url, "dibs_worker")))
	rows, err := superuser.Query(t.Context(), `
		select distinct l.name
		from pg_proc p
		cross join lateral regexp_matches(p.prosrc, '(pg_(?:try_)?advisory_\w*lock\w*)\(', 'g') m
		cross join lateral (select m[1] as name) l
		where p.pronamespace in ('dibs'::regnamespace, 'message_store'::regnamespace)`)
	require.NoError(t, err)
	called := testkit.Do(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	require.Greater(t, len(called), 5)
	for _, name := range called {
		require.True(t, pgtest.Value[bool](t, superuser, "select has_function_privilege('dibs_owner', $1 || '(int, int)', 'execute')", name), name)
	}
	for _, name := range []string{"lock", "lock_shared", "xact_lock", "xact_lock_shared"} {
		for _, try := range []string{"", "try_"} {
			requireDenied(t, testkit.ErrorOf(stranger.Exec(t.Context(), "select pg_"+try+"advisory_"+name+"(1684628083, 1)")), name)
		}
	}

	pool := pgtest.Connect(t, with(t, url, "user", loginIn(t, url, "dibs_worker")))
	driver := testkit.Must(postgres.New(pool, nil))
	store := testkit.Must(messagestore.New(driver, nil))
	category := storetest.Category(t)
	bell, stop := store.Watch(category, time.Hour)
	defer stop()
	write(t, store, category.Stream("1"), messagestore.NoStream, opened())
	select {
	case <-bell:
	case <-time.After(time.Minute):
		t.Fatal("no wake-up")
	}
	testkit.Do(store.WriteStreams(t.Context(), messagestore.To(category.Stream("2"), messagestore.AnyVersion, opened()), messagestore.To(category.Stream("3"), messagestore.AnyVersion, opened())))(t)
	_, err = store.Resolve(t.Context(), &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: category.Stream("1"), Records: []messagestore.Encoded{{ID: uuid.New()}}}}})
	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	for range 3 { // the first transaction that writes to a category makes it shared, and later ones take other locks
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			within := storeOver(tx)
			if _, err := within.Write(t.Context(), category.Stream("4"), messagestore.AnyVersion, opened()); err != nil {
				return err
			}
			return within.Stage(t.Context(), category.Stream("5"), messagestore.AnyVersion, opened())
		}))
		testkit.Do(testkit.Must(messagestore.Transactional[pgx.Tx](store)).Transact(t.Context(), func(context.Context, pgx.Tx) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{messagestore.To(category.Stream("6"), messagestore.AnyVersion, opened())}, nil
		}))(t)
	}
	of := queuing.Queue{Name: string(category), Category: category}
	taken := testkit.Do(driver.QueueTake(t.Context(), queuing.Take{Queue: of, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour, Want: 100}))(t)
	require.NotEmpty(t, taken.Items)
	require.NoError(t, driver.QueueLeave(t.Context(), queuing.Leave{Queue: of, Session: 1}))

	client := pgtest.Connect(t, with(t, url, "user", loginIn(t, url, "message_store")))
	testkit.Do(client.Exec(t.Context(), "select message_store.write_message(gen_random_uuid()::text, $1, 'T', '{}')", string(category.Stream("7"))))(t)

	adm := testkit.Must(admin.New(pgtest.Connect(t, with(t, url, "user", loginIn(t, url, "dibs_admin"))), nil))
	other := storetest.Category(t) + "x"
	write(t, store, other.Stream("1"), messagestore.NoStream, opened(), opened())
	testkit.Do(adm.Trim(t.Context(), other.Stream("1"), &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t)
	testkit.Do(adm.Delete(t.Context(), other.Stream("1"), messagestore.AnyVersion, nil))(t)
	require.NoError(t, migrations.Up(t.Context(), superuser, nil))
}
