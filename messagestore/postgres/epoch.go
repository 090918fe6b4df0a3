package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// Epoch implements [messagestore.Driver]. The epoch consists of the server's identifier, its
// timeline, and a number that an operator raises (package admin). The timeline changes with a
// failover and with a point-in-time restore, and is missing in recovery. If the owner of the schema
// may not read identifier and timeline, or the server is not PostgreSQL itself, the epoch is only
// the number. Without EXECUTE on dibs.epoch() the error matches [messagestore.ErrNotSupported].
func (r reader) Epoch(ctx context.Context) (string, error) {
	var epoch string
	// This does not use the connection of a Transact function, because a refusal would abort its
	// transaction.
	err := r.with(ctx, func(db DB) (err error) {
		epoch, err = r.link.Epoch(ctx, db)
		return err
	})
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == pglink.Denied {
		return "", messagestore.ErrNotSupported
	}
	return epoch, err
}
