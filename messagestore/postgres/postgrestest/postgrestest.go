// Package postgrestest gives a test a PostgreSQL database of its own, with the schema of Dibs in
// it, and drops the database when the test ends.
//
//	store := postgrestest.New(t, nil)
//
// The server is the one that the environment variable TEST_DATABASE_URL names, or [Config.URL]. Any
// server will do, such as one in a container:
//
//	docker run --rm -d -p 5432:5432 -e POSTGRES_PASSWORD=postgres postgres:17
//	export TEST_DATABASE_URL=postgres://postgres:postgres@localhost/postgres
//
// It takes a role that may create databases, and roles, or with the roles dibs_owner, dibs_writer,
// dibs_reader, dibs_admin and message_store made before. The server need not be
// durable: fsync, full_page_writes and synchronous_commit may be off.
//
// Without a URL the test is skipped, and the message names the variable; where the variable CI is
// set, the test fails, so that a green run has run it.
//
// The first test on a server migrates a database and leaves it there as a template, with a name
// that begins with dibs_test_migrated_. The databases of tests are copies of it, which takes
// some 50 ms each.
package postgrestest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// Variable is the environment variable that names the server.
const Variable = "TEST_DATABASE_URL"

// Config says where the server is. A nil *Config is a good one.
type Config struct {
	// URL is that of a database on the server, as for [pgxpool.New]. The database itself is not
	// written to.
	//
	// Defaults to the environment variable TEST_DATABASE_URL.
	URL string

	// Postgres is the configuration of the store's driver.
	//
	// Defaults to none.
	Postgres *postgres.Config
}

// New returns a store over a database of the test's own. The store is closed, and the database
// dropped, when the test ends. It is safe for concurrent use.
func New(t testing.TB, config *Config) *messagestore.Store {
	t.Helper()
	var driver *postgres.Config
	if config != nil {
		driver = config.Postgres
	}
	store := messagestore.New(postgres.New(Pool(t, config), driver), nil)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// Pool returns a pool on a database of the test's own, for a test that looks at tables of its own
// too. The pool is closed when the test ends.
func Pool(t testing.TB, config *Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), URL(t, config))
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	await.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return pool
}

// URL returns the URL of a migrated database of the test's own, for a service that opens it by
// itself. The database is dropped when the test ends, even if it is still connected to.
func URL(t testing.TB, config *Config) string {
	t.Helper()
	server := os.Getenv(Variable)
	if config != nil && config.URL != "" {
		server = config.URL
	}
	if server == "" {
		pgtest.Missing(t, "postgrestest: there is no server: set "+Variable+" to the URL of a PostgreSQL database whose role may create databases, "+
			"like postgres://postgres:postgres@localhost/postgres, or Config.URL. "+
			"To start one: docker run --rm -d -p 5432:5432 -e POSTGRES_PASSWORD=postgres postgres:17")
	}
	database := pgtest.MigratedOn(t, server)
	take(t, database)
	return database
}

// take has the driver take the database under any settings of the server: it is gone after the
// test, so nothing in it has to outlive a crash.
func take(t testing.TB, database string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err == nil {
		name := pgx.Identifier{conn.Config().Database}.Sanitize()
		_, err = conn.Exec(ctx, "alter database "+name+" set dibs.allow_unsafe_settings = 'on'")
		if closed := conn.Close(ctx); err == nil {
			err = closed
		}
	}
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
}
