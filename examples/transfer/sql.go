package transfer

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// SQL runs a statement in a transaction, and scans the first row of its result into the variables
// of to. It reports whether there was a row. A service that knows its database calls the
// transaction directly.
type SQL[Tx any] func(ctx context.Context, tx Tx, statement string, args []any, to ...any) (found bool, err error)

// OnSQLite is [SQL] for transactions of database/sql.
func OnSQLite(ctx context.Context, tx *sql.Tx, statement string, args []any, to ...any) (found bool, err error) {
	if len(to) == 0 {
		_, err := tx.ExecContext(ctx, statement, args...)
		return false, err
	}
	err = tx.QueryRowContext(ctx, statement, args...).Scan(to...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// OnPostgres is [SQL] for transactions of pgx.
func OnPostgres(ctx context.Context, tx pgx.Tx, statement string, args []any, to ...any) (found bool, err error) {
	if len(to) == 0 {
		_, err := tx.Exec(ctx, statement, args...)
		return false, err
	}
	err = tx.QueryRow(ctx, statement, args...).Scan(to...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
