// Package postgrestest makes a PostgreSQL database with the schema of Dibs for each test, and drops
// it when the test ends.
//
//	store := postgrestest.New(t, nil)
//
// The environment variable TEST_DATABASE_URL, or [Config.URL], names the server. Any server will
// do, such as one in a container:
//
//	docker run --rm -d -p 5432:5432 -e POSTGRES_PASSWORD=postgres postgres:17
//	export TEST_DATABASE_URL=postgres://postgres:postgres@localhost/postgres
//
// The role in the URL needs only the right to create databases (CREATEDB). If it also has
// CREATEROLE, the migration creates the roles dibs_owner, dibs_writer and so on, and message_store.
// If the role may not act as dibs_owner, it owns the store itself. The server need not be durable:
// fsync, full_page_writes and synchronous_commit may be off.
//
// Without a URL the test is skipped, and the message names the variable. If the variable CI is set,
// the test fails instead, so that a green run has run it.
//
// The first test of a role on a server migrates a database and leaves it there as a template, with
// a name that begins with dibs_test_migrated_. The databases of tests are copies of it; a copy
// takes some 50 ms.
package postgrestest

import (
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// Variable is the environment variable that names the server.
const Variable = "TEST_DATABASE_URL"

// Config configures [New]. nil means the defaults.
type Config struct {
	// URL names a database on the server, as for [pgxpool.New]. The tests do not write to this
	// database.
	//
	// Defaults to the environment variable TEST_DATABASE_URL.
	URL string

	// Postgres is the configuration of the store's driver.
	//
	// Defaults to nil, the driver's defaults.
	Postgres *postgres.Config
}

// New returns a store over a new database. When the test ends, the store is closed and the database
// dropped. The store is safe for concurrent use.
func New(t testing.TB, config *Config) *messagestore.Store {
	t.Helper()
	var driver *postgres.Config
	if config != nil {
		driver = config.Postgres
	}
	d, err := postgres.New(Pool(t, config), driver)
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	store, err := messagestore.New(d, nil)
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// Pool returns a pool on a new migrated database, for a test that also uses tables of yours. The
// pool is closed when the test ends.
func Pool(t testing.TB, config *Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), URL(t, config))
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return pool
}

// URL returns the URL of a new migrated database, for a service that opens the database itself. The
// database is dropped when the test ends, even if there are still connections. The URL sets
// dibs.allow_unsafe_settings, so that the driver accepts a server that is not durable.
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
	database, err := taken(pgtest.MigratedOn(t, server))
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	return database
}

// taken adds the setting dibs.allow_unsafe_settings to a URL: the database is gone after the test,
// so its data need not survive a crash. The setting is in the URL because only a superuser may set
// it for a database.
func taken(database string) (string, error) {
	config, err := pgx.ParseConfig(database)
	if err != nil {
		return "", err
	}
	options := strings.TrimSpace(config.RuntimeParams["options"] + " -c dibs.allow_unsafe_settings=on")
	if !strings.Contains(database, "://") {
		return database + " options='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(options) + "'", nil // the last one counts
	}
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	// This parses the query by hand, because a plus is a space for package url, and a plus for pgx
	// and libpq.
	query := slices.DeleteFunc(strings.Split(u.RawQuery, "&"), func(p string) bool { return p == "" || strings.HasPrefix(p, "options=") })
	u.RawQuery = strings.Join(append(query, "options="+strings.ReplaceAll(url.QueryEscape(options), "+", "%20")), "&")
	return u.String(), nil
}
