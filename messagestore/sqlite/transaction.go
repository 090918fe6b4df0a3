package sqlite

import (
	"context"
	"database/sql"
)

// New returns a driver over the caller's transaction: what it writes is committed
// or rolled back with the caller's own tables, and what it reads is what the
// transaction sees. The caller's database needs the tables that [Schema] creates.
// The transaction may be of any driver for SQLite.
//
//	tx, err := db.BeginTx(ctx, nil) // of a database opened with _txlock=immediate
//	...
//	_, err = tx.ExecContext(ctx, "UPDATE invoices SET paid = 1 WHERE id = ?", id)
//	...
//	store := messagestore.New(sqlite.New(tx), nil)
//	_, err = store.Write(ctx, stream, version, Paid{})
//	...
//	err = tx.Commit()
//
// A write that is refused, as by a version conflict, leaves the transaction as it
// was before that write, and usable.
//
// Begin the transaction with BEGIN IMMEDIATE, which is what _txlock=immediate does
// in the drivers modernc.org/sqlite and mattn/go-sqlite3. One that begins without,
// and reads before it writes, is refused with [ErrBusy] if anybody has written in
// between, however long the busy timeout is.
//
// A context that ends stops a write before it starts, never within: SQLite would
// roll the whole transaction back.
func New(tx *sql.Tx) *Driver {
	t := transaction{newPrepared(tx)}
	return &Driver{reads: t, writes: t}
}

// transaction has prepared what the caller's transaction was asked for; database/sql
// closes that with it.
type transaction struct{ *prepared }

func (t transaction) read(ctx context.Context, f func(context.Context, queryer) error) error {
	return f(ctx, t.prepared)
}

func (t transaction) do(ctx context.Context, j *job) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := t.ExecContext(ctx, lockSQL); err != nil {
		if isBusy(err) {
			return &BusyError{Cause: err}
		}
		return err
	}
	return j.run(ctx, t.prepared)
}
