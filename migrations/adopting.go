package migrations

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
)

// ErrAdopting is returned by [Up] when message-db's table is the store, because its messages are
// being adopted or were given back.
var ErrAdopting = errors.New("message-db's messages are not adopted yet: run dibs migrate adopt")

// Install is [Up] for the schema dibs in a transaction of dibs migrate adopt: it also works during
// an adoption. The transaction must look up names only in pg_catalog.
func Install(ctx context.Context, tx pgx.Tx) error {
	if err := given(ctx, "transaction", tx == nil); err != nil {
		return err
	}
	if err := lock(ctx, tx, pglink.DefaultSchema); err != nil {
		return err
	}
	return install(ctx, tx, pglink.DefaultSchema, parts)
}

// refuseWhileAdopting refuses a store that is not in use because of an adoption.
func refuseWhileAdopting(ctx context.Context, tx pgx.Tx) error {
	const readable = `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'dibs_adoption' and c.relname = 'state' and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select'))`
	var is bool
	if err := tx.QueryRow(ctx, readable).Scan(&is); err != nil || !is {
		return err
	}
	if err := tx.QueryRow(ctx, "select exists (select from dibs_adoption.state where state <> 'adopted')").Scan(&is); err != nil {
		return err
	}
	if is {
		return ErrAdopting
	}
	return nil
}
