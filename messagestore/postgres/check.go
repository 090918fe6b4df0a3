package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
)

// The functions that a reader and a writer call.
var (
	readingFunctions = []string{"read_stream", "read_category", "last_message", "stream_version"}
	writingFunctions = append([]string{"append", "append_each", "append_one", "append_shared", "find_messages"}, readingFunctions...)
)

// Check implements [messagestore.Driver]. On one connection it checks again the server's settings
// and role and the schema's version, and then the rights of the user. If transactions of the server
// or the user are read-only, a check for writing returns [ErrUnsafeSettings].
func (r reader) Check(ctx context.Context, write bool) error {
	functions := readingFunctions
	if write {
		functions = writingFunctions
	}
	return r.withAnew(ctx, func(db DB) error {
		var denied, readOnly string
		err := r.link.Read(ctx, db, r.queries.rights, []any{functions}, func(rows pgx.Rows) error { return rows.Scan(&denied, &readOnly) })
		switch {
		case err != nil:
			return failed(err)
		case denied != "":
			return failed(pglink.PermissionDenied("function " + denied))
		case write && readOnly == "on":
			return &UnsafeSettingsError{Settings: []UnsafeSetting{{Name: "transaction_read_only", Value: readOnly, Need: "off"}}}
		}
		return nil
	})
}

// withAnew is like with, but checks the connection's server again.
func (r reader) withAnew(ctx context.Context, f func(db DB) error) error {
	return r.with(ctx, func(db DB) error {
		if err := r.link.CheckAnew(ctx, db); err != nil {
			return matched(err)
		}
		return f(db)
	})
}
