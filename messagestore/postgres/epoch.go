package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/messagestore"
)

var _ messagestore.EpochDriver = (*Driver)(nil)

// Epoch implements [messagestore.EpochDriver]: the server's identifier and its timeline,
// which is another after a failover, and after a restore to a moment, and is not there in
// recovery; and what [Admin.RaiseEpoch] has raised. Where the owner of the schema may not
// ask the server, or it is none of PostgreSQL's own, it is that alone; and who may not call
// dibs.epoch(), as who was granted functions one by one, has none.
func (d *Driver) Epoch(ctx context.Context) (string, error) {
	var epoch string
	err := d.query(ctx, d.queries.epoch, nil, func(rows pgx.Rows) error { return rows.Scan(&epoch) })
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == denied {
		return "", messagestore.ErrNotSupported
	}
	return epoch, err
}

// RaiseEpoch tells all who read that the store may have lost what was committed, where
// nothing else tells them: its files were put back as they had been, and have the timeline
// that they had. It returns the store's epoch, which is another than all before. Consumers
// that run begin again at their recorded positions, at most 10 s later, and hand over once
// more what was handled since; so raising it where nothing is lost does no harm. Raise it
// before they reach the server: what they record in between stays recorded.
//
// After an error it may have been raised. To call it again is safe.
func (a *Admin) RaiseEpoch(ctx context.Context) (epoch string, err error) {
	if err := a.change(ctx, a.queries.raiseEpoch, nil, &epoch); err != nil {
		return "", fmt.Errorf("raise epoch: %w", err)
	}
	return epoch, nil
}

// cannotTell reports whether a server has refused to say which epoch it is of.
func cannotTell(err error) bool {
	_, refused := errors.AsType[*pgconn.PgError](err)
	return refused
}
