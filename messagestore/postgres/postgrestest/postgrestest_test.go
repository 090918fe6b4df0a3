package postgrestest_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/pgtest"
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
			_, err := store.Write(t.Context(), "account-123", messagestore.NoStream, opened{"Ann"})
			require.NoError(t, err)
			var messages int
			require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from dibs.messages").Scan(&messages))
			require.Zero(t, messages, "a database of its own")
		})
	}

	conn, err := pgx.Connect(t.Context(), server)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var there bool
	require.NoError(t, conn.QueryRow(t.Context(), "select exists (select from pg_database where datname = $1)", database).Scan(&there))
	require.False(t, there, "%s was dropped", database)
}

// A server for tests may be fast and forgetful.
func TestAServerThatMayForgetIsTaken(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Pool(t, nil)

	var settings []string // of the database, not of the server
	require.NoError(t, pool.QueryRow(t.Context(),
		"select s.setconfig from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase where d.datname = current_database()").Scan(&settings))

	require.Equal(t, []string{"dibs.allow_unsafe_settings=on"}, settings)
}

func TestTheURLIsThatOfTheConfigFirst(t *testing.T) {
	server := pgtest.URL(t)
	t.Setenv(postgrestest.Variable, "postgres://nobody@localhost:1/none")

	database, err := url.Parse(postgrestest.URL(t, &postgrestest.Config{URL: server}))

	require.NoError(t, err)
	require.NotEqual(t, "/none", database.Path)
	_, err = postgrestest.New(t, &postgrestest.Config{URL: server}).Write(t.Context(), "account-123", messagestore.NoStream, opened{})
	require.NoError(t, err)
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
