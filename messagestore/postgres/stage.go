package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
)

// errNoTransaction refuses to stage a message that no COMMIT of the caller's would append.
var errNoTransaction = fmt.Errorf("%w: the store is over no transaction of the caller's (postgres.New(tx, nil))", messagestore.ErrNotSupported)

// Stage implements [messagestore.Driver]. The message is in an unlogged table until a deferred
// trigger appends it, in COMMIT. With the context of a function of [Driver.Transact] it runs in
// that transaction.
//
// It does not notify, because transactions that notify commit one at a time. Readers find the
// message at their next poll.
func (w *writer) Stage(ctx context.Context, a messagestore.Append) error {
	if len(a.Records) != 1 || a.Conditional() {
		return errors.New("one record is staged, at a version, for no stream, or at any")
	}
	r := &a.Records[0]
	return w.reads(ctx, func(db DB) error {
		if !w.link.InTransaction(db) {
			return errNoTransaction
		}
		args := []any{string(a.Stream), int64(a.Expected), r.ID, r.Type, textOrNull(r.Data), textOrNull(r.Metadata)}
		return failed(w.link.Read(ctx, db, w.queries.stage, args, func(pgx.Rows) error { return nil }))
	})
}
