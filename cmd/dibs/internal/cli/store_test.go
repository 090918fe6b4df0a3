package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/messagestore"
)

func TestStoreIsChosenByFlagAndEnvironmentInOrder(t *testing.T) {
	t.Parallel()
	stores := t.TempDir()
	file := func(name string) string { return "sqlite:" + filepath.Join(stores, name) }
	env := map[string]string{}
	dibs := &shell{env: env}
	none := dibs.run(t, "stream", "account-1")
	require.Equal(t, 2, none.code)
	require.Contains(t, none.stderr, "set DIBS_STORE")

	env["DATABASE_URL"] = file("database-url")
	dibs.ok(t, "write", "account-1", "FromDatabaseURL")
	env["DIBS_STORE"] = file("dibs-store")
	dibs.ok(t, "write", "account-1", "FromDibsStore")
	dibs.ok(t, "write", "account-1", "FromFlag", "--store", file("flag"))

	for name, messageType := range map[string]string{"database-url": "FromDatabaseURL", "dibs-store": "FromDibsStore", "flag": "FromFlag"} {
		require.Contains(t, dibs.ok(t, "stream", "account-1", "--store", file(name)), messageType)
	}
}

func TestEnvironmentOfLibpqNamesTheServer(t *testing.T) {
	t.Setenv("PGHOST", t.TempDir()) // with no socket in it
	t.Setenv("PGPORT", "15432")
	t.Setenv("PGUSER", "ann")
	t.Setenv("PGDATABASE", "bank")
	t.Setenv("PGPASSWORD", canary)
	dibs := &shell{env: map[string]string{"PGUSER": "ann", "PGPASSWORD": canary}}

	r := dibs.run(t, "stream", "account-1")

	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, ".s.PGSQL.15432 as user ann, database bank: no such file or directory")
	require.Contains(t, r.stderr, "It is from $PGUSER")
	require.NotContains(t, r.stderr, canary)
}

const canary = "s3cr3t-canary"

// closedPort returns an address that nobody answers at.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func TestNoErrorShowsAPassword(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	for name, store := range map[string]string{
		"unreachable":               "postgres://ann:" + canary + "@" + address + "/bank",
		"unreachable, alias":        "postgresql://ann:" + canary + "@" + address + "/bank",
		"no such host":              "postgres://ann:" + canary + "@no-such-host.invalid/bank",
		"in the query":              "postgres://" + address + "/bank?user=ann&password=" + canary,
		"bad escape":                "postgres://ann:%zz" + canary + "@" + address + "/bank",
		"unescaped slash":           "postgres://ann:a/" + canary + "@" + address + "/bank",
		"unescaped at":              "postgres://ann:" + canary + "@x@" + address + "/bank",
		"unescaped hash":            "postgres://ann:#" + canary + "@" + address + "/bank",
		"unescaped question":        "postgres://ann:?" + canary + "@" + address + "/bank",
		"unescaped space":           "postgres://ann:a " + canary + "@" + address + "/bank",
		"unescaped bracket":         "postgres://ann:[" + canary + "@" + address + "/bank",
		"bad port":                  "postgres://ann:" + canary + "@localhost:port/bank",
		"port too large":            "postgres://ann:" + canary + "@localhost:99999/bank",
		"bad option":                "postgres://ann:" + canary + "@" + address + "/bank?sslmode=nonsense",
		"bad timeout":               "postgres://ann:" + canary + "@" + address + "/bank?connect_timeout=soon",
		"missing certificate":       "postgres://ann:" + canary + "@" + address + "/bank?sslmode=verify-full&sslrootcert=/no/such.pem",
		"ssl password":              "postgres://ann@" + address + "/bank?sslmode=require&sslcert=/no/such.pem&sslkey=/no/such.key&sslpassword=" + canary,
		"no scheme":                 "ann:" + canary + "@" + address + "/bank",
		"other scheme":              "mysql://ann:" + canary + "@" + address + "/bank",
		"misspelt scheme":           "postgers://ann:" + canary + "@" + address + "/bank",
		"keywords":                  "host=127.0.0.1 user=ann password=" + canary + " dbname=bank",
		"keywords with quotes":      "host=127.0.0.1 user=ann password='" + canary + "' dbname=bank",
		"control character":         "postgres://ann:" + canary + "\n@" + address + "/bank",
		"several hosts":             "postgres://ann:" + canary + "@" + address + "," + address + "/bank",
		"unknown service":           "postgres://ann:" + canary + "@" + address + "/bank?service=none&servicefile=/no/such",
		"as the schema's neighbour": "postgres://ann:" + canary + "@" + address + "/bank?schema=%00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Another secret is the beginning of this one.
			dibs := &shell{env: map[string]string{"DATABASE_URL": store, "PGPASSWORD": canary[:2]}}

			// A driver that puts secrets into its error.
			careless := func(_ context.Context, u string, _ *messagestore.Config) (*messagestore.Store, error) {
				return nil, fmt.Errorf("cannot open %s, nor %q", u, store)
			}
			var stdout, stderr bytes.Buffer
			cli.RunOver(t.Context(), careless, []string{"stream", "a-1"}, &stdout, &stderr, dibs.getenv)
			require.NotContains(t, stdout.String()+stderr.String(), canary[2:])
			require.NotEmpty(t, stderr.String())

			for _, args := range [][]string{
				{"stream", "a-1"},
				{"stream", "a-1", "--json"},
				{"stream", "a-1", "--schema", "x"},
				{"migrate", "up"},
				{"migrate", "status", "--json"},
				{"write"},
				{"stream", "a-1", "--store", store},
			} {
				r := dibs.run(t, args...)
				if r.code == 0 && args[0] == "migrate" {
					continue // a store that is not PostgreSQL has nothing to migrate
				}
				require.NotZero(t, r.code, args)
				require.NotContains(t, r.stdout+r.stderr, canary, args)
				require.NotEmpty(t, strings.TrimSpace(r.stderr))
			}
		})
	}
}

// A password may be a word of the error or of its remedy, or a part of one: only its place in the URL is masked.
func TestAPasswordIsMaskedInItsPlaceAlone(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	for _, password := range []string{"dibs", "x", "a", "permission denied", "p%65rmission", "dibs%40dibs", "xxxxx"} {
		for form, store := range map[string]string{
			"in the authority": "postgres://dibs:" + password + "@" + address + "/dibs",
			"in the query":     "postgres://" + address + "/dibs?user=dibs&password=" + password,
		} {
			dibs := &shell{env: map[string]string{"DATABASE_URL": store, "PGPASSWORD": password}}
			careless := func(_ context.Context, u string, _ *messagestore.Config) (*messagestore.Store, error) {
				return nil, fmt.Errorf("an axe for %s and %q: %w", u, store, &pgconn.PgError{Severity: "ERROR", Code: "42501", Message: "permission denied for schema dibs"})
			}
			var stdout, stderr bytes.Buffer

			cli.RunOver(t.Context(), careless, []string{"stream", "a-1"}, &stdout, &stderr, dibs.getenv)

			masked := map[string]string{
				"in the authority": "postgres://dibs:xxxxx@" + address + "/dibs",
				"in the query":     "postgres://" + address + "/dibs?user=dibs&password=xxxxx",
			}[form]
			message, hint, _ := strings.Cut(stderr.String(), "\n")
			require.Equal(t, "dibs: an axe for "+masked+` and "`+masked+`": ERROR: permission denied for schema dibs (SQLSTATE 42501)`, message, "%s: %s", form, password)
			require.Contains(t, hint, "grant this user dibs_reader to read, dibs_writer to write")
		}
	}
}

// A URL that is an argument of a command line that is not understood is no store's.
func TestAPasswordInAnotherArgumentIsMasked(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for _, arg := range []string{
		"postgres://ann:" + canary + "@127.0.0.1/bank", "postgres://ann:" + canary + "@x@127.0.0.1/bank", "nats://ann:" + canary + "@h",
		"host=127.0.0.1 user=ann password=" + canary, "host=h password = '" + canary + "' user=ann", "alter role ann password '" + canary + "'", "alter role ann PASSWORD '" + canary,
	} {
		for _, args := range [][]string{{"stream", "a-1", arg}, {"stream", "a-1", arg, "--json"}, {"stream", "a-1", "--unknown=" + arg}, {"stream", arg}} {
			r := dibs.run(t, args...)
			require.NotZero(t, r.code)
			require.NotContains(t, r.stdout+r.stderr, canary, args)
		}
	}
}

func TestUnreachableServerIsNamed(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	dibs := &shell{env: map[string]string{"DATABASE_URL": "postgres://ann:" + canary + "@" + address + "/bank"}}

	r := dibs.run(t, "stream", "account-1")

	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "dibs: cannot connect to PostgreSQL at "+address+" as user ann, database bank: connection refused\n")
	require.Contains(t, r.stderr, "It is from $DATABASE_URL\n")
	problem := objects(t, dibs.run(t, "stream", "account-1", "--json").stderr)[0]
	require.Equal(t, "unreachable", problem["kind"])
}
