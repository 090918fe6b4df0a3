package postgres

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// Forgets implements [messagestore.Driver]: package admin can forget keys.
func (*Driver) Forgets() bool { return true }

//go:embed sql/trim_checkpoints.sql
var trimCheckpointsSQL string

// TrimCheckpoints implements [messagestore.Driver], at READ COMMITTED. It records the removal like
// a trim. It is not supported in a caller's transaction above that level. If the answer is lost,
// some messages may be removed; it is safe to call it again.
func (d *Driver) TrimCheckpoints(ctx context.Context, stream messagestore.StreamName, keep int) (removed int64, err error) {
	call := func(db DB) error {
		return d.link.Read(ctx, db, d.queries.trimCheckpoints, []any{string(stream), int64(keep)}, func(rows pgx.Rows) error { return rows.Scan(&removed) })
	}
	err = d.with(ctx, func(db DB) error {
		if d.link.InTransaction(db) {
			return d.failedTrim(call(db))
		}
		tx, err := pglink.Begin(ctx, db)
		if err != nil {
			return d.failed(err)
		}
		defer pglink.RollBack(ctx, tx)
		if err := call(tx); err != nil {
			return d.failedTrim(err)
		}
		return d.failed(tx.Commit(ctx))
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

func (d *Driver) failedTrim(err error) error {
	if pglink.IsUnsupported(err) {
		return fmt.Errorf("%w: %w", messagestore.ErrNotSupported, d.failed(err))
	}
	return d.failed(err)
}
