package cli_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

func TestMigrateMakesWhatTheOtherCommandsNeed(t *testing.T) {
	t.Parallel()
	dibs := &shell{env: map[string]string{"DATABASE_URL": pgtest.Database(t)}}

	for _, args := range [][]string{{"stream", "account-1"}, {"write", "account-1", "Opened"}, {"category", "account"}, {"explain", "account-1"}} {
		before := dibs.run(t, args...)
		require.Equal(t, 1, before.code)
		require.Contains(t, before.stderr, "run dibs migrate up")
		asJSON := dibs.run(t, append(args, "--json")...)
		require.Equal(t, "notMigrated", objects(t, asJSON.stderr)[0]["kind"])
	}
	pending := dibs.ok(t, "migrate", "status")
	require.Contains(t, pending, "tables/0001_messages.sql")
	require.NotContains(t, pending, "applied")

	require.Contains(t, dibs.ok(t, "migrate", "up"), "up to date\n")
	require.Contains(t, dibs.ok(t, "migrate", "up"), "up to date\n")
	for _, migration := range objects(t, dibs.ok(t, "migrate", "status", "--json")) {
		require.Equal(t, "applied", migration["state"])
	}

	dibs.ok(t, "write", "account-1", "Opened", `{"name":"Ann"}`, "--expected", "no-stream")
	require.Equal(t, 3, dibs.run(t, "write", "account-1", "Opened", "--expected", "no-stream").code)
	dibs.ok(t, "write", "account-1", "Closed", "--follow", "account-1@0")
	require.Equal(t, `2006-01-02T15:04:05.000000Z  1  Closed  {}
2006-01-02T15:04:05.000000Z  0  Opened  {"name":"Ann"}
`, steady(dibs.ok(t, "stream", "account-1", "--backwards")))
	require.Equal(t, 1, strings.Count(dibs.ok(t, "category", "account", "--type", "Closed"), "\n"))
	require.Equal(t, 1, strings.Count(dibs.ok(t, "tail", "account", "--from", "0", "--limit", "1"), "\n"))
	require.Contains(t, dibs.ok(t, "explain", "account-1"), "first write")
	lines := `{"stream":"account-2","type":"T"}` + "\n" + `{"stream":"account-2","type":"T"}` + "\n"
	require.Equal(t, "2 written, 0 had been already\n", dibs.feed(t, lines, "write").stdout)
	require.Equal(t, "0 written, 2 had been already\n", dibs.feed(t, lines, "write").stdout)
}

func TestSchemaIsTheFlagsOrTheURLs(t *testing.T) {
	t.Parallel()
	server := pgtest.Database(t)
	separator := "?"
	if strings.Contains(server, "?") {
		separator = "&"
	}
	named := &shell{env: map[string]string{"DATABASE_URL": server + separator + "schema=one"}}
	plain := &shell{env: map[string]string{"DATABASE_URL": server}}

	named.ok(t, "migrate", "up")
	named.ok(t, "migrate", "up", "--schema", "two")
	named.ok(t, "write", "account-1", "InOne")
	plain.ok(t, "write", "account-1", "InTwo", "--schema", "two")

	require.Contains(t, plain.ok(t, "stream", "account-1", "--schema", "one"), "InOne")
	require.Contains(t, named.ok(t, "stream", "account-1", "--schema", "two"), "InTwo")
	require.Contains(t, plain.run(t, "stream", "account-1").stderr, "run dibs migrate up")
	require.Contains(t, plain.ok(t, "migrate", "print", "--schema", "two"), "two")
	for _, bad := range []string{`"; drop schema one;--`, "pg_catalog", strings.Repeat("x", 64), "Upper"} {
		for _, args := range [][]string{{"stream", "account-1"}, {"migrate", "up"}, {"migrate", "status"}, {"migrate", "print"}} {
			r := plain.run(t, append(args, "--schema", bad)...)
			require.Equal(t, 2, r.code, r.stderr)
		}
	}
}

func TestServerThatRefusesIsNamed(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(pgtest.URL(t))
	require.NoError(t, err)
	query := u.Query()
	query.Set("password", canary)
	u.RawQuery = query.Encode()
	u.Path = "/no_such_database"
	dibs := &shell{env: map[string]string{"DIBS_STORE": u.String()}}

	for _, args := range [][]string{{"stream", "account-1"}, {"migrate", "status"}} {
		r := dibs.run(t, args...)
		require.Equal(t, 1, r.code)
		require.Contains(t, r.stderr, "dibs: cannot connect to PostgreSQL at ")
		require.Contains(t, r.stderr, `database no_such_database: database "no_such_database" does not exist`)
		require.Contains(t, r.stderr, "It is from $DIBS_STORE")
		require.NotContains(t, r.stdout+r.stderr, canary)
	}
}

func TestStoreThatKeepsItsOwnSchemaHasNothingToMigrate(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"sqlite:dibs.db", "memory:"} {
		dibs := &shell{env: map[string]string{"DIBS_STORE": store}}
		require.Equal(t, result{0, "", "dibs: nothing to migrate: this store keeps its own schema\n"}, dibs.run(t, "migrate", "up"))
		require.Equal(t, 0, dibs.run(t, "migrate", "status", "--json").code)
	}
}

func TestMigrationsArePrintedWithoutAStore(t *testing.T) {
	t.Parallel()
	require.Contains(t, (&shell{}).ok(t, "migrate", "print"), "create schema")
}
