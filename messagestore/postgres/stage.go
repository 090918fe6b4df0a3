package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
)

var errNoTransaction = fmt.Errorf("%w: the store is over no transaction of the caller's (postgres.New(tx, nil))", messagestore.ErrNotSupported)

// Over implements [messagestore.Driver] for a [pgx.Tx], and for the *sql.Tx of a function of
// Transact with that function's context.
func (d *Driver) Over(ctx context.Context, tx any) (messagestore.Driver, error) {
	switch tx := tx.(type) {
	case pgx.Tx:
		over := &Driver{schema: d.schema, queries: d.queries, notify: d.notify, keep: d.keep, log: d.log, close: func() {}}
		over.over(tx)
		return over, nil
	case *sql.Tx:
		if ctx.Value(transactionKey{d}) != nil {
			return d, nil
		}
		return nil, fmt.Errorf("%w: a *sql.Tx is that of a function of Transact, with its context", messagestore.ErrNotSupported)
	}
	return nil, fmt.Errorf("%w: a %T is no pgx.Tx", messagestore.ErrNotSupported, tx)
}

// Stage implements [messagestore.Driver]. The message is in an unlogged table until a deferred
// trigger appends it, in COMMIT. With the context of a function of [Driver.Transact] it runs in
// that transaction.
//
// It does not notify, because transactions that notify commit one at a time. Readers find the
// message at their next poll.
func (d *Driver) Stage(ctx context.Context, a messagestore.Append) error {
	if len(a.Records) != 1 || a.Conditional() {
		return errors.New("one record is staged, at a version, for no stream, or at any")
	}
	r := &a.Records[0]
	return d.reads(ctx, func(db DB) error {
		if !d.link.InTransaction(db) {
			return errNoTransaction
		}
		args := []any{string(a.Stream), int64(a.Expected), r.ID, r.Type, textOrNull(r.Data), textOrNull(r.Metadata)}
		return failed(d.link.Read(ctx, db, d.queries.stage, args, func(pgx.Rows) error { return nil }))
	})
}
