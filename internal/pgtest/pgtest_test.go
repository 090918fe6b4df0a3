package pgtest_test

import (
	"context"
	"crypto/rand"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

func TestPoolIsMigrated(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)

	require.True(t, pgtest.Value[bool](t, pool, "select to_regclass('dibs.messages') is not null"))
}

func TestSchemaInSharedIsOneTestsOwn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	count := func(name string) (n int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from pg_namespace where nspname = $1", name).Scan(&n))
		return n
	}

	var first string
	t.Run("while the test runs", func(t *testing.T) {
		var own string
		_, first = pgtest.SchemaInShared(t)
		_, own = pgtest.SchemaInShared(t)

		require.NotEqual(t, first, own)
		require.Equal(t, 1, count(first))
	})

	require.Equal(t, 0, count(first))
}

func TestSchemaIsOneTestsOwn(t *testing.T) {
	t.Parallel()
	first, schema := pgtest.Schema(t)
	testkit.Do(first.Exec(t.Context(), "drop table "+schema+".removals"))(t)

	second, schema := pgtest.Schema(t)

	var there, other bool
	require.NoError(t, second.QueryRow(t.Context(), "select to_regclass($1 || '.removals') is not null, to_regnamespace('dibs') is not null", schema).Scan(&there, &other))
	require.True(t, there)
	require.False(t, other)
}

func TestCopiesAreOfOneTemplateAndApart(t *testing.T) {
	t.Parallel()
	filled := 0
	fill := func(url string) {
		filled++
		execute(t, url, "create table thing as select 1 as n")
	}
	template := "of_" + strings.ToLower(rand.Text())
	first, second := pgtest.Copy(t, template, fill), pgtest.Copy(t, template, fill)
	t.Cleanup(func() { execute(t, pgtest.URL(t), "drop database dibs_test_"+template) })

	execute(t, first, "update thing set n = 2")

	require.Equal(t, 1, filled)
	var n int
	conn := testkit.Do(pgx.Connect(t.Context(), second))(t)
	defer conn.Close(t.Context())
	require.NoError(t, conn.QueryRow(t.Context(), "select n from thing").Scan(&n))
	require.Equal(t, 1, n)
}

func TestCopiesOfAFrozenDatabaseAreFilledAndApart(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	execute(t, url, "create table thing as select 1 as n")

	copied := pgtest.Freeze(t, url)

	for range 2 {
		conn := testkit.Do(pgx.Connect(t.Context(), copied(t)))(t)
		defer conn.Close(t.Context())
		require.Equal(t, 2, pgtest.Value[int](t, conn, "update thing set n = n + 1 returning n"))
	}
	require.ErrorContains(t, testkit.ErrorOf(pgx.Connect(t.Context(), url)), "not currently accepting connections")
}

func TestFunctionsWaitForLocks(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	conn := testkit.Do(pgx.Connect(t.Context(), url))(t)
	defer conn.Close(t.Context())
	bounded := func() (n int) {
		t.Helper()
		const count = "select count(*) from pg_proc where pronamespace = 'dibs'::regnamespace and proconfig::text like '%lock_timeout=10s%'"
		require.NoError(t, conn.QueryRow(t.Context(), count).Scan(&n))
		return n
	}
	require.Positive(t, bounded())

	pgtest.WaitForLocks(t, url, "dibs")

	require.Zero(t, bounded())
}

func TestMigratedDatabaseNeedsNoMigration(t *testing.T) {
	t.Parallel()
	conn := testkit.Do(pgx.Connect(t.Context(), pgtest.Migrated(t)))(t)
	defer conn.Close(t.Context())

	status := testkit.Do(migrations.Status(t.Context(), conn, nil))(t)

	require.NotEmpty(t, status)
	for _, m := range status {
		require.True(t, m.Applied, m.Name)
	}
}

func execute(t *testing.T, url, statement string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn := testkit.Do(pgx.Connect(ctx, url))(t)
	defer conn.Close(ctx)
	testkit.Do(conn.Exec(ctx, statement))(t)
}

func TestDatabaseIsDroppedThoughSomebodyIsConnected(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)

	var name string
	t.Run("while the test runs", func(t *testing.T) {
		conn := testkit.Do(pgx.Connect(t.Context(), pgtest.Database(t)))(t)
		require.NoError(t, conn.QueryRow(t.Context(), "select current_database()").Scan(&name))
	})

	require.Equal(t, 0, pgtest.Value[int](t, pool, "select count(*) from pg_database where datname = $1", name))
}

func TestServerIsOneTestsOwnAndSyncs(t *testing.T) {
	t.Parallel()
	var own, standby string
	t.Run("while the test runs", func(t *testing.T) {
		own = pgtest.Server(t)
		standby = pgtest.Standby(t, own)
		require.Equal(t, "on", show(t, own, "fsync"))
		require.Equal(t, "off", show(t, own, "in_hot_standby"))
		require.Equal(t, "on", show(t, standby, "in_hot_standby"))
	})
	if standby == "" {
		t.Skip("no standby was started")
	}

	for _, url := range []string{own, standby} {
		require.Error(t, testkit.ErrorOf(pgx.Connect(t.Context(), url)))
	}
}

func TestASharedServerIsOneTestsAtATimeAndHasItsSettingsBack(t *testing.T) {
	t.Parallel()
	var shared pgtest.SharedServer
	var url string
	var had atomic.Int32
	t.Run("tests", func(t *testing.T) {
		for range 3 {
			t.Run("that changes a setting", func(t *testing.T) {
				t.Parallel()
				url = shared.Alone(t)
				require.Equal(t, int32(1), had.Add(1))
				t.Cleanup(func() { had.Add(-1) })
				require.Equal(t, "on", show(t, url, "fsync"))
				require.Empty(t, show(t, url, "synchronous_standby_names"))
				execute(t, url, "alter system set fsync = off")
				execute(t, url, "alter system set synchronous_standby_names = 'nobody'")
				execute(t, url, "select pg_reload_conf()")
				testkit.AwaitEqual(t, "the setting", "off", func() string { return show(t, url, "fsync") })
			})
		}
	})
	t.Run("a test that changes none, beside another", func(t *testing.T) {
		require.Equal(t, url, shared.Together(t))
		require.Equal(t, "on", show(t, shared.Together(t), "fsync"))
	})
	if url == "" {
		t.Skip("no server was started")
	}

	require.NoError(t, shared.Stop())

	require.Error(t, testkit.ErrorOf(pgx.Connect(t.Context(), url)))
}

func TestPgBouncerIsInFrontOfTheDatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	var through *pgtest.Bouncer
	t.Run("while the test runs", func(t *testing.T) {
		through = pgtest.PgBouncer(t, database)
		require.Equal(t, show(t, database, "data_directory"), show(t, through.URL, "data_directory"))
	})
	if through == nil {
		t.Skip("no PgBouncer was started")
	}

	require.Error(t, testkit.ErrorOf(pgx.Connect(t.Context(), through.URL)))
}

func show(t *testing.T, url, setting string) (value string) {
	t.Helper()
	conn := testkit.Do(pgx.Connect(t.Context(), url))(t)
	defer conn.Close(t.Context())
	require.NoError(t, conn.QueryRow(t.Context(), "show "+setting).Scan(&value))
	return value
}

// An advisory lock is one of a database: tests that are connected to two of them may make a
// template at once, and the second finds that it is there.
func TestATemplateMayBeMadeFromTwoDatabasesAtOnce(t *testing.T) {
	t.Parallel()
	template, other := strings.ToLower(rand.Text()), pgtest.Database(t)
	t.Cleanup(func() {
		testkit.Do(pgtest.Pool(t).Exec(context.WithoutCancel(t.Context()), "drop database dibs_test_"+template))(t)
	})
	empty := func(string) {}

	var second string
	first := pgtest.CopyOn(t, pgtest.URL(t), template, func(string) { second = pgtest.CopyOn(t, other, template, empty) })

	for _, url := range []string{first, second} {
		require.NoError(t, pgtest.Connect(t, url).Ping(t.Context()))
	}
}

// A slowConn is a connection of a process that has no turn after it has written, until something
// happens.
type slowConn struct {
	net.Conn
	written *func()
}

func (c slowConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	(*c.written)()
	return n, err
}

func TestAConnectionThatIsKeptHasNoGoroutine(t *testing.T) {
	url, written := pgtest.URL(t), func() {}
	config := testkit.Do(pgx.ParseConfig(url))(t)
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return slowConn{conn, &written}, err
	}
	conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)
	reads := func() bool {
		stacks := make([]byte, 1<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "bgRead(")
	}
	written = func() { testkit.AwaitTrue(t, "pgx reads in a goroutine of its own", reads) }
	testkit.AwaitTrue(t, "the goroutine is left", func() bool {
		testkit.Do(conn.Exec(t.Context(), "select 1"))(t)
		return reads()
	})
	written = func() {}

	err := pgtest.KeptAgain(t.Context(), url, conn, func() {
		testkit.AwaitTrue(t, "the goroutine ends", func() bool { return !reads() })
	})

	require.NoError(t, err)
}
