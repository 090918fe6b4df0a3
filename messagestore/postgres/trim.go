package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// TrimCheckpoints implements [messagestore.Driver], at READ COMMITTED. It records the removal like
// a trim. It is not supported in a caller's transaction above that level. If the answer is lost,
// some messages may be removed; it is safe to call it again.
func (w *writer) TrimCheckpoints(ctx context.Context, stream messagestore.StreamName, keep int) (removed int64, err error) {
	call := func(db DB) error {
		return w.link.Read(ctx, db, w.queries.trimCheckpoints, []any{string(stream), int64(keep)}, func(rows pgx.Rows) error { return rows.Scan(&removed) })
	}
	err = w.with(ctx, func(db DB) error {
		if w.link.InTransaction(db) {
			return failedTrim(call(db))
		}
		return failedTrim(atReadCommitted(ctx, db, call))
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

func failedTrim(err error) error {
	if pglink.IsUnsupported(err) {
		return fmt.Errorf("%w: %w", messagestore.ErrNotSupported, failed(err))
	}
	return failed(err)
}
