package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// Forgets implements [messagestore.Driver]: package admin can forget keys.
func (*Driver) Forgets() bool { return true }

// TrimCheckpoints implements [messagestore.Driver], at READ COMMITTED. It records the removal like
// a trim. It is not supported in a caller's transaction above that level. If the answer is lost,
// some messages may be removed; it is safe to call it again.
func (d *Driver) TrimCheckpoints(ctx context.Context, stream messagestore.StreamName, keep int) (removed int64, err error) {
	call := func(db DB) error {
		return d.link.Read(ctx, db, d.queries.trimCheckpoints, []any{string(stream), int64(keep)}, func(rows pgx.Rows) error { return rows.Scan(&removed) })
	}
	err = d.with(ctx, func(db DB) error {
		if d.link.InTransaction(db) {
			return failedTrim(call(db))
		}
		tx, err := pglink.Begin(ctx, db)
		if err != nil {
			return failed(err)
		}
		defer pglink.RollBack(ctx, tx)
		if err := call(tx); err != nil {
			return failedTrim(err)
		}
		return failed(tx.Commit(ctx))
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
