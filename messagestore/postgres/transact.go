package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// Transact implements [messagestore.TransactDriver] over a pool or a connection. Over a transaction
// the error matches [messagestore.ErrNotSupported].
//
// The transaction is at READ COMMITTED. BEGIN and the read of first are one round trip, and so are
// the append and COMMIT. If first is "", f may begin with SET TRANSACTION, and BEGIN goes in the
// round trip of f's first statement, if that is an Exec, Query or QueryRow with arguments and there
// is no pooler; otherwise BEGIN takes one more. If f sends nothing and returns no appends, nothing
// is sent at all.
//
// Commit and Rollback of tx return an error and make the call fail; use its Begin for a savepoint.
// A read through the store with the context of f uses the transaction's connection, so f must first
// have read all rows of its own queries. Every other call with the context of f needs a second
// connection, and returns an error at once if the pool has only one. If f does not return within
// five seconds after ctx is done, its connection is closed, and the pool can open another.
func (w *writer) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx pgx.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) (written []messagestore.Written, err error) {
	if w.link.OverTransaction() {
		return nil, messagestore.ErrNotSupported
	}
	if f == nil {
		return nil, nil
	}
	written, err = w.transact(ctx, first, false, f)
	if errors.Is(err, errUnsent) {
		written, err = w.transact(ctx, first, true, f)
	}
	return written, err
}

// errUnsent is the error of a transaction when pgx could not encode its first statement.
var errUnsent = errors.New("the first statement was not sent")

// transact is one attempt. If apart is set, BEGIN is a separate round trip.
func (w *writer) transact(
	ctx context.Context, first messagestore.StreamName, apart bool,
	f func(ctx context.Context, tx pgx.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) (written []messagestore.Written, err error) {
	err = w.with(ctx, func(db DB) error {
		conn := pglink.Conn(db)
		if conn == nil || w.link.InTransaction(db) {
			return messagestore.ErrNotSupported
		}
		t := &transaction{writer: w, held: held{conn: conn}}
		defer t.rollBack(ctx)
		defer pglink.LeaveAfter(ctx, db, abandonAfter)()
		begun, err := t.open(ctx, first)
		if err != nil {
			return t.notBegun(ctx, err)
		}
		tx := t.tx
		if apart {
			tx.Apart()
		}
		defer tx.Close()
		appends, err := t.call(ctx, func(ctx context.Context) ([]messagestore.Append, error) { return f(ctx, tx, begun) })
		written, err = t.end(ctx, appends, err, tx.Refused())
		return err
	})
	return written, err
}

// abandonAfter is how long the function of a transaction may run after its context has ended.
const abandonAfter = 5 * time.Second

// call calls f with a context in which the driver reads on the transaction's connection. If each
// function needed a second connection, functions that hold the whole pool would wait for each other
// for ever.
func (t *transaction) call(ctx context.Context, f func(ctx context.Context) ([]messagestore.Append, error)) (_ []messagestore.Append, err error) {
	defer func() {
		t.turn.Lock()
		defer t.turn.Unlock()
		t.over = true
		if t.tx != nil && t.tx.WithoutObjects() {
			switch p := recover().(type) {
			case nil:
			case runtime.Error: // pgx's large objects panic so when the connection is lost
				err = fmt.Errorf("large objects: the connection was lost: %w", p)
			default:
				panic(p)
			}
		}
	}()
	return f(context.WithValue(ctx, heldKey{t.database}, &t.held))
}

// end appends and commits f's work, or returns an error and leaves the rollback to the caller.
// cause is the error of f; refused is set if f called Commit or Rollback.
func (t *transaction) end(ctx context.Context, appends []messagestore.Append, cause error, refused bool) ([]messagestore.Written, error) {
	// While a result is being read, this is the status before the statement.
	lost, busy, status, begun := t.conn.IsClosed(), t.conn.PgConn().IsBusy(), t.conn.PgConn().TxStatus(), true
	if t.tx != nil {
		if t.tx.Unsent() {
			return nil, errUnsent
		}
		if missed := t.tx.Missed(); missed != nil {
			return nil, t.notBegun(ctx, failed(missed))
		}
		begun = t.tx.Begun()
	}
	ended := refused || !lost && !busy && status == 'I' && begun
	switch {
	case ended && cause != nil:
		return nil, fmt.Errorf("%w: %w", messagestore.ErrTransactionEnded, cause)
	case cause != nil && pglink.Retryable(cause):
		return nil, &calling.RetryableError{Cause: cause}
	case cause != nil:
		return nil, cause
	case ended:
		return nil, messagestore.ErrTransactionEnded
	case lost:
		return nil, errLost
	case busy:
		return nil, errLeftOpen
	case status == 'E':
		return nil, errAborted
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !begun && len(appends) == 0:
		return nil, nil
	case !begun:
		if err := t.tx.Start(ctx); err != nil {
			return nil, t.notBegun(ctx, failed(err))
		}
	}
	return t.commit(ctx, appends)
}
