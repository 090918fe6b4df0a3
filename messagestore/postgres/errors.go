package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// Failures, for [errors.Is]. Nothing was read or written.
var (
	// ErrNotMigrated is returned when the database does not have the schema, or has an older one.
	// See package migrations.
	ErrNotMigrated = pglink.ErrNotMigrated

	// ErrSchemaTooNew is returned when the database's schema is too new for this release of the
	// library.
	ErrSchemaTooNew = pglink.ErrSchemaTooNew

	// ErrAdopting is returned while the messages are in message-db's table: before an adoption has
	// switched to Dibs's table, and after its undo.
	ErrAdopting = pglink.ErrAdopting

	// ErrUnsafeSettings is returned when the server might lose or change acknowledged writes. See
	// [UnsafeSettingsError].
	ErrUnsafeSettings = pglink.ErrUnsafeSettings
)

// An UnsafeSettingsError names, in Settings, all settings because of which a server is refused. It
// stops a consumer, unless all settings come from a standby, which may be promoted, or from an old
// primary that was replaced by another server: the next connection may reach that server.
type UnsafeSettingsError = pglink.UnsafeSettingsError

// An UnsafeSetting is a refused setting: its Name, its Value, and the value that it Needs. The name
// "timeline" stands for an old primary.
type UnsafeSetting = pglink.UnsafeSetting

// writeFailed returns the error of a write that failed in its only statement, nil for nil. Nothing
// was written if the server refused the statement and keeps the session. Otherwise the outcome is
// unknown.
func writeFailed(err error, appends []messagestore.Append) error {
	switch {
	case err == nil:
		return nil
	case pglink.Definite(err):
		return refused(err, appends)
	}
	return unknownOutcome(pglink.Safe(err), appends)
}

// refused is failed, for a write that wrote nothing.
func refused(err error, appends []messagestore.Append) error {
	if err = failed(err); pglink.IsLockTimeout(err) && len(appends) > 0 {
		return lockHint(err, appends)
	}
	return err
}

// lockHint adds which writes waited for a lock. Most often the holder is the caller's own
// transaction, and the write goes through a store over the pool instead of over that transaction.
func lockHint(err error, appends []messagestore.Append) error {
	return pglink.WithHint(err, fmt.Sprintf("another transaction held the writes of category %s for too long (10 s, or the session's lock_timeout), and nothing was written; "+
		"if it is your own, write with a store over it (postgres.New(tx, nil)); else dibs doctor names it", appends[0].Stream.Category()))
}

func unknownOutcome(cause error, appends []messagestore.Append) error {
	return &messagestore.OutcomeUnknownError{Writes: appends, Cause: cause}
}

// failed returns err so that callers can match it and a log may show it.
func failed(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && e.Code == "DB002":
		return fmt.Errorf("%w: whether it had been written to is no longer known", messagestore.ErrDeleted)
	case ok && e.Code == "DB001":
		return messagestore.NewInvalidError(strings.TrimPrefix(e.Message, "invalid "), nil, "the database refused it")
	case ok && e.Code == "DB004":
		return queuing.ErrRemoved
	case ok && e.Code == "DB005":
		return queuing.ErrTooManyQueues
	}
	return matched(pglink.Failed(err))
}

// matched makes an error of package pglink match its counterpart in package messagestore.
func matched(err error) error {
	for _, same := range []struct{ ours, kind error }{
		{pglink.ErrNotPgx, messagestore.ErrNotSupported},
		{pglink.ErrClosed, messagestore.ErrClosed},
		{pglink.ErrDenied, messagestore.ErrNotPermitted},
	} {
		if errors.Is(err, same.ours) && !errors.Is(err, same.kind) {
			return &matchedError{err, same.kind}
		}
	}
	return err
}

type matchedError struct{ err, kind error }

func (e *matchedError) Error() string   { return e.err.Error() }
func (e *matchedError) Unwrap() []error { return []error{e.err, e.kind} }
