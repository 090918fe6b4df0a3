package pglink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Failures to match with [errors.Is]. Nothing was read or written.
var (
	// ErrNotMigrated is matched by the error of a call on a database that has no schema,
	// or an older one. See [SchemaVersionError].
	ErrNotMigrated error = lastingError("the schema is not there, or not up to date: run dibs migrate up")

	// ErrSchemaTooNew is matched by the error of a call on a database whose schema no
	// longer works with this release. See [SchemaVersionError].
	ErrSchemaTooNew error = lastingError("the schema is too new for this release of the library: upgrade the library")

	// ErrAdopting is matched by the error of a call on a database in which message-db's
	// table is the store, because its messages are being adopted or were given back.
	ErrAdopting error = lastingError("message-db's messages are not adopted yet: see dibs migrate status")

	// ErrUnsafeSettings is matched by the error of a call on a server that might lose or change
	// acknowledged writes. See [UnsafeSettingsError].
	ErrUnsafeSettings = errors.New("unsafe server settings")

	// ErrInvalidURL does not show the URL, which may hold a password.
	ErrInvalidURL = errors.New("it is not a URL that PostgreSQL's clients know: postgres://user@host:5432/database")
)

// A lastingError stays until an operator acts. A consumer stops at one.
type lastingError string

func (e lastingError) Error() string { return string(e) }

// Permanent reports that a retry does not help.
func (lastingError) Permanent() bool { return true }

// SQLSTATEs that are looked at in more than one place.
const (
	Denied           = "42501" // the user lacks the right
	readOnly         = "25006" // a write on a standby, or in a read-only transaction
	lockNotAvailable = "55P03"
	queryCanceled    = "57014"
)

// noSchema are the SQLSTATEs for a schema, a function and a table that do not exist.
var noSchema = []string{"3F000", "42883", "42P01"}

// code returns the SQLSTATE of err, "" for an error that is not the server's.
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// Definite reports whether the server has refused a statement and rolled it back. An error
// that ends the session may come after the commit: 57P01, for one, while the server waits
// for a standby.
func Definite(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.SeverityUnlocalized != "ERROR" {
		return false
	}
	return !strings.HasPrefix(e.Code, "08") && !strings.HasPrefix(e.Code, "57P") && e.Code != "25P03"
}

// Retryable reports whether the server rolled a transaction back for the sake of another,
// by a serialization failure or a deadlock.
func Retryable(err error) bool {
	return (code(err) == "40001" || code(err) == "40P01") && Definite(err)
}

// IsLockTimeout reports whether a statement was refused because a lock was not released in
// time.
func IsLockTimeout(err error) bool { return code(err) == lockNotAvailable && Definite(err) }

// IsCancelled reports whether a statement was ended early, by a timeout or by a request to
// cancel it.
func IsCancelled(err error) bool { return code(err) == queryCanceled && Definite(err) }

// IsUniqueViolation reports whether a statement was refused because of a row that exists.
func IsUniqueViolation(err error) bool { return code(err) == "23505" && Definite(err) }

// Failed makes an error one that callers can match and a log may show. A missing schema
// matches [ErrNotMigrated].
func Failed(err error) error {
	if err != nil && slices.Contains(noSchema, code(err)) {
		return fmt.Errorf("%w: %w", ErrNotMigrated, Safe(err))
	}
	return Safe(err)
}

// Safe returns err without the secrets that a log must not have: the values of rows, which a
// server puts into the details of an error, and the password, which pgx keeps in the errors of a
// connection that could not be made.
func Safe(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return &pgconn.PgError{
			Severity: e.Severity, SeverityUnlocalized: e.SeverityUnlocalized, Code: e.Code, Message: e.Message,
			SchemaName: e.SchemaName, TableName: e.TableName, ColumnName: e.ColumnName, ConstraintName: e.ConstraintName,
		}
	}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return ErrInvalidURL
	}
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			if errors.Is(err, cause) {
				return fmt.Errorf("%s: %w", e.Error(), cause)
			}
		}
		return errors.New(e.Error())
	}
	return err
}
