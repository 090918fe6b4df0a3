package pglink

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Start begins the transaction by a separate round trip, if it has not begun.
func (t *Tx) Start(ctx context.Context) error {
	switch {
	case t.closed:
		return pgx.ErrTxClosed
	case t.begun:
		return nil
	case t.lost != nil:
		return t.lost
	case t.left:
		return errLeft
	}
	statements := make([]Statement, len(t.begin))
	for i, sql := range t.begin {
		statements[i].SQL = sql
	}
	tags, err := t.link.Pipeline(ctx, t.conn, statements...)
	t.begun = slices.Contains(tags, "BEGIN")
	if err != nil {
		t.missed(ctx, err)
	}
	return err
}

// Begun reports whether the transaction has begun. It may have ended since.
func (t *Tx) Begun() bool { return t.begun }

// Missed returns the error if the connection was lost before the server answered BEGIN, else nil.
// It also returns nil if the caller left because its context ended.
func (t *Tx) Missed() error { return t.lost }

// Apart makes BEGIN a separate round trip.
func (t *Tx) Apart() { t.apart = true }

// Unsent reports whether pgx has closed the connection before it sent BEGIN, because it could not
// encode the first statement, for example with an argument too few. If BEGIN is a separate round
// trip, only the statement fails.
func (t *Tx) Unsent() bool { return t.unsent }

func (t *Tx) missed(ctx context.Context, err error) {
	switch {
	case t.begun || !t.conn.IsClosed():
	case ctx.Err() != nil:
		t.left = true
	default:
		t.lost = err
		_, t.unsent = errors.AsType[pgx.ErrPreprocessingBatch](err)
	}
}

// first sends a statement together with the statements that begin the transaction, and returns the
// batch with the statement's result next. If the batch is nil, the transaction has begun, and the
// statement must be sent alone.
func (t *Tx) first(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	switch {
	case t.begun:
		return nil, nil
	case t.lost != nil:
		return nil, t.lost
	case t.left:
		return nil, errLeft
	case t.apart || !t.travels(args):
		return nil, t.Start(ctx)
	}
	batch := &pgx.Batch{}
	for _, sql := range t.begin {
		batch.Queue(sql)
	}
	batch.Queue(sql, args...)
	results := t.conn.SendBatch(ctx, batch)
	for range t.begin {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			if t.missed(ctx, err); t.begun || t.conn.IsClosed() || ctx.Err() != nil {
				return nil, err
			}
			// The statement failed before BEGIN was sent, for example because it does not parse. It
			// must fail in the transaction.
			return nil, t.Start(ctx)
		}
		t.begun = true
	}
	return results, nil
}

// travels reports whether a statement with these arguments can be in a batch. A text without
// arguments may be several statements, and a batch does not support options, which each statement
// through a pooler has.
func (t *Tx) travels(args []any) bool {
	if m := t.link.markOf(t.conn); m == nil || m.pooled || len(args) == 0 {
		return false
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	case pgx.NamedArgs, pgx.StrictNamedArgs:
		return true
	case pgx.QueryRewriter: // the caller's: it gets the connection, and may use it
		return false
	}
	return true
}

// firstRows are the rows of a first statement. The connection is free once they are closed.
type firstRows struct {
	pgx.Rows
	batch  pgx.BatchResults
	closed bool
	err    error // of the batch
}

func queryFirst(batch pgx.BatchResults) (pgx.Rows, error) {
	rows, err := batch.Query() //nolint:rowserrcheck // the caller reads the rows
	r := &firstRows{Rows: rows, batch: batch}
	if err != nil {
		r.Close()
	}
	return r, err
}

// Close implements [pgx.Rows].
func (r *firstRows) Close() {
	r.Rows.Close()
	if !r.closed {
		r.closed = true
		r.err = r.batch.Close()
	}
}

// Err implements [pgx.Rows].
func (r *firstRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// Next implements [pgx.Rows].
func (r *firstRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Scan implements [pgx.Rows].
func (r *firstRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

// Values implements [pgx.Rows].
func (r *firstRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

// A firstRow is the first row of a first statement.
type firstRow struct{ rows pgx.Rows }

// Scan implements [pgx.Row].
func (r firstRow) Scan(dest ...any) error {
	defer r.rows.Close()
	for _, d := range dest {
		if _, is := d.(*pgtype.DriverBytes); is {
			return errDriverBytes
		}
	}
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// failedRows are the rows of a query that was not sent. They return its error.
type failedRows struct{ err error }

func (failedRows) Close()                                       {}
func (r failedRows) Err() error                                 { return r.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                          { return r.err }
func (r failedRows) Values() ([]any, error)                     { return nil, r.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }

// failedBatch are the results of a batch that was not sent.
type failedBatch struct {
	pgx.BatchResults
	err error
}

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return failedRows{b.err}, b.err }
func (b failedBatch) QueryRow() pgx.Row                { return firstRow{failedRows{b.err}} }
func (b failedBatch) Close() error                     { return b.err }

var errLeft = errors.New("the caller of the transaction's first statement left")

var errDriverBytes = errors.New("cannot scan into *pgtype.DriverBytes from QueryRow")
