// Package pgtest provides PostgreSQL databases for tests: a pool on the database that all tests
// share ([Pool]), a migrated database ([Migrated], [Schema]), a schema in the shared database
// ([SchemaInShared]), or an empty database ([Database]).
//
// TEST_DATABASE_URL names the server; make test starts a server. Without it tests are skipped, or
// fail in CI, so that green means that everything ran. Each test uses its own categories of the
// shared database, so all can run at once.
package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

const (
	// patience bounds operations that should be instant, so that a hung server fails the test that
	// uses it, instead of the whole run at its time limit.
	patience = time.Minute

	// connections is the limit of each pool. Go runs as many tests at once as there are processors,
	// and the server has its own limit.
	connections = 8
)

// URL returns the URL of the server's database. Without TEST_DATABASE_URL the test is skipped, or
// fails if CI is set.
func URL(t testing.TB) string {
	t.Helper()
	const missing = "no PostgreSQL: set TEST_DATABASE_URL, or use make test, which starts a server"
	url := os.Getenv("TEST_DATABASE_URL")
	if url == "" {
		Missing(t, missing)
	}
	return url
}

// migrated runs once per process, not per test; processes that run it at the same time wait for
// each other in the database.
var migrated = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return migrate(ctx, os.Getenv("TEST_DATABASE_URL"), nil)
})

// Pool returns a pool on the shared database, migrated in the default schema.
// The pool is closed when the test ends.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	url := URL(t)
	if err := migrated(); err != nil {
		t.Fatalf("migrate the test database: %v", err)
	}
	return Connect(t, url)
}

// ownSchema is the schema of the databases of [Schema].
const ownSchema = "test_own"

// Schema returns a pool on a database for this test only, and the name of its only migrated schema.
// It is for a test that counts over all categories, or changes the schema. The database is a copy,
// which takes a fifth of the time of the migrations. It is dropped when the test ends.
func Schema(t testing.TB) (*pgxpool.Pool, string) {
	t.Helper()
	config := &migrations.Config{Schema: ownSchema}
	return Connect(t, Copy(t, "schema_"+migrationsHash(), migrating(t, config))), ownSchema
}

// SchemaInShared returns a pool on the shared database and the name of a migrated schema in it for
// this test only. It is for a test that has other connections to the shared database too. Prefer
// [Schema], because migrating takes the server long. The schema is dropped when the test ends.
func SchemaInShared(t testing.TB) (*pgxpool.Pool, string) {
	t.Helper()
	url, name := URL(t), unique()

	// This is registered before the pool, so that the pool is closed first.
	t.Cleanup(func() { run(t, url, "drop schema if exists "+name+" cascade") })
	migrating(t, &migrations.Config{Schema: name})(url)
	return Connect(t, url), name
}

// migrating returns a function that migrates a database.
func migrating(t testing.TB, config *migrations.Config) func(url string) {
	return func(url string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := migrate(ctx, url, config); err != nil {
			t.Fatalf("migrate a database: %v", err)
		}
	}
}

// Migrated returns the URL of a migrated database for this test only. It is a copy, which takes a
// fifth of the time of the migrations.
func Migrated(t testing.TB) string {
	t.Helper()
	return MigratedOn(t, URL(t))
}

// MigratedOn is [Migrated] on the server of another URL. Each user has its own template, because
// only its owner or a superuser may copy a database.
func MigratedOn(t testing.TB, server string) string {
	t.Helper()
	config, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	user := sha256.Sum256([]byte(config.User))
	return copyOn(t, server, "migrated_"+migrationsHash()+"_"+hex.EncodeToString(user[:4]), migrating(t, nil))
}

// migrationsHash identifies the migrations, because a server that outlives the tests keeps its
// templates.
var migrationsHash = sync.OnceValue(func() string {
	hash := sha256.New()
	_ = migrations.Print(hash, nil) // a hash never fails
	return hex.EncodeToString(hash.Sum(nil)[:8])
})

// Clock returns the URL of a migrated database for this test only, with a clock that stands still,
// and a function that sets the clock ahead of its first time, or behind it if the duration is
// negative. It needs a superuser.
func Clock(t testing.TB) (url string, ahead func(time.Duration)) {
	t.Helper()
	url = copyOn(t, URL(t), "clock_"+migrationsHash(), func(url string) {
		migrating(t, nil)(url)
		must(t, url, `
			create table public.clock (stood timestamptz not null, ahead interval not null);
			insert into public.clock values (pg_catalog.clock_timestamp(), '0');
			alter function pg_catalog.clock_timestamp() rename to right_clock_timestamp;
			create function pg_catalog.clock_timestamp() returns timestamptz language sql volatile security definer set search_path = pg_catalog, pg_temp as
				'select x.stood + x.ahead from public.clock x';
			alter table dibs.messages alter "time" set default pg_catalog.clock_timestamp()`)
	})
	conn := dial(t, url)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	if _, err := conn.Exec(t.Context(), "update public.clock set stood = pg_catalog.right_clock_timestamp()"); err != nil {
		t.Fatalf("stop the clock: %v", err)
	}
	return url, func(by time.Duration) {
		t.Helper()
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), "update public.clock set ahead = $1::bigint * interval '1 microsecond'", by.Microseconds()); err != nil {
			t.Fatalf("move the clock: %v", err)
		}
	}
}

// Copy returns the URL of a copy of a template, for this test only. The first test that needs the
// template on a server fills it; the template stays. The copy is dropped when the test ends.
func Copy(t testing.TB, template string, fill func(url string)) string {
	t.Helper()
	return copyOn(t, URL(t), template, fill)
}

func copyOn(t testing.TB, server, template string, fill func(url string)) string {
	t.Helper()
	template = "dibs_test_" + template
	if _, there := templates.Load(server + " " + template); !there {
		makeTemplate(t, server, template, fill)
		templates.Store(server+" "+template, true)
	}
	return database(t, server, template, "")
}

// templates has the servers and templates that this process has seen.
var templates sync.Map

// makeTemplate makes the template unless another test has made it. It renames the database once it
// is filled, so that a failing test leaves no incomplete template.
func makeTemplate(t testing.TB, server, template string, fill func(url string)) {
	t.Helper()
	conn := dial(t, server)
	defer conn.Close(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience) // another test may be installing npm packages
	defer cancel()
	var there bool
	_, err := conn.Exec(ctx, "select pg_advisory_lock(hashtext($1))", template)
	if err == nil {
		err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", template).Scan(&there)
	}
	if err != nil {
		t.Fatalf("look for the template %s: %v", template, err)
	}
	if there {
		return
	}
	name := unique()
	must(t, server, "create database "+name+" template template0")
	t.Cleanup(func() { run(t, server, "drop database if exists "+name+" with (force)") })
	url, err := withDatabase(server, name)
	if err != nil {
		t.Fatal(err)
	}
	fill(url)
	freeze(t, server, url, name)
	// The lock is only valid within one database: a test that is connected to another may have been
	// first.
	_, err = conn.Exec(ctx, "alter database "+name+" rename to "+template)
	if refused, ok := errors.AsType[*pgconn.PgError](err); err != nil && (!ok || refused.Code != "42P04") {
		t.Fatalf("keep the template %s: %v", template, err)
	}
}

func freeze(t testing.TB, server, url, name string) {
	t.Helper()
	must(t, url, "select") // the first connection writes a file that connections to the copies read
	// A database can be copied only while nobody is connected; autovacuum connects, too.
	must(t, server, "alter database "+name+" with allow_connections false")
}

// Freeze refuses further connections to a database that the test has filled, and returns a function
// that makes copies of it, for the test's subtests: the database is dropped when the test ends. The
// test must have closed its connections.
func Freeze(t testing.TB, url string) (copied func(t testing.TB) string) {
	t.Helper()
	server := URL(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal("freeze: this is no URL of a database")
	}
	freeze(t, server, url, config.Database)
	return func(t testing.TB) string {
		t.Helper()
		return database(t, server, config.Database, "")
	}
}

// WaitForLocks makes the functions in a schema wait for locks without limit, instead of 10 seconds,
// because a busy machine may need longer to end a test's other transactions. Use it in a test's own
// database.
func WaitForLocks(t testing.TB, url, schema string) {
	t.Helper()
	must(t, url, `do $$
	declare
		f regprocedure;
	begin
		for f in select oid from pg_proc where pronamespace = '`+schema+`'::regnamespace and proconfig::text like '%lock_timeout=%' loop
			execute format('alter function %s set lock_timeout = 0', f);
		end loop;
	end
	$$`)
}

// Database returns the URL of an empty database for this test only. It is dropped when the test
// ends, even if clients are still connected.
func Database(t testing.TB) string {
	t.Helper()
	return database(t, URL(t), "template0", "")
}

// DatabaseIn is [Database] with this encoding.
func DatabaseIn(t testing.TB, encoding string) string {
	t.Helper()
	return database(t, URL(t), "template0", " encoding '"+encoding+"' lc_collate 'C' lc_ctype 'C'")
}

// DatabaseInEnglish is [Database] with the English collation as the default.
func DatabaseInEnglish(t testing.TB) string {
	t.Helper()
	return database(t, URL(t), "template0", " locale_provider icu icu_locale 'en' locale 'C'")
}

func database(t testing.TB, server, template, options string) string {
	t.Helper()
	name := unique()
	// By default each page is written to the log, which takes longer than copying the files, and so
	// does dropping the database.
	must(t, server, "create database "+name+" template "+template+options+" strategy file_copy")
	t.Cleanup(func() { run(t, server, "drop database if exists "+name+" with (force)") })

	database, err := withDatabase(server, name)
	if err != nil {
		t.Fatal(err)
	}
	return database
}

// Connect returns a pool on the database, which is closed when the test ends.
func Connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return configured(t, url, func(*pgxpool.Config) {})
}

// PoolAs is [ConnectAs] on the shared database.
func PoolAs(t testing.TB, role string) *pgxpool.Pool {
	t.Helper()
	Pool(t) // the migrations make the roles
	return ConnectAs(t, URL(t), role)
}

// ConnectAs returns a pool on the database, as a new user that is a member only of role, or of
// several roles with commas. The user is dropped when the test ends.
func ConnectAs(t testing.TB, url, role string) *pgxpool.Pool {
	t.Helper()
	user, password := "test_"+unique(), unique()
	must(t, url, fmt.Sprintf("create role %s login password '%s' in role %s", user, password, role))
	t.Cleanup(func() { run(t, url, "drop owned by "+user); run(t, url, "drop role "+user) })
	return configured(t, url, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = user, password })
}

// PoolOfOne returns a pool of one connection on the shared database, and the process id of the
// connection's backend. change may change the configuration; it may be nil.
func PoolOfOne(t testing.TB, change func(*pgxpool.Config)) (*pgxpool.Pool, uint32) {
	t.Helper()
	pool := configured(t, URL(t), func(c *pgxpool.Config) {
		c.MaxConns = 1
		if change != nil {
			change(c)
		}
	})
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	defer conn.Release()
	return pool, conn.Conn().PgConn().PID()
}

func configured(t testing.TB, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("TEST_DATABASE_URL: %v", err)
	}
	config.MaxConns = connections
	change(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return pool
}

func dial(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	return conn
}

func migrate(ctx context.Context, url string, config *migrations.Config) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return migrations.Up(ctx, conn, config)
}

// must runs a statement and fails the test at once if it fails.
func must(t testing.TB, url, statement string) {
	t.Helper()
	if !run(t, url, statement) {
		t.FailNow()
	}
}

// run runs a statement, also in a cleanup, after the test's context has ended. It reports whether
// the statement succeeded.
func run(t testing.TB, url, statement string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()

	conn, err := idle.take(ctx, url)
	if err != nil {
		t.Errorf("connect to the test database: %v", err)
		return false
	}
	_, err = conn.Exec(ctx, statement)
	idle.put(ctx, url, conn)
	if err != nil {
		t.Errorf("%s: %v", statement, err)
	}
	return err == nil
}

// idle keeps the connections of [run] for its next statement on the shared database, because
// connecting takes the server as long as dropping a database. They end with the process.
var idle connPool

// A connPool is a simple pool. A pgxpool.Pool runs goroutines, which tests of packages would report
// as leaks.
type connPool struct {
	mu    sync.Mutex
	conns []*pgx.Conn
}

func (p *connPool) take(ctx context.Context, url string) (*pgx.Conn, error) {
	for {
		conn := p.last(url)
		if conn == nil {
			return pgx.Connect(ctx, url)
		}
		err := conn.PgConn().Conn().SetReadDeadline(time.Time{})
		if err == nil && conn.Ping(ctx) == nil { // a test may have terminated it
			return conn, nil
		}
		conn.Close(ctx)
	}
}

func (p *connPool) last(url string) *pgx.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns)
	if n == 0 || url != os.Getenv("TEST_DATABASE_URL") {
		return nil
	}
	conn := p.conns[n-1]
	p.conns = p.conns[:n-1]
	return conn
}

// put keeps a connection. The deadline ends the goroutine in which pgx reads after a long write;
// otherwise it would read until the process ends.
func (p *connPool) put(ctx context.Context, url string, conn *pgx.Conn) {
	if conn.IsClosed() || url != os.Getenv("TEST_DATABASE_URL") || conn.PgConn().Conn().SetReadDeadline(time.Now()) != nil {
		conn.Close(ctx)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conn)
}

// unique returns an identifier that needs no quoting.
func unique() string {
	return "test_" + strings.ToLower(rand.Text())
}

// withDatabase returns a connection string, in either form, for another database of the same
// server.
func withDatabase(server, name string) (string, error) {
	if !strings.HasPrefix(server, "postgres://") && !strings.HasPrefix(server, "postgresql://") {
		return server + " dbname=" + name, nil // the last one counts
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("TEST_DATABASE_URL: %w", err)
	}
	u.Path = "/" + name
	return u.String(), nil
}
