package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// savepoint is set before the caller's function and released after it. If the function, or a
// failure in it, ended the transaction, the savepoint no longer exists.
const (
	beginTransactSQL   = "SAVEPOINT dibs_transact"
	releaseTransactSQL = "RELEASE dibs_transact"
)

// transactions run callers' functions, one at a time, on another connection than the writer's.
type transactions struct {
	connection
	db *sql.DB // of guarded connections
	w  *writer
}

func newTransactions(d driver.Driver, name string, w *writer) *transactions {
	db := sql.OpenDB(guardedConnector{d, name, w.timeout})
	db.SetMaxOpenConns(1)
	return &transactions{db: db, w: w}
}

// close waits for the function that runs.
func (t *transactions) close() error {
	t.w.held <- struct{}{}
	t.drop()
	return t.db.Close()
}

func (t *transactions) run(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx *sql.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	since := time.Now()
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if err := t.w.lock(ctx, since); err != nil {
		return nil, err
	}
	defer t.w.unlock()
	if t.conn == nil {
		conn, err := connect(ctx, t.db, t.w.timeout)
		if err != nil {
			return nil, err
		}
		t.connection = connection{conn, newPrepared(conn)}
	}
	var guard *guarded
	if err := t.conn.Raw(func(c any) error { guard = c.(*guarded); return nil }); err != nil { //nolint:errcheck // the connector makes only these
		t.drop()
		return nil, err
	}
	var tx *sql.Tx
	if err := retry(ctx, t.w.timeout, func() (err error) {
		tx, err = t.conn.BeginTx(context.WithoutCancel(ctx), nil)
		return err
	}); err != nil {
		if !isBusy(err) {
			t.drop()
		}
		return nil, err
	}
	guard.begun()
	defer func() { // after an error, and after a panic of f
		guard.ours = true
		_ = tx.Rollback()
		guard.end()
		if guard.broken {
			t.drop()
		}
	}()
	return guard.run(ctx, tx, t.on, first, f)
}

// run does all the work of the transaction. Its statements are prepared on the connection, and
// later transactions reuse them.
func (g *guarded) run(
	ctx context.Context, tx *sql.Tx, db *prepared, first messagestore.StreamName,
	f func(ctx context.Context, tx *sql.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	whole := context.WithoutCancel(ctx) // a cancelled statement may roll the transaction back
	var begun *messagestore.Message
	if first != "" {
		found, err := query(whole, db, streamSQL, string(first), int64(0), 1)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			begun = found[0].Message
		}
	}
	if _, err := db.ExecContext(whole, beginTransactSQL); err != nil {
		return nil, err
	}
	appends, err := f(ctx, tx, begun)
	if err == nil && !g.ended {
		_, err = db.ExecContext(whole, releaseTransactSQL)
		g.ended = err != nil // SQLite has rolled back or committed, and forgotten the savepoint
	}
	switch {
	case g.ended:
		g.broken = true
		if err == nil || errors.Is(err, messagestore.ErrTransactionEnded) {
			return nil, messagestore.ErrTransactionEnded
		}
		return nil, fmt.Errorf("%w: %w", messagestore.ErrTransactionEnded, err)
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	b := newBatch(appends)
	var written []messagestore.Written
	if len(appends) > 0 {
		if written, err = b.write(whole, db); err != nil {
			g.broken = g.broken || !isAnswer(err)
			return nil, err
		}
		if written[0].Duplicate {
			return written, nil // the SQL that was committed with them is not committed again
		}
	}
	g.ours = true
	switch err := tx.Commit(); {
	case err == nil:
		return written, nil
	case isBusy(err):
		return nil, &busyError{waited: g.timeout, cause: err}
	default:
		return nil, b.unknown(err)
	}
}

// A guardedConnector makes connections on which only this package can end transactions.
type guardedConnector struct {
	driver  driver.Driver
	name    string
	timeout time.Duration
}

// Connect implements [driver.Connector].
func (c guardedConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.name)
	if err != nil {
		return nil, err
	}
	return &guarded{Conn: conn, timeout: c.timeout}, nil
}

// Driver implements [driver.Connector].
func (c guardedConnector) Driver() driver.Driver { return c.driver }

// guarded is a connection on which Commit and Rollback of a [*sql.Tx] only note that they were
// called, unless this package calls them.
type guarded struct {
	driver.Conn
	timeout time.Duration
	ours    bool // this package is ending the transaction
	ended   bool // the caller's function has ended the transaction, or tried to
	over    bool // it is ended
	broken  bool // do not use the connection again
}

func (g *guarded) begun() { g.ours, g.ended, g.over = false, false, false }

// end rolls back a transaction that is still open, for example after a refused Commit.
func (g *guarded) end() {
	if !g.over {
		_ = g.Rollback()
	}
}

// BeginTx implements [driver.ConnBeginTx].
func (g *guarded) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	return g, g.exec(ctx, beginSQL)
}

// Commit implements [driver.Tx].
func (g *guarded) Commit() error {
	if !g.ours {
		g.ended = true
		return messagestore.ErrTransactionEnded
	}
	err := retry(context.Background(), g.timeout, func() error { return g.exec(context.Background(), commitSQL) })
	if err == nil {
		g.over = true
		return nil
	}
	g.broken = true
	_ = g.Rollback() // which has no error
	return err
}

// Rollback implements [driver.Tx].
func (g *guarded) Rollback() error {
	if !g.ours {
		g.ended = true
		return messagestore.ErrTransactionEnded
	}
	g.over = true
	err := g.exec(context.Background(), rollbackSQL)
	g.broken = g.broken || err != nil // the end of the connection ends the transaction
	return nil
}

func (g *guarded) exec(ctx context.Context, statement string) error {
	s, err := g.PrepareContext(ctx, statement)
	if err != nil {
		return err
	}
	defer s.Close()
	run, ok := s.(driver.StmtExecContext)
	if !ok {
		return fmt.Errorf("%T executes nothing", s)
	}
	_, err = run.ExecContext(ctx, nil)
	return err
}

// PrepareContext implements [driver.ConnPrepareContext].
func (g *guarded) PrepareContext(ctx context.Context, statement string) (driver.Stmt, error) {
	if c, ok := g.Conn.(driver.ConnPrepareContext); ok {
		return c.PrepareContext(ctx, statement)
	}
	return g.Prepare(statement)
}

// ExecContext implements [driver.ExecerContext].
func (g *guarded) ExecContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	if c, ok := g.Conn.(driver.ExecerContext); ok {
		return c.ExecContext(ctx, statement, args)
	}
	return nil, driver.ErrSkip
}

// QueryContext implements [driver.QueryerContext].
func (g *guarded) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	if c, ok := g.Conn.(driver.QueryerContext); ok {
		return c.QueryContext(ctx, statement, args)
	}
	return nil, driver.ErrSkip
}

// IsValid implements [driver.Validator].
func (g *guarded) IsValid() bool { return !g.broken }
