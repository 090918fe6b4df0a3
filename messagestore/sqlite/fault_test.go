package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs/internal/testkit"
)

// A fault sees each statement before it is executed, and its first argument, in the form
// "INSERT ... [account-1]". An error that it returns is the statement's, which is not
// executed then, unless the fault has done that itself.
type fault func(statement string, on faultyConn) error

var faultyDrivers atomic.Int64

// faulty registers a database/sql driver with a fault and returns its name.
func faulty(t testing.TB, f fault) string {
	t.Helper()
	name := fmt.Sprintf("sqlite-faulty-%d", faultyDrivers.Add(1))
	sql.Register(name, &faultyDriver{&modernc.Driver{}, f})
	return name
}

// sqliteError is an error as SQLite's drivers return them, with a result code.
type sqliteError int

func (e sqliteError) Error() string { return fmt.Sprintf("made to fail with code %d", int(e)) }
func (e sqliteError) Code() int     { return int(e) }

type faultyDriver struct {
	driver.Driver
	fault fault
}

func (d *faultyDriver) Open(name string) (driver.Conn, error) {
	conn, err := d.Driver.Open(name)
	return faultyConn{conn, d.fault}, err
}

type faultyConn struct {
	driver.Conn
	fault fault
}

func (c faultyConn) Prepare(statement string) (driver.Stmt, error) {
	s, err := c.Conn.Prepare(statement)
	return faultyStmt{s, statement, c}, err
}

// execute runs a statement without a fault.
func (c faultyConn) execute(statement string) error {
	s, err := c.Conn.Prepare(statement)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), nil) //nolint:errcheck // modernc's has it
	return err
}

type faultyStmt struct {
	driver.Stmt
	statement string
	conn      faultyConn
}

func (s faultyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.conn.fault(s.with(args), s.conn); err != nil {
		return nil, err
	}
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args) //nolint:errcheck // as above
}

func (s faultyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.conn.fault(s.with(args), s.conn); err != nil {
		return nil, err
	}
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args) //nolint:errcheck // as above
}

func (s faultyStmt) with(args []driver.NamedValue) string {
	statement := strings.TrimSpace(s.statement)
	if len(args) > 0 {
		statement += fmt.Sprintf(" [%v]", args[0].Value)
	}
	return statement
}

func TestFaultsAreMade(t *testing.T) {
	t.Parallel()
	db := testkit.Do(sql.Open(faulty(t, func(statement string, _ faultyConn) error {
		if statement == "SELECT 1" {
			return sqliteError(10)
		}
		return nil
	}), newFile(t)))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	var n int
	require.ErrorIs(t, db.QueryRow("SELECT 1").Scan(&n), sqliteError(10))
	require.NoError(t, db.QueryRow("SELECT 2").Scan(&n))
}
