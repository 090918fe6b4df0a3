package pglink

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Tx is the transaction on a connection, for a function that must not end it: Commit and Rollback
// return an error. The function may use savepoints. Through a pooler, statements are sent in the
// mode of [Link.Mode], unless they name a mode.
//
// If the first statement is an Exec, Query or QueryRow with arguments and there is no pooler, BEGIN
// goes in the same round trip. Otherwise BEGIN is a separate round trip.
type Tx struct {
	link       *Link
	conn       *pgx.Conn
	ctx        context.Context //nolint:containedctx // for LargeObjects, which takes none
	refusal    error
	refused    bool
	closed     bool
	savepoints int

	begin   []string // the statements that begin it, BEGIN first
	apart   bool     // they are a separate round trip in any case
	begun   bool
	lost    error // see Missed
	unsent  bool  // see Unsent
	left    bool  // the caller left because its context ended during BEGIN: the connection is closed
	without bool  // see WithoutObjects
}

var _ pgx.Tx = (*Tx)(nil)

// Transaction returns a transaction on conn. The statements of begin, of which the first is BEGIN,
// begin it; without any it has already begun. Commit and Rollback return refusal.
func (l *Link) Transaction(ctx context.Context, conn *pgx.Conn, refusal error, begin ...string) *Tx {
	return &Tx{link: l, conn: conn, ctx: ctx, refusal: refusal, begin: begin, begun: len(begin) == 0}
}

func (t *Tx) arguments(args []any) []any {
	if m := t.link.markOf(t.conn); m == nil || !m.pooled {
		return args
	}
	if len(args) > 0 {
		if _, named := args[0].(pgx.QueryExecMode); named {
			return args
		}
		if _, named := args[0].(pgx.QueryResultFormats); named {
			return args
		}
	}
	return t.link.Arguments(t.conn, args)
}

// Close makes every later call fail with [pgx.ErrTxClosed].
func (t *Tx) Close() { t.closed = true }

// Refused reports whether Commit or Rollback was called.
func (t *Tx) Refused() bool { return t.refused }

func (t *Tx) end() error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.refused = true
	return t.refusal
}

// Commit returns an error.
func (t *Tx) Commit(context.Context) error { return t.end() }

// Rollback returns an error.
func (t *Tx) Rollback(context.Context) error { return t.end() }

// Begin sets a savepoint.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.savepoints++
	s := &savepoint{Tx: t, name: fmt.Sprintf("dibs_%d", t.savepoints)}
	if _, err := t.Exec(ctx, "savepoint "+s.name); err != nil {
		return nil, err
	}
	return s, nil
}

// Exec implements [pgx.Tx].
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.closed {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	batch, err := t.first(ctx, sql, args)
	switch {
	case err != nil:
		return pgconn.CommandTag{}, err
	case batch != nil:
		tag, err := batch.Exec()
		if closed := batch.Close(); err == nil {
			err = closed
		}
		return tag, err
	}
	return t.conn.Exec(ctx, sql, t.arguments(args)...)
}

// Query implements [pgx.Tx].
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.closed {
		return failedRows{pgx.ErrTxClosed}, pgx.ErrTxClosed
	}
	batch, err := t.first(ctx, sql, args)
	switch {
	case err != nil:
		return failedRows{err}, err
	case batch != nil:
		return queryFirst(batch) //nolint:rowserrcheck // the caller reads the rows
	}
	return t.conn.Query(ctx, sql, t.arguments(args)...) //nolint:rowserrcheck // the caller reads the rows
}

// QueryRow implements [pgx.Tx].
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.closed {
		return firstRow{failedRows{pgx.ErrTxClosed}}
	}
	batch, err := t.first(ctx, sql, args)
	switch {
	case err != nil:
		return firstRow{failedRows{err}}
	case batch != nil:
		rows, _ := queryFirst(batch) //nolint:rowserrcheck // its error is the rows'
		return firstRow{rows}
	}
	return t.conn.QueryRow(ctx, sql, t.arguments(args)...)
}

// Prepare implements [pgx.Tx].
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.closed {
		return nil, pgx.ErrTxClosed
	}
	if err := t.Start(ctx); err != nil {
		return nil, err
	}
	return t.conn.Prepare(ctx, name, sql)
}

// CopyFrom implements [pgx.Tx].
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if t.closed {
		return 0, pgx.ErrTxClosed
	}
	if err := t.Start(ctx); err != nil {
		return 0, err
	}
	return t.conn.CopyFrom(ctx, table, columns, source)
}

// SendBatch implements [pgx.Tx].
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.closed {
		return failedBatch{err: pgx.ErrTxClosed}
	}
	if err := t.Start(ctx); err != nil {
		return failedBatch{err: err}
	}
	return t.conn.SendBatch(ctx, b)
}

// LargeObjects implements [pgx.Tx], with an extra round trip. If the connection is lost, calls of
// the result panic, because pgx has no result that returns errors: see [Tx.WithoutObjects].
func (t *Tx) LargeObjects() pgx.LargeObjects {
	// Only a pgx transaction has large objects, and it cannot begin without a statement.
	inner, err := t.Conn().BeginTx(t.ctx, pgx.TxOptions{BeginQuery: "select"})
	if err != nil {
		t.closed, t.without = true, true
		return pgx.LargeObjects{}
	}
	return inner.LargeObjects()
}

// WithoutObjects reports whether LargeObjects had no connection, which explains a panic of the
// function.
func (t *Tx) WithoutObjects() bool { return t.without }

// Conn implements [pgx.Tx]. If the transaction does not begin, the connection is closed, so that
// nothing runs outside of the transaction.
func (t *Tx) Conn() *pgx.Conn {
	if !t.closed && t.Start(t.ctx) != nil && !t.begun {
		HangUp(t.ctx, t.conn)
	}
	return t.conn
}

// A savepoint is a transaction within a Tx.
type savepoint struct {
	*Tx
	name  string
	ended bool
}

// Commit releases the savepoint.
func (s *savepoint) Commit(ctx context.Context) error { return s.endBy(ctx, "release savepoint ") }

// Rollback rolls back to the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error {
	return s.endBy(ctx, "rollback to savepoint ")
}

func (s *savepoint) endBy(ctx context.Context, statement string) error {
	if s.ended {
		return pgx.ErrTxClosed
	}
	s.ended = true
	_, err := s.Exec(ctx, statement+s.name)
	return err
}
