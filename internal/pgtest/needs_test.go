package pgtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// A recorder is a test that keeps how it was ended.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper() {}

func (r *recorder) Skip(args ...any) { r.end("skipped: ", args) }

func (r *recorder) Fatal(args ...any) { r.end("failed: ", args) }

func (r *recorder) end(how string, args []any) {
	r.ended = how + fmt.Sprint(args...)
	panic(r)
}

// endOf returns how a test with this body ends.
func endOf(body func(t testing.TB)) (how string) {
	r := &recorder{}
	defer func() {
		_ = recover()
		how = r.ended
	}()
	body(r)
	return r.ended
}

func TestTestWithoutItsProgramSkipsAndFailsInCI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, test := range []struct {
		ci, want string
		body     func(t testing.TB)
	}{
		{"", "skipped: no pg_dump: install the package postgresql-client", func(t testing.TB) { t.Helper(); pgtest.Needs(t, "pg_dump") }},
		{"true", "failed: no pg_dump: install the package postgresql-client", func(t testing.TB) { t.Helper(); pgtest.Needs(t, "pg_dump") }},
		{"", "skipped: no npm: install the package npm", func(t testing.TB) { t.Helper(); pgtest.Needs(t, "npm") }},
		{"true", "failed: no npm: install the package npm", func(t testing.TB) { t.Helper(); pgtest.NeedsAsNewAsServer(t, "npm") }},
		{"", "skipped: no PgBouncer: install the package pgbouncer", func(t testing.TB) { t.Helper(); pgtest.PgBouncer(t, "postgres://") }},
		{"true", "failed: no PgBouncer: install the package pgbouncer", func(t testing.TB) { t.Helper(); pgtest.PgBouncer(t, "postgres://") }},
	} {
		t.Setenv("CI", test.ci)
		t.Setenv("PGBOUNCER", "/no/such/pgbouncer")

		require.Equal(t, test.want, endOf(test.body))
	}
}

func TestAServerThatDoesNotStartFailsTheTest(t *testing.T) {
	pgtest.URL(t)
	t.Setenv("CI", "")
	nowhere := "postgres://postgres@/postgres?host=" + t.TempDir()

	how := endOf(func(t testing.TB) { t.Helper(); pgtest.Standby(t, nowhere) })

	if strings.Contains(how, "no pg_basebackup in") {
		t.Skip(how)
	}
	require.Contains(t, how, "pg_basebackup failed")
	require.True(t, strings.HasPrefix(how, "failed: "), how)
}
