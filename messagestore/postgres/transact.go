package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/callctx"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

var _ messagestore.TransactDriver[pgx.Tx] = (*Driver)(nil)

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
func (d *Driver) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx pgx.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) (written []messagestore.Written, err error) {
	if d.link.OverTransaction() {
		return nil, messagestore.ErrNotSupported
	}
	if f == nil {
		return nil, nil
	}
	written, err = d.transact(ctx, first, false, f)
	if errors.Is(err, errUnsent) {
		written, err = d.transact(ctx, first, true, f)
	}
	return written, err
}

// errUnsent is the error of a transaction when pgx could not encode its first statement.
var errUnsent = errors.New("the first statement was not sent")

// transact is one attempt. If apart is set, BEGIN is a separate round trip.
func (d *Driver) transact(
	ctx context.Context, first messagestore.StreamName, apart bool,
	f func(ctx context.Context, tx pgx.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) (written []messagestore.Written, err error) {
	err = d.with(ctx, func(db DB) error {
		conn := pglink.Conn(db)
		if conn == nil || d.link.InTransaction(db) {
			return messagestore.ErrNotSupported
		}
		t := &transaction{driver: d, conn: conn}
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

// A transaction is a transaction of [Driver.Transact].
type transaction struct {
	driver *Driver
	conn   *pgx.Conn
	tx     *pglink.Tx // passed to f; nil for a *sql.Tx, which has begun

	turn sync.Mutex // held by the caller that uses the connection
	over bool       // f has returned
}

// transactionKey is the key of a driver's transaction in the context of f.
type transactionKey struct{ driver *Driver }

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
	return f(context.WithValue(ctx, transactionKey{t.driver}, t))
}

// reads calls f with a connection for reading: if ctx belongs to the function of a transaction
// under way, the transaction's connection.
func (d *Driver) reads(ctx context.Context, f func(db DB) error) error {
	t, is := ctx.Value(transactionKey{d}).(*transaction)
	if !is {
		return d.with(ctx, f)
	}
	t.turn.Lock()
	if t.over {
		t.turn.Unlock()
		return d.with(ctx, f)
	}
	defer t.turn.Unlock()
	if t.tx != nil {
		if err := t.tx.Start(ctx); err != nil {
			return failed(err)
		}
	}
	return f(t.conn)
}

// onlyConnection reports whether ctx belongs to a running function of [Driver.Transact] that holds
// the only connection: a call that takes a connection would wait for the function, and the function
// for the call. Upkeep has its own goroutine and, over a pool, its own connection.
func (d *Driver) onlyConnection(ctx context.Context) bool {
	t, is := ctx.Value(transactionKey{d}).(*transaction)
	if !is || callctx.Of(ctx).Upkeep || d.link.Connections() != 1 {
		return false
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	return !t.over
}

var errOnlyConnection = errors.New("the transaction of this function has the only connection, and the call needs another: " +
	"return the messages from the function, or give the pool more connections")

// markSQL makes a setting that lasts as long as the transaction. It shows whether f has ended this
// transaction and begun another. It takes no snapshot, so f may still choose the isolation level.
const markSQL = "set local dibs.transaction = 'begun'"

// open makes the transaction that is passed to f. It sends BEGIN if it has to read the first
// message of a stream.
func (t *transaction) open(ctx context.Context, first messagestore.StreamName) (begun *messagestore.Message, err error) {
	var with []string
	if first == "" {
		with = []string{beginSQL, markSQL}
		err = t.prepare(ctx)
	} else {
		begun, err = t.begin(ctx, first)
	}
	t.tx = t.driver.link.Transaction(ctx, t.conn, messagestore.ErrTransactionEnded, with...)
	return begun, err
}

// notBegun marks an error before the transaction has begun as worth another attempt if the
// connection was lost, for example because the server was restarted.
func (t *transaction) notBegun(ctx context.Context, err error) error {
	if ctx.Err() != nil || !t.conn.IsClosed() {
		return err
	}
	return &failure.RetryableError{NotBegun: true, Cause: fmt.Errorf("the connection was lost before BEGIN: %w", err)}
}

// prepare prepares the driver's statements, with a round trip each, once per connection.
func (t *transaction) prepare(ctx context.Context) error {
	d := t.driver
	prepared := []string{d.queries.readStream, d.queries.appendShared, d.queries.transactAppend, d.queries.ring}
	if !d.notify {
		prepared = prepared[:3]
	}
	return failed(d.link.Prepare(ctx, t.conn, prepared...))
}

// begin begins the transaction, marks it and reads the first message of a stream, in one round
// trip.
func (t *transaction) begin(ctx context.Context, first messagestore.StreamName) (*messagestore.Message, error) {
	d := t.driver
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	statements := []pglink.Statement{{SQL: beginSQL}, {SQL: markSQL}}
	r := &reading{}
	if first != "" {
		statements = append(statements, pglink.Statement{
			SQL: d.queries.readStream, Parameters: binaryParameters([]any{string(first), int64(0), 1, false}), Read: r.take, Often: true,
		})
	}
	_, err := d.link.Pipeline(ctx, t.conn, statements...)
	if pglink.Stale(err) {
		return nil, &failure.RetryableError{Cause: failed(err)}
	}
	if err != nil || len(r.found.Messages) == 0 {
		return nil, failed(err)
	}
	return r.found.Messages[0], nil
}

var (
	errLeftOpen = errors.New("the function left rows of a query open")
	errLost     = errors.New("the connection was lost before COMMIT")
	errAborted  = errors.New("a statement of the function failed, which aborts the transaction, and the function returned no error")
)

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
		return nil, &failure.RetryableError{Cause: cause}
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

// rollBack ends a transaction that is still open. If the server does not answer within a second, it
// closes the connection, and the server rolls back.
func (t *transaction) rollBack(ctx context.Context) {
	if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'I' && !t.conn.PgConn().IsBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if t.conn.PgConn().IsBusy() {
		t.conn.Close(ctx)
		return
	}
	if _, err := t.conn.Exec(ctx, "rollback"); err != nil {
		t.conn.Close(ctx)
	}
}
