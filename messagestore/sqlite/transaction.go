package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/dibs-go/dibs/messagestore"
)

// New returns a driver over the caller's transaction: its writes are committed or rolled back with
// those to the caller's own tables, and it reads as the transaction does. The caller's database
// needs the tables that [Schema] creates. The transaction may be of any driver for SQLite. Where
// another one than modernc.org/sqlite has the file open, do not [Open] it in the same process too:
// two copies of SQLite in one process undo each other's locks
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
// A write that is refused, as by a version conflict, leaves the transaction as it was before that
// write, and usable. After a statement that failed, as on a full disk, the driver writes no more
// and returns that error: SQLite may have rolled the whole transaction back, and later statements
// would be committed one by one.
//
// Begin the transaction with BEGIN IMMEDIATE, as the drivers modernc.org/sqlite and
// mattn/go-sqlite3 do with _txlock=immediate. A transaction that begins without it, and reads
// before it writes, is refused with [ErrBusy] if another connection has written in between, however
// long the busy timeout is.
//
// A context that ends stops a write before it starts, never within: SQLite would roll the whole
// transaction back.
//
// For a transaction that is nil New returns an error that matches [messagestore.ErrInvalid]. After
// the transaction's end the error of every call matches [messagestore.ErrClosed].
func New(tx *sql.Tx) (*Driver, error) {
	if tx == nil {
		return nil, fmt.Errorf("sqlite: %w", messagestore.NewInvalidError("transaction", nil, "it is nil"))
	}
	t := transaction{newPrepared(tx), &atomic.Pointer[error]{}}
	return &Driver{reads: t, writes: t}, nil
}

// transaction keeps the statements that it prepared in the caller's transaction; database/sql
// closes them with it.
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

// ended makes the error of a transaction that has ended match [messagestore.ErrClosed]. A statement
// that was prepared in it has another one, which database/sql does not export, so its text is
// looked at.
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
