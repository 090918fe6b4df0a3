package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// Epoch implements [messagestore.Driver]. The epoch is made of the server's identifier,
// its timeline, and the number that an operator raises (package admin). The timeline changes
// with a failover and with a restore to a moment, and is missing in recovery. If the owner of
// the schema may not ask for identifier and timeline, or the server is not PostgreSQL's own,
// the epoch is the number alone. Without EXECUTE on dibs.epoch() the error matches
// [messagestore.ErrNotSupported].
func (d *Driver) Epoch(ctx context.Context) (string, error) {
	var epoch string
	// Not on the connection of a function of Transact: a refusal would abort its transaction.
	err := d.with(ctx, func(db DB) (err error) {
		epoch, err = d.link.Epoch(ctx, db)
		return err
	})
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == pglink.Denied {
		return "", messagestore.ErrNotSupported
	}
	return epoch, err
}
