package pglink

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Tx is the transaction on a connection, for a function that may not end it: Commit and
// Rollback return an error. Savepoints are the function's own. Through a pooler its statements
// are sent as [Link.Mode] has it, unless they name a mode.
type Tx struct {
	link       *Link
	conn       *pgx.Conn
	ctx        context.Context //nolint:containedctx // for LargeObjects, which takes none
	refusal    error
	refused    bool
	closed     bool
	savepoints int
}

var _ pgx.Tx = (*Tx)(nil)

// Begun returns the transaction that was begun on conn. Commit and Rollback return refusal.
func (l *Link) Begun(ctx context.Context, conn *pgx.Conn, refusal error) *Tx {
	return &Tx{link: l, conn: conn, ctx: ctx, refusal: refusal}
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

// Commit is refused.
func (t *Tx) Commit(context.Context) error { return t.end() }

// Rollback is refused.
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
	return t.conn.Exec(ctx, sql, t.arguments(args)...)
}

// Query implements [pgx.Tx].
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.closed {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.Query(ctx, sql, t.arguments(args)...) //nolint:rowserrcheck // the caller reads the rows
}

// QueryRow implements [pgx.Tx].
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.closed {
		return closedRow{}
	}
	return t.conn.QueryRow(ctx, sql, t.arguments(args)...)
}

type closedRow struct{}

func (closedRow) Scan(...any) error { return pgx.ErrTxClosed }

// Prepare implements [pgx.Tx].
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.closed {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.Prepare(ctx, name, sql)
}

// CopyFrom implements [pgx.Tx].
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if t.closed {
		return 0, pgx.ErrTxClosed
	}
	return t.conn.CopyFrom(ctx, table, columns, source)
}

// SendBatch implements [pgx.Tx].
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.closed {
		return closedBatch{}
	}
	return t.conn.SendBatch(ctx, b)
}

type closedBatch struct{ pgx.BatchResults }

func (closedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, pgx.ErrTxClosed }
func (closedBatch) Query() (pgx.Rows, error)         { return nil, pgx.ErrTxClosed }
func (closedBatch) QueryRow() pgx.Row                { return closedRow{} }
func (closedBatch) Close() error                     { return pgx.ErrTxClosed }

// LargeObjects implements [pgx.Tx], by one round trip more. Its value fails in every call
// if that does.
func (t *Tx) LargeObjects() pgx.LargeObjects {
	// Only a transaction of pgx's own has large objects, and none begins without a statement.
	inner, err := t.conn.BeginTx(t.ctx, pgx.TxOptions{BeginQuery: "select"})
	if err != nil {
		t.closed = true
		return pgx.LargeObjects{}
	}
	return inner.LargeObjects()
}

// Conn implements [pgx.Tx].
func (t *Tx) Conn() *pgx.Conn { return t.conn }

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
