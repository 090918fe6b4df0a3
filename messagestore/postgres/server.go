package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// Now implements [messagestore.Driver] with the server's clock_timestamp(), which stamps
// messages too.
func (r reader) Now(ctx context.Context) (time.Time, error) {
	var micros int64
	err := r.query(ctx, nowSQL, nil, func(rows pgx.Rows) error { return rows.Scan(&micros) })
	return time.UnixMicro(micros).UTC(), err
}

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
	return r.with(ctx, func(db DB) error {
		if err := r.link.CheckAnew(ctx, db); err != nil {
			return matched(err)
		}
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
