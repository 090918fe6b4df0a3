package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(onOwnDatabase{m}) }

// ownServer is the package's own, which syncs: for the tests that change settings of the server, or
// have a standby.
var ownServer pgtest.SharedServer

// onOwnDatabase runs the tests on the package's own database, with functions that wait for locks
// without limit. In a database shared with other packages a writer may wait for a listener, and the
// listener for a transaction of another test: for more than 10 seconds, on a busy machine.
type onOwnDatabase struct{ m *testing.M }

func (o onOwnDatabase) Run() int {
	testkit.FewerCases()
	testkit.ManyAtOnce()
	const variable = "TEST_DATABASE_URL"
	server := os.Getenv(variable)
	if server == "" {
		return o.m.Run() // which skips what needs one
	}
	drop, database, err := newDatabase(server)
	if err != nil {
		fmt.Fprintln(os.Stderr, "make the tests' database:", err)
		return 1
	}
	os.Setenv(variable, database)
	code := o.m.Run()
	if err := errors.Join(ownServer.Stop(), drop()); err != nil {
		fmt.Fprintln(os.Stderr, "end the tests' server, and drop their database:", err)
		return 1
	}
	return code
}

// newDatabase returns the URL of a migrated database, and the function that drops it.
func newDatabase(server string) (drop func() error, database string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.WaitLimit)
	defer cancel()
	name := "dibs_test_" + strings.ToLower(rand.Text())
	database, err = withDatabase(server, name)
	if err != nil {
		return nil, "", err
	}
	if err := executeOn(ctx, server, "create database "+name+" template template0"); err != nil {
		return nil, "", err
	}
	drop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.WaitLimit)
		defer cancel()
		return executeOn(ctx, server, "drop database "+name+" with (force)")
	}
	conn, err := pgx.Connect(ctx, database)
	if err == nil {
		defer conn.Close(ctx)
		err = migrations.Up(ctx, conn, nil)
	}
	if err == nil {
		_, err = conn.Exec(ctx, waitForLocksSQL)
	}
	if err != nil {
		_ = drop()
		return nil, "", err
	}
	return drop, database, nil
}

// withDatabase names another database of the same server, in either of the forms that a connection
// string has.
func withDatabase(server, name string) (string, error) {
	if !strings.Contains(server, "://") {
		return server + " dbname=" + name, nil // the last one counts
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("parse the server's URL: %w", err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

const waitForLocksSQL = `do $$
declare
	f regprocedure;
begin
	for f in select oid from pg_proc where pronamespace = 'dibs'::regnamespace and proconfig::text like '%lock_timeout=%' loop
		execute format('alter function %s set lock_timeout = 0', f);
	end loop;
end
$$`

func executeOn(ctx context.Context, server, statement string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// patience bounds the calls of a test that would wait for ever.
const patience = testkit.WaitLimit
