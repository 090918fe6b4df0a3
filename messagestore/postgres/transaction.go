package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// A transaction is a transaction of [Driver.Transact].
type transaction struct {
	*writer
	held
}

const (
	beginSQL    = "begin isolation level read committed"
	rollBackSQL = "rollback"
)

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
	t.tx = t.link.Transaction(ctx, t.conn, messagestore.ErrTransactionEnded, with...)
	return begun, err
}

// notBegun marks an error before the transaction has begun as worth another attempt if the
// connection was lost, for example because the server was restarted.
func (t *transaction) notBegun(ctx context.Context, err error) error {
	if ctx.Err() != nil || !t.conn.IsClosed() {
		return err
	}
	return &calling.RetryableError{NotBegun: true, Cause: fmt.Errorf("the connection was lost before BEGIN: %w", err)}
}

// prepare prepares the driver's statements, with a round trip each, once per connection.
func (t *transaction) prepare(ctx context.Context) error {
	prepared := []string{t.queries.readStream, t.queries.appendShared, t.queries.transactAppend, t.queries.ring}
	if !t.notify {
		prepared = prepared[:3]
	}
	return failed(t.link.Prepare(ctx, t.conn, prepared...))
}

// begin begins the transaction, marks it and reads the first message of a stream, in one round
// trip.
func (t *transaction) begin(ctx context.Context, first messagestore.StreamName) (*messagestore.Message, error) {
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	statements := []pglink.Statement{{SQL: beginSQL}, {SQL: markSQL}}
	r := &reading{}
	if first != "" {
		statements = append(statements, pglink.Statement{
			SQL: t.queries.readStream, Parameters: binaryParameters([]any{string(first), int64(0), 1, false}), Read: r.take, Often: true,
		})
	}
	_, err := t.link.Pipeline(ctx, t.conn, statements...)
	if pglink.Stale(err) {
		return nil, &calling.RetryableError{Cause: failed(err)}
	}
	if err != nil || len(r.found.Messages) == 0 {
		return nil, failed(err)
	}
	return r.found.Messages[0], nil
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

var (
	errLeftOpen = errors.New("the function left rows of a query open")
	errLost     = errors.New("the connection was lost before COMMIT")
	errAborted  = errors.New("a statement of the function failed, which aborts the transaction, and the function returned no error")
)
