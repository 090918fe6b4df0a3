package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/dibs-go/dibs/messagestore"
)

// New returns a driver over your transaction: its writes are committed or rolled back with the
// writes to your own tables, and it sees everything that the transaction sees. Your database needs
// the tables that [Schema] creates. The transaction may come from any driver for SQLite. If you use
// another driver than modernc.org/sqlite, do not also [Open] the file in the same process: two
// copies of SQLite in one process undo each other's locks
// (https://www.sqlite.org/howtocorrupt.html, 2.2.1).
//
//	tx, err := db.BeginTx(ctx, nil) // of a database opened with _txlock=immediate
//	...
//	_, err = tx.ExecContext(ctx, "UPDATE invoices SET paid = 1 WHERE id = ?", id)
//	...
//	driver, err := sqlite.New(tx)
//	...
//	store, err := messagestore.New(driver, nil)
//	...
//	_, err = store.Write(ctx, stream, version, Paid{})
//	...
//	err = tx.Commit()
//
// After a refused write, such as a version conflict, the transaction is unchanged and usable. After
// a failed statement, for example on a full disk, the driver writes nothing more and returns that
// error: SQLite may have rolled back the whole transaction, and later statements would be committed
// one by one.
//
// Begin the transaction with BEGIN IMMEDIATE; the drivers modernc.org/sqlite and mattn/go-sqlite3
// do it with _txlock=immediate. Otherwise a transaction that reads before it writes fails with
// [ErrBusy] if another connection has written in between, however long the busy timeout is.
//
// If the context ends, a write that has started still finishes, because cancelling it would make
// SQLite roll back the whole transaction.
//
// If tx is nil, the error matches [messagestore.ErrInvalid]. After the end of the transaction every
// call's error matches [messagestore.ErrClosed].
func New(tx *sql.Tx) (*Driver, error) {
	if tx == nil {
		return nil, fmt.Errorf("sqlite: %w", messagestore.NewInvalidError("transaction", nil, "it is nil"))
	}
	t := transaction{newPrepared(tx), &atomic.Pointer[error]{}}
	return &Driver{reads: t, writes: t}, nil
}

// transaction keeps the statements that it prepared in the caller's transaction; database/sql
// closes them when it ends.
type transaction struct {
	*prepared
	failed *atomic.Pointer[error] // why it may be over
}

func (t transaction) read(ctx context.Context, f func(context.Context, queryer) error) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	return ended(f(ctx, t.prepared))
}

func (t transaction) alive(ctx context.Context) error {
	return t.read(ctx, func(ctx context.Context, db queryer) error {
		var one int
		_, err := scanOne(ctx, db, "SELECT 1", nil, &one)
		return err
	})
}

// ended makes the error of an ended transaction match [messagestore.ErrClosed]. A prepared
// statement has another error then, which database/sql does not export, so ended compares its text.
func ended(err error) error {
	switch {
	case err == nil:
		return nil
	case err.Error() == "sql: statement is closed":
		err = sql.ErrTxDone
	case !errors.Is(err, sql.ErrTxDone):
		return err
	}
	return fmt.Errorf("%w: %w", messagestore.ErrClosed, err)
}

func (t transaction) do(ctx context.Context, j *job) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if before := t.failed.Load(); before != nil {
		return fmt.Errorf("a write before it failed, and the transaction may be over: %w", *before)
	}
	ctx = context.WithoutCancel(ctx)
	_, err := t.ExecContext(ctx, lockSQL)
	if isBusy(err) {
		return &busyError{cause: err}
	}
	if err == nil {
		err = j.run(ctx, t.prepared)
	}
	if mayEndTransaction(err) {
		t.failed.CompareAndSwap(nil, &err)
	}
	return ended(err)
}
