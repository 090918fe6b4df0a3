package postgres

import (
	"context"
	_ "embed"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/messagestore"
)

var _ messagestore.EpochDriver = (*Driver)(nil)

//go:embed sql/epoch.sql
var epochSQL string

// Epoch implements [messagestore.EpochDriver]: the server's identifier and its timeline,
// which is another after a failover, and after a restore to a moment, and is not there in
// recovery. It cannot tell where the user may not ask, or the server is none of PostgreSQL's
// own.
func (d *Driver) Epoch(ctx context.Context) (string, error) {
	var epoch string
	err := d.query(ctx, epochSQL, nil, func(rows pgx.Rows) error { return rows.Scan(&epoch) })
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && (strings.HasPrefix(refused.Code, "42") || strings.HasPrefix(refused.Code, "0A")) {
		return "", messagestore.ErrNotSupported
	}
	return epoch, err
}

// cannotTell reports whether a server has refused to say which epoch it is of.
func cannotTell(err error) bool {
	_, refused := errors.AsType[*pgconn.PgError](err)
	return refused
}
