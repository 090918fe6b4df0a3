package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Value returns the value that a query is answered with.
func Value[T any](t testing.TB, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any,
) (value T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}
