package pgtest

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

var CopyOn = copyOn

// KeptAgain has a connection kept as after a statement, and taken and used again.
func KeptAgain(ctx context.Context, url string, conn *pgx.Conn, kept func()) error {
	var p connPool
	p.put(ctx, url, conn)
	kept()
	again, err := p.take(ctx, url)
	if err != nil {
		return err
	}
	_, err = again.Exec(ctx, "select 1")
	return errors.Join(err, again.Close(ctx))
}
