package postgrestest_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type opened struct{ Name string }

func (opened) MessageType() string { return "Opened" }

func TestEachTestHasADatabaseOfItsOwnWhichIsDropped(t *testing.T) {
	server := pgtest.URL(t)
	var database string
	for range 2 {
		t.Run("one test", func(t *testing.T) {
			pool := postgrestest.Pool(t, nil)
			require.NoError(t, pool.QueryRow(t.Context(), "select current_database()").Scan(&database))
			store := postgrestest.New(t, nil)

			// Both write the first message of one stream, and see no other.
			testkit.Do(store.Write(t.Context(), "account-123", messagestore.NoStream, opened{"Ann"}))(t)
			require.Zero(t, pgtest.Value[int](t, pool, "select count(*) from dibs.messages"), "a database of its own")
		})
	}

	conn := testkit.Do(pgx.Connect(t.Context(), server))(t)
	defer conn.Close(t.Context())
	require.False(t, pgtest.Value[bool](t, conn, "select exists (select from pg_database where datname = $1)", database), "%s was dropped", database)
}

// withOptions returns the URL of the server with options for its sessions.
func withOptions(t *testing.T, options string) string {
	t.Helper()
	server := testkit.Do(url.Parse(pgtest.URL(t)))(t)
	server.RawQuery += "&options=" + strings.ReplaceAll(url.QueryEscape(options), "+", "%20")
	return server.String()
}

// A server for tests may be fast and forgetful.
func TestAServerThatMayForgetIsTaken(t *testing.T) {
	t.Parallel()
	server := withOptions(t, "-c dibs.allow_unsafe_settings=off")

	pool := postgrestest.Pool(t, &postgrestest.Config{URL: server})

	require.Equal(t, "on", pgtest.Value[string](t, pool, "select current_setting('dibs.allow_unsafe_settings')"))
}

// A URL keeps the options that it has, in both of its forms, for clients of libpq too.
func TestTheURLKeepsItsOptions(t *testing.T) {
	t.Parallel()
	server := testkit.Do(pgx.ParseConfig(pgtest.URL(t)))(t)
	inWords := fmt.Sprintf(`host=%s port=%d user=%s password='%s' dbname=%s options='-c dibs_test.name=it\\\'s\\ here+'`,
		server.Host, server.Port, server.User, server.Password, server.Database)
	for _, of := range []string{withOptions(t, `-c dibs_test.name=it\'s\ here+`), inWords} {
		database := postgrestest.URL(t, &postgrestest.Config{URL: of})

		conn := testkit.Do(pgx.Connect(t.Context(), database))(t)
		var name, override string
		require.NoError(t, conn.QueryRow(t.Context(), "select current_setting('dibs_test.name'), current_setting('dibs.allow_unsafe_settings')").Scan(&name, &override))
		require.NoError(t, conn.Close(t.Context()))
		require.Equal(t, []string{"it's here+", "on"}, []string{name, override})
	}
}

// A role that may create databases is enough, also beside one that has made the roles of Dibs, or a
// template.
func TestARoleThatIsNoSuperuserGetsADatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	conn := testkit.Do(pgx.Connect(t.Context(), server))(t)
	defer conn.Close(t.Context())
	for _, role := range []struct{ name, may string }{{"plain", "createdb"}, {"first", "createdb createrole"}, {"second", "createdb createrole"}, {"plain_too", "createdb"}} {
		testkit.Do(conn.Exec(t.Context(), "create role "+role.name+" login "+role.may))(t)
		as := testkit.Do(url.Parse(server))(t)
		as.User = url.User(role.name)

		for range 2 {
			_, err := postgrestest.New(t, &postgrestest.Config{URL: as.String()}).Write(t.Context(), "account-123", messagestore.NoStream, opened{})

			require.NoError(t, err, role.name)
		}
	}
}

// A database that cannot be made is one error.
func TestARoleThatMayNotCreateDatabasesIsToldSo(t *testing.T) {
	t.Parallel()
	server := pgtest.URL(t)
	conn := testkit.Do(pgx.Connect(t.Context(), server))(t)
	defer conn.Close(t.Context())
	const role = "dibs_test_without_createdb"
	testkit.Do(conn.Exec(t.Context(), "create role "+role+" login password 'secret'"))(t)
	t.Cleanup(func() {
		conn := testkit.Do(pgx.Connect(context.WithoutCancel(t.Context()), server))(t)
		defer conn.Close(context.WithoutCancel(t.Context()))
		testkit.Do(conn.Exec(context.WithoutCancel(t.Context()), "drop role "+role))(t)
	})
	as := testkit.Do(url.Parse(server))(t)
	as.User = url.UserPassword(role, "secret")
	r := &recorder{TB: t}

	require.PanicsWithValue(t, r, func() { postgrestest.New(r, &postgrestest.Config{URL: as.String()}) })

	require.Contains(t, r.failed, "permission denied to create database")
	require.Equal(t, 1, strings.Count(r.failed, "SQLSTATE"), r.failed)
}

func TestTheURLIsThatOfTheConfigFirst(t *testing.T) {
	server := pgtest.URL(t)
	t.Setenv(postgrestest.Variable, "postgres://nobody@localhost:1/none")

	require.NotEqual(t, "/none", testkit.Do(url.Parse(postgrestest.URL(t, &postgrestest.Config{URL: server})))(t).Path)
	testkit.Do(postgrestest.New(t, &postgrestest.Config{URL: server}).Write(t.Context(), "account-123", messagestore.NoStream, opened{}))(t)
}

// recorder is a testing.TB that remembers why it was skipped or failed.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}
func (r *recorder) Skip(why ...any) {
	r.skipped, _ = why[0].(string)
	panic(r)
}

func (r *recorder) Fatal(why ...any) {
	r.failed, _ = why[0].(string)
	panic(r)
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed += fmt.Sprintf(format, args...) + "\n"
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.FailNow()
}

func (r *recorder) FailNow() { panic(r) }

func TestWithoutAServerTheTestSaysWhatToSet(t *testing.T) {
	t.Setenv(postgrestest.Variable, "")
	for ci, told := range map[string]func(*recorder) string{
		"":     func(r *recorder) string { return r.skipped },
		"true": func(r *recorder) string { return r.failed },
	} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}

		require.PanicsWithValue(t, r, func() { postgrestest.New(r, nil) })

		require.Truef(t, strings.HasPrefix(told(r), "postgrestest: there is no server: set TEST_DATABASE_URL to the URL of a PostgreSQL database"), "%q: %s", ci, told(r))
	}
}
