package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// A SQLDriver is a driver, also for transactions of database/sql.
var (
	_ messagestore.Driver                  = (*SQLDriver)(nil)
	_ messagestore.TransactDriver[*sql.Tx] = (*SQLDriver)(nil)
)

// SQLDriver is a [Driver] over a *sql.DB: see [NewSQL].
type SQLDriver struct {
	*Driver
	db *sql.DB
}

// NewSQL returns a driver over db, which you keep and close. Its connections must come from pgx's
// package stdlib: use sql.Open("pgx", url) or stdlib.OpenDBFromPool. With other connections every
// call returns an error that matches [messagestore.ErrNotSupported]. NewSQL returns the same errors
// as [New].
//
// It is for services that use database/sql, GORM, sqlx or Bun for their own SQL. It sends each
// write alone, and does not listen: New over a pool is faster.
func NewSQL(db *sql.DB, config *Config) (*SQLDriver, error) {
	c, err := configured(config, db == nil)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return &SQLDriver{newDriver(pglink.NewSQL(db, c.link()), c, queriesFor(c.Schema)), db}, nil
}

// Transact implements [messagestore.TransactDriver] as [Driver.Transact] does. The *sql.Tx uses a
// connection of the driver's *sql.DB. If f sends COMMIT or ROLLBACK as text, no message is written
// and the error matches [messagestore.ErrTransactionEnded], but the SQL that f committed stays
// committed.
func (d *SQLDriver) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx *sql.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) (written []messagestore.Written, err error) {
	if f == nil {
		return nil, nil
	}
	if d.onlyConnection(ctx) {
		return nil, errOnlyConnection
	}
	conn, err := pglink.SQLConn(ctx, d.db)
	if err != nil {
		return nil, matched(err)
	}
	defer conn.Close()
	called := false
	rawErr := conn.Raw(func(c any) error {
		called = true
		std, ok := c.(stdConn)
		if !ok {
			err = failed(pglink.ErrNotPgx)
			return nil
		}
		if err = matched(d.link.Check(ctx, std.Conn())); err == nil {
			written, err = d.transact(ctx, std, first, f)
		}
		return nil // the connection is good, or closed
	})
	if !called {
		return nil, failed(rawErr)
	}
	return written, err
}

func (d *SQLDriver) transact(
	ctx context.Context, std stdConn, first messagestore.StreamName,
	f func(ctx context.Context, tx *sql.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	t := &transaction{writer: &d.writer, held: held{conn: std.Conn()}}
	defer t.rollBack(ctx)
	defer pglink.LeaveAfter(ctx, std.Conn(), abandonAfter)()
	begun, err := t.begin(ctx, first)
	if err != nil {
		return nil, t.notBegun(ctx, failed(err))
	}
	lent := &lentConn{stdConn: std}
	db := sql.OpenDB(lent)
	defer db.Close()
	db.SetMaxOpenConns(1)
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil) // it sends nothing
	if err != nil {
		return nil, err
	}
	defer func() {
		lent.over.Store(true)
		_ = tx.Rollback() // it sends nothing: the caller rolls back
	}()
	appends, err := t.call(ctx, func(ctx context.Context) ([]messagestore.Append, error) { return f(ctx, tx, begun) })
	return t.end(ctx, appends, err, lent.refused.Load())
}

// A stdConn is a connection of pgx's package stdlib.
type stdConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	Conn() *pgx.Conn
}

// A lentConn is a connection on which a transaction has begun, used as the only connection of a
// *sql.DB. Its user cannot end the transaction.
type lentConn struct {
	stdConn
	refused, over atomic.Bool
}

// Connect returns the connection.
func (c *lentConn) Connect(context.Context) (driver.Conn, error) { return c, nil }

// Driver returns nil: the transaction's user does not call it.
func (c *lentConn) Driver() driver.Driver { return nil }

// Close leaves the connection to its owner.
func (c *lentConn) Close() error { return nil }

// BeginTx returns the transaction that has begun.
func (c *lentConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

// Commit returns an error.
func (c *lentConn) Commit() error { return c.end() }

// Rollback returns an error until the transaction is over.
func (c *lentConn) Rollback() error { return c.end() }

func (c *lentConn) end() error {
	if c.over.Load() {
		return nil
	}
	c.refused.Store(true)
	return messagestore.ErrTransactionEnded
}
