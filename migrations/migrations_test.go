package migrations_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := testkit.Do(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func one[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	rows, _ := conn.Query(t.Context(), sql, args...)
	return testkit.Do(pgx.CollectExactlyOneRow(rows, pgx.RowTo[T]))(t)
}

// awaitBlocked returns once a connection waits for a lock.
func awaitBlocked(t *testing.T, watcher, waits *pgx.Conn) {
	t.Helper()
	testkit.Await(t, "the connection waits for a lock", func() (bool, any) {
		blocking := one[[]int32](t, watcher, "select pg_blocking_pids($1)", int32(waits.PgConn().PID()))
		return len(blocking) > 0, blocking
	})
}

func requireWorks(t *testing.T, conn *pgx.Conn, schema string) {
	t.Helper()
	quoted := pgx.Identifier{schema}.Sanitize()
	got := one[string](t, conn, "select outcome from "+quoted+`.append('{account-1}', '{-2}', '{1}', array[gen_random_uuid()], '{Opened}', '{"{}"}', '{null}')`)
	require.Equal(t, "written", got)
	require.Equal(t, 1, one[int](t, conn, "select count(*) from "+quoted+".read_stream('account-1')"))
}

func TestUpAgainChangesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
	before := testkit.Do(migrations.Status(t.Context(), conn, nil))(t)
	requireWorks(t, conn, "dibs")

	require.NoError(t, migrations.Up(t.Context(), conn, nil))

	after := testkit.Do(migrations.Status(t.Context(), conn, nil))(t)
	require.Equal(t, before, after)
	files := migrations.Files()
	require.Len(t, after, len(files))
	for i, m := range after {
		require.Equal(t, files[i].Name, m.Name)
		require.True(t, m.Applied && !m.Changed && !m.Unknown && !m.Gone)
		require.WithinDuration(t, time.Now(), m.AppliedAt, time.Hour)
	}
	require.Equal(t, "postgres", one[string](t, conn, "select case when current_user = session_user then 'postgres' end"), "the role is given back")
}

func TestStatusOfAnEmptyDatabaseChangesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))

	status := testkit.Do(migrations.Status(t.Context(), conn, nil))(t)

	require.Len(t, status, len(migrations.Files()))
	for _, m := range status {
		require.Equal(t, migrations.Migration{Name: m.Name}, m)
	}
	require.False(t, one[bool](t, conn, "select to_regnamespace('dibs') is not null"))
}

// Also the roles, which several databases share, are made at once.
func TestManyMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	first, second := pgtest.Database(t), pgtest.Database(t)
	const each = 8
	done := make(chan error, 2*each)
	for i := range 2 * each {
		conn := connect(t, []string{first, second}[i%2])
		go func() { done <- migrations.Up(t.Context(), conn, nil) }()
	}
	for range 2 * each {
		require.NoError(t, testkit.Receive(t, "the end of a migration", done))
	}
	for _, url := range []string{first, second} {
		conn := connect(t, url)
		require.Equal(t, len(migrations.Files()), one[int](t, conn, "select count(*) from dibs.migrations"))
		requireWorks(t, conn, "dibs")
	}
}

func TestRunnerKilledHalfWayLeavesNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	watcher, holder, killed := connect(t, url), connect(t, url), connect(t, url)
	testkit.Do(holder.Exec(t.Context(), "select pg_advisory_lock(1)"))(t)
	halfWay := migrations.Part{Prefix: "waits/", Files: map[string]string{"tables/0001_waits.sql": "set local lock_timeout = 0; select pg_advisory_xact_lock(1);"}}
	done := testkit.Go(func() error { return migrations.UpWith(t.Context(), killed, nil, halfWay) })
	awaitBlocked(t, watcher, killed)

	testkit.Do(watcher.Exec(t.Context(), "select pg_terminate_backend($1)", int32(killed.PgConn().PID())))(t)

	require.Error(t, testkit.Receive(t, "the end of the killed migration", done))
	require.False(t, one[bool](t, watcher, "select to_regnamespace('dibs') is not null"))
	require.NoError(t, migrations.Up(t.Context(), watcher, nil))
	requireWorks(t, watcher, "dibs")
}

func TestFileThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	broken := migrations.Part{Prefix: "broken/", Files: map[string]string{"tables/0001_broken.sql": "select 1;\n\nselect é nonsense;\n"}}

	err := migrations.UpWith(t.Context(), conn, nil, broken)

	require.ErrorContains(t, err, "migrate: broken/tables/0001_broken.sql: line 3: ")
	_ = testkit.As[*pgconn.PgError](t, err)
	require.False(t, one[bool](t, conn, "select to_regnamespace('dibs') is not null"))
}

func TestEverySchemaIsAStoreOfItsOwn(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, schema := range []string{"dibs", "select", "_", strings.Repeat("x", 63)} {
		config := &migrations.Config{Schema: schema}
		empty := drift(t, conn, config)
		require.Empty(t, empty.Differences)
		require.Len(t, empty.NotApplied, len(migrations.Files()))

		require.NoError(t, migrations.Up(t.Context(), conn, config), schema)

		requireWorks(t, conn, schema)
		report := drift(t, conn, config)
		require.Empty(t, report.Differences, schema)
		require.Empty(t, report.AbsentRoles)
	}
	require.Equal(t, 1, one[int](t, conn, "select count(*) from dibs.messages"))
}

func TestHostileSchemaNamesAreRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, schema := range []string{
		`"; drop schema public cascade; --`, `a"b`, "a'b", "a b", "a.b", "Dibs", "é", "1a", "a-b", "a\x00b", "a\nb", `\`, "$$", "$1", "%s", "--", "/*", " ", "pg_catalog", "pg_temp", "pg_x", "information_schema",
		strings.Repeat("x", 64), strings.Repeat("x", 1<<20),
	} {
		for _, err := range []error{
			migrations.Up(t.Context(), conn, &migrations.Config{Schema: schema}),
			migrations.Print(&bytes.Buffer{}, &migrations.Config{Schema: schema}),
			func() error {
				_, err := migrations.Status(t.Context(), conn, &migrations.Config{Schema: schema})
				return err
			}(),
		} {
			require.ErrorIs(t, err, migrations.ErrInvalidSchema, "%.100q", schema)
			require.Less(t, len(err.Error()), 300)
			require.NotContains(t, err.Error(), "\n")
		}
	}
	require.Equal(t, 1, one[int](t, conn, "select count(*) from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'"), "public is all there is")
}

func TestChangedTableFileIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	made := migrations.Part{Prefix: "test/", Files: map[string]string{"tables/0001_a.sql": "create table dibs.a ();"}}
	require.NoError(t, migrations.UpWith(t.Context(), conn, nil, made))
	changed := migrations.Part{Prefix: "test/", Files: map[string]string{"tables/0001_a.sql": "create table dibs.a (b text);", "tables/0002_c.sql": "create table dibs.never ();"}}

	err := migrations.UpWith(t.Context(), conn, nil, changed)

	require.ErrorIs(t, err, migrations.ErrChanged)
	require.ErrorContains(t, err, "test/tables/0001_a.sql: changed after it was applied")
	require.False(t, one[bool](t, conn, "select to_regclass('dibs.never') is not null"))
	status := testkit.Do(migrations.StatusWith(t.Context(), conn, nil, changed))(t)
	last := status[len(status)-2:]
	require.True(t, last[0].Changed && last[0].Applied)
	require.False(t, last[1].Applied)
	require.False(t, status[0].Changed)
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	const view = "create or replace view dibs.v as select 1 as a;"
	now := migrations.Part{Prefix: "test/", Version: 2, Files: map[string]string{"functions/v.sql": view}}
	for name, test := range map[string]struct {
		newer   migrations.Part
		unknown string
	}{
		"a table":      {migrations.Part{Prefix: "test/", Version: 2, Files: map[string]string{"tables/0001_a.sql": "create table dibs.a ();"}}, "test/tables/0001_a.sql"},
		"a function":   {migrations.Part{Prefix: "test/", Version: 3, Files: map[string]string{"functions/w.sql": "create or replace view dibs.w as select 1 as a;"}}, "test/functions/w.sql"},
		"a change":     {migrations.Part{Prefix: "test/", Version: 3, Files: map[string]string{"functions/v.sql": view + "\n"}}, "test/functions/v.sql"},
		"another part": {migrations.Part{Prefix: "queue/", Files: map[string]string{"functions/w.sql": "create or replace view dibs.w as select 1 as a;"}}, "queue/functions/w.sql"},
	} {
		conn := connect(t, pgtest.Migrated(t))
		require.NoError(t, migrations.UpWith(t.Context(), conn, nil, test.newer), name)

		err := migrations.UpWith(t.Context(), conn, nil, now)

		require.ErrorIs(t, err, migrations.ErrTooNew, name)
		require.ErrorContains(t, err, test.unknown, name)
		status := testkit.Do(migrations.StatusWith(t.Context(), conn, nil, now))(t)
		i := slices.IndexFunc(status, func(m migrations.Migration) bool { return m.Name == test.unknown })
		require.True(t, status[i].Unknown, name)
		require.True(t, one[bool](t, conn, "select count(*) = 1 from dibs.migrations where name ~ '^(test|queue)/'"), "nothing was changed")
	}
}

// The functions may change without a table, and without a number.
func TestChangedFunctionIsInstalledAndAGoneOneIsDropped(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	files := func(changed map[string]string) migrations.Part {
		all := map[string]string{
			"functions/a.sql": "create or replace function dibs.a() returns integer language sql return dibs.b();\n\ngrant execute on function dibs.a to dibs_reader, dibs_writer;\n",
			"functions/b.sql": "create or replace function dibs.b() returns integer language sql return 1;\n",
			"functions/c.sql": "create or replace view dibs.c as select dibs.b();\n\ngrant select on dibs.c to dibs_reader;\n",
		}
		for name, text := range changed {
			all[name] = text
			if text == "" {
				delete(all, name)
			}
		}
		return migrations.Part{Prefix: "test/", Files: all}
	}
	require.NoError(t, migrations.UpWith(t.Context(), conn, nil, files(nil)))
	require.True(t, one[bool](t, conn, "select has_function_privilege('dibs_reader', 'dibs.a()', 'execute') and has_table_privilege('dibs_reader', 'dibs.c', 'select') and not has_function_privilege('dibs_reader', 'dibs.b()', 'execute')"))
	const others = "select string_agg(name || applied_at, ' ' order by name) from dibs.migrations where name not like 'test/%'"
	before := one[string](t, conn, others)

	changed := files(map[string]string{
		"functions/a.sql": "create or replace function dibs.a() returns integer language sql return 2;\n\ngrant execute on function dibs.a to dibs_writer;\n",
		"functions/b.sql": "", "functions/c.sql": "",
	})
	status := testkit.Do(migrations.StatusWith(t.Context(), conn, nil, changed))(t)
	last := status[len(status)-3:]
	require.False(t, last[0].Applied)
	require.True(t, last[1].Gone && last[2].Gone)
	require.NoError(t, migrations.UpWith(t.Context(), conn, nil, changed))

	require.Equal(t, 2, one[int](t, conn, "select dibs.a()"))
	require.True(t, one[bool](t, conn, "select to_regproc('dibs.b') is null and to_regclass('dibs.c') is null"))
	require.True(t, one[bool](t, conn, "select has_function_privilege('dibs_writer', 'dibs.a()', 'execute') and not has_function_privilege('dibs_reader', 'dibs.a()', 'execute')"))
	require.Equal(t, before, one[string](t, conn, others), "other files are not applied again")
	require.Equal(t, []string{"test/functions/a.sql"}, one[[]string](t, conn, "select array_agg(name) from dibs.migrations where name like 'test/%'"))
}

// To PostgreSQL a function with other parameters is another one: a numbered file drops the old one,
// and its row, so that it is made anew behind that file.
func TestNumberedFileDropsAFunctionThatTakesMore(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	files := map[string]string{
		"tables/0001_a.sql": "create table dibs.a ();",
		"functions/f.sql":   "create or replace function dibs.f() returns integer language sql return 1;\n\ngrant execute on function dibs.f to dibs_reader;\n",
	}
	require.NoError(t, migrations.UpWith(t.Context(), conn, nil, migrations.Part{Prefix: "test/", Files: files}))
	requireWorks(t, conn, "dibs")
	const written = "select m::text from dibs.messages m"
	message := one[string](t, conn, written)
	files["functions/f.sql"] = "create or replace function dibs.f(more integer default 2) returns integer language sql return more;\n\ngrant execute on function dibs.f to dibs_reader;\n"
	files["tables/0002_f.sql"] = "drop function dibs.f();\ndelete from dibs.migrations where name = 'test/functions/f.sql';\n"

	require.NoError(t, migrations.UpWith(t.Context(), conn, nil, migrations.Part{Prefix: "test/", Version: 2, Files: files}))

	require.Equal(t, []string{"dibs.f(integer)"}, one[[]string](t, conn, "select array_agg(oid::regprocedure::text) from pg_proc where proname = 'f'"))
	require.True(t, one[bool](t, conn, "select dibs.f() = 2 and has_function_privilege('dibs_reader', 'dibs.f(integer)', 'execute')"))
	require.Equal(t, message, one[string](t, conn, written), "what was written stays")
}

// A system that comes later brings a folder with its tables, functions, views and roles.
func TestPartBringsItsTablesFunctionsAndRights(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	queue := migrations.Part{Prefix: "queue/", Files: map[string]string{
		"tables/0001_items.sql": "create table dibs.items (id uuid primary key, taken_at timestamptz);\n",
		"functions/take.sql": `create or replace function dibs.take() returns uuid
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$ begin return dibs.take_one(); end $$;

grant execute on function dibs.take to dibs_writer;
`,
		"functions/take_one.sql": "create or replace function dibs.take_one() returns uuid language sql as 'select id from dibs.items limit 1';\n",
		"catalog.txt":            "table dibs.items\n",
	}}

	require.NoError(t, migrations.UpWith(t.Context(), conn, nil, queue))

	service, _ := connectAs(t, conn.Config().ConnString(), "in role dibs_writer")
	require.True(t, one[bool](t, service, "select dibs.take() is null"))
	reader, _ := connectAs(t, conn.Config().ConnString(), "in role dibs_reader")
	for _, denied := range []string{"select dibs.take()", "select dibs.take_one()", "select from dibs.items"} {
		_, err := reader.Exec(t.Context(), denied)
		require.Equal(t, "42501", code(t, err), denied)
	}
	report := testkit.Do(migrations.DriftWith(t.Context(), conn, queue))(t)
	for _, d := range report.Differences {
		require.Contains(t, []string{"table dibs.items", "function dibs.take()", "function dibs.take_one()"}, d.Object)
	}
	require.Len(t, report.Differences, 3)

	queue.Version++
	queue.Files["tables/0002_added.sql"] = "alter table dibs.items add column added_at timestamptz;\n"
	require.NoError(t, migrations.UpWith(t.Context(), conn, nil, queue))
	require.True(t, one[bool](t, conn, "select exists (select from pg_attribute where attrelid = 'dibs.items'::regclass and attname = 'added_at')"))
	requireWorks(t, conn, "dibs")

	// As if it had never been.
	_, err := conn.Exec(t.Context(), "drop table dibs.items; drop function dibs.take, dibs.take_one; delete from dibs.migrations where name like 'queue/%'; truncate dibs.messages")
	require.Error(t, err, "messages are only ever added")
	testkit.Do(conn.Exec(t.Context(), "drop table dibs.items; drop function dibs.take, dibs.take_one; delete from dibs.migrations where name like 'queue/%'"))(t)
	require.Empty(t, drift(t, conn, nil).Differences)
}

func TestConnectionInATransactionIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	tx := testkit.Do(conn.Begin(t.Context()))(t)

	require.ErrorIs(t, migrations.Up(t.Context(), conn, nil), migrations.ErrInTransaction)
	require.ErrorIs(t, testkit.ErrorOf(migrations.Status(t.Context(), conn, nil)), migrations.ErrInTransaction)
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestContextEndsTheWaitForAnother(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	watcher, holder, waiting := connect(t, url), connect(t, url), connect(t, url)
	tx := testkit.Do(holder.Begin(t.Context()))(t)
	testkit.Do(tx.Exec(t.Context(), "select pg_advisory_xact_lock($1::int, hashtext('dibs'))", 0x6469626d))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := testkit.Go(func() error { return migrations.Up(ctx, waiting, nil) })
	awaitBlocked(t, watcher, waiting)

	cancel()

	require.ErrorIs(t, testkit.Receive(t, "the end of the migration", done), context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))
}

// A user of a managed database may create in it, and nothing more.
func TestUserWhoMayNotMakeRolesOwnsTheSchema(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // so that the roles are there, and the user may not act as their owner
	url := pgtest.Database(t)
	conn, user := connectAs(t, url, "")

	require.NoError(t, migrations.Up(t.Context(), conn, nil))

	requireWorks(t, conn, "dibs")
	require.Equal(t, user, one[string](t, conn, "select pg_get_userbyid(relowner)::text from pg_class where oid = 'dibs.messages'::regclass"))
	stranger, _ := connectAs(t, url, "")
	_, err := stranger.Exec(t.Context(), "select dibs.stream_version('a-1')")
	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "42501", refused.Code)
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
}

func TestUserWhoMayMakeRolesMakesThemOwnTheSchema(t *testing.T) {
	t.Parallel()
	if server := pgtest.ServerVersion(t); server >= 16 {
		t.Skipf("the server is PostgreSQL %d: since 16, CREATEROLE gives no right to a role that another user made", server)
	}
	pgtest.Pool(t)
	url := pgtest.Database(t)
	conn, _ := connectAs(t, url, "createrole")

	require.NoError(t, migrations.Up(t.Context(), conn, nil))

	require.Equal(t, "dibs_owner", one[string](t, conn, "select pg_get_userbyid(relowner)::text from pg_class where oid = 'dibs.messages'::regclass"))
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
}

// connectAs returns a connection of a new user with CREATE on the database.
func connectAs(t *testing.T, url, attributes string) (*pgx.Conn, string) {
	t.Helper()
	config := testkit.Do(pgx.ParseConfig(url))(t)
	admin := connect(t, url)
	user, password := "test_"+strings.ToLower(rand.Text()), rand.Text()
	testkit.Do(admin.Exec(t.Context(), fmt.Sprintf("create role %s login password '%s' %s; grant create on database %s to %[1]s", user, password, attributes, config.Database)))(t)
	t.Cleanup(func() {
		// Before the database is dropped, while the user's objects can be named. Each is a transaction:
		// in one, they could deadlock with those of another test, which has the same roles.
		for _, statement := range []string{"drop owned by " + user + " cascade", "drop role " + user} {
			testkit.Do(admin.Exec(context.WithoutCancel(t.Context()), statement))(t)
		}
	})
	config.User, config.Password = user, password
	conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn, user
}

func TestPrintedScriptIsWhatUpDoes(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	var script bytes.Buffer
	require.NoError(t, migrations.Print(&script, &migrations.Config{Schema: "other"}))
	require.Contains(t, script.String(), "-- Makes a message store in the schema other,")
	sql := regexp.MustCompile(`(?m)^\\.*\n`).ReplaceAllString(script.String(), "") // psql's own
	testkit.Do(conn.PgConn().Exec(t.Context(), sql).ReadAll())(t)

	status := testkit.Do(migrations.Status(t.Context(), conn, &migrations.Config{Schema: "other"}))(t)
	for _, m := range status {
		require.True(t, m.Applied && !m.Changed || m.LeftOut == "it is only for the store in the schema dibs", m.Name)
	}
	require.NoError(t, migrations.Up(t.Context(), conn, &migrations.Config{Schema: "other"}))
	requireWorks(t, conn, "other")
}

// Databases of every state there was come to the schema of a new one. The files in
// testdata/releases are the scripts that releases printed, by their version.
func TestEveryEarlierStateIsUpgraded(t *testing.T) {
	t.Parallel()
	states := map[string]func(t *testing.T, url string){}
	releases := testkit.Do(filepath.Glob("testdata/releases/*.sql"))(t)
	for _, name := range releases {
		states[name] = func(t *testing.T, url string) {
			t.Helper()
			run(t, exec.CommandContext(t.Context(), "psql", "-X", "-q", "-f", name, "-d", url))
		}
	}
	for prefix, tables := range migrations.Tables() {
		for n := 1; n <= tables; n++ {
			states[fmt.Sprintf("%d tables of part %q", n, prefix)] = func(t *testing.T, url string) {
				t.Helper()
				require.NoError(t, migrations.UpToTables(t.Context(), connect(t, url), prefix, n))
			}
		}
	}
	want := dumpOfUp(t)
	all := ways(t)
	for i, name := range slices.Sorted(maps.Keys(states)) {
		make := states[name]
		for j, with := range slices.Sorted(maps.Keys(all)) {
			// Each state by one way for every change, by another each day.
			if !testkit.Long() && j != (i+testkit.Turn(len(all)))%len(all) {
				continue
			}
			migrate := all[with]
			t.Run(name+" by "+with, func(t *testing.T) {
				t.Parallel()
				url := pgtest.Database(t)
				make(t, url)
				status := testkit.Do(migrations.Status(t.Context(), connect(t, url), nil))(t)
				for _, m := range status {
					require.False(t, m.Changed || m.Unknown, m.Name)
				}

				migrate(url)

				conn := connect(t, url)
				requireSame(t, want, dump(t, url))
				require.Empty(t, drift(t, conn, nil).Differences)
				requireWorks(t, conn, "dibs")
			})
		}
	}
}

// The script that a release printed is that of its version for ever: the first change after it
// takes the next version.
func TestReleasedVersionIsNotChanged(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	released, err := os.ReadFile(fmt.Sprintf("testdata/releases/%04d.sql", one[int](t, conn, "select version from dibs.schema_version()")))
	if os.IsNotExist(err) {
		return // not released yet
	}
	require.NoError(t, err)
	require.Equal(t, string(released), printed(t), "raise the version in parts.go and functions/schema_version.sql")
}

func TestMain(m *testing.M) {
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}
