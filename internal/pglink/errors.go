package pglink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/calling"
)

// Failures, for [errors.Is]. Nothing was read or written.
var (
	// ErrNotMigrated is returned when the database does not have the schema, or has an older one.
	// See [SchemaVersionError].
	ErrNotMigrated error = calling.LastingError("the schema is not there, or not up to date: run dibs migrate up")

	// ErrSchemaTooNew is returned when the database's schema is too new for this release. See
	// [SchemaVersionError].
	ErrSchemaTooNew error = calling.LastingError("the schema is too new for this release of the library: upgrade the library")

	// ErrAdopting is returned while the messages are in message-db's table: before an adoption has
	// switched to Dibs's table, and after its undo.
	ErrAdopting error = calling.LastingError("message-db's messages are not adopted yet: see dibs migrate status")

	// ErrUnsafeSettings is returned when the server might lose or change acknowledged writes. See
	// [UnsafeSettingsError].
	ErrUnsafeSettings = errors.New("unsafe server settings")

	// ErrClosed is returned when the pool, the connection or the *sql.DB was closed, or the
	// transaction has ended.
	ErrClosed = errors.New("the database handle is closed")

	// ErrDenied is returned when the user lacks the right to a call.
	ErrDenied = errors.New("not permitted")

	// ErrInvalidURL is returned for an invalid URL. It does not show the URL, which may hold a
	// password.
	ErrInvalidURL = errors.New("must be a URL for PostgreSQL, like postgres://user@host:5432/database")
)

// SQLSTATEs that are used in several places.
const (
	Denied           = "42501" // the user lacks the right
	readOnly         = "25006" // a write on a standby, or in a read-only transaction
	lockNotAvailable = "55P03"
	queryCanceled    = "57014"
)

// noSchema are the SQLSTATEs for a schema, a function and a table that do not exist.
var noSchema = []string{"3F000", "42883", "42P01"}

// code returns the SQLSTATE of err, or "" if err is not from the server.
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// Definite reports whether the server has refused a statement and rolled it back. It returns false
// for an error that ends the session, because that may come after the commit: for example 57P01,
// while the server waits for a standby.
func Definite(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.SeverityUnlocalized != "ERROR" {
		return false
	}
	return !strings.HasPrefix(e.Code, "08") && !strings.HasPrefix(e.Code, "57P") && e.Code != "25P03"
}

// Retryable reports whether the server rolled back a transaction because of another one, by a
// serialization failure or a deadlock.
func Retryable(err error) bool {
	return (code(err) == "40001" || code(err) == "40P01") && Definite(err)
}

// Stale reports whether a prepared statement is unusable: the server has dropped it, after DISCARD,
// or its result has changed, after a migration.
func Stale(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && Definite(err) && (e.Code == "26000" || e.Code == "0A000" && e.Routine == "RevalidateCachedQuery")
}

// IsLockTimeout reports whether a statement failed because a lock was not released in time.
func IsLockTimeout(err error) bool { return code(err) == lockNotAvailable && Definite(err) }

// IsCancelled reports whether a statement was ended early, by a timeout or by a request to
// cancel it.
func IsCancelled(err error) bool { return code(err) == queryCanceled && Definite(err) }

// IsUnsupported reports whether the server does not support a statement, for example a removal of
// messages above READ COMMITTED.
func IsUnsupported(err error) bool { return code(err) == "0A000" && Definite(err) }

// IsUniqueViolation reports whether a statement failed because a row exists already.
func IsUniqueViolation(err error) bool { return code(err) == "23505" && Definite(err) }

// Failed returns err so that callers can match it and a log may show it. A missing schema matches
// [ErrNotMigrated], a missing right [ErrDenied], and a closed handle [ErrClosed]. If the server's
// text does not suggest a remedy, Failed adds it.
func Failed(err error) error {
	if _, explained := errors.AsType[*explainedError](err); explained || err == nil {
		return err
	}
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, pgx.ErrTxCommitRollback) {
		return closedError(err)
	}
	c := code(err)
	if slices.Contains(noSchema, c) {
		return fmt.Errorf("%w: %w", ErrNotMigrated, Safe(err))
	}
	e := &explainedError{cause: Safe(err)}
	switch c {
	case Denied:
		e.kind, e.hint = ErrDenied, "grant "+roleFor(err)+" to the user of this connection"
	case lockNotAvailable:
		e.hint = "another transaction held a lock for too long, and nothing was done: dibs doctor names it"
	case queryCanceled:
		e.hint = "the server cancelled it and rolled it back, for the statement_timeout of this user or database, or because somebody asked it to"
	case readOnly:
		e.hint = "the server or this transaction is read-only: it is a standby, or default_transaction_read_only is on for this user or database"
	default:
		return e.cause
	}
	return e
}

// An explainedError is an error of the server with the next step to take.
type explainedError struct {
	kind  error // a sentinel, or nil
	cause error
	hint  string
}

func (e *explainedError) Error() string {
	if e.kind != nil {
		return fmt.Sprintf("%v: %v: %s", e.kind, e.cause, e.hint)
	}
	return fmt.Sprintf("%v: %s", e.cause, e.hint)
}

func (e *explainedError) Unwrap() []error {
	if e.kind != nil {
		return []error{e.kind, e.cause}
	}
	return []error{e.cause}
}

// Explained reports whether err names the next step.
func Explained(err error) bool {
	_, explained := errors.AsType[*explainedError](err)
	return explained
}

// WithHint returns err, which [Failed] has explained, with another next step.
func WithHint(err error, hint string) error {
	if e, ok := errors.AsType[*explainedError](err); ok {
		return &explainedError{kind: e.kind, cause: e.cause, hint: hint}
	}
	return err
}

// roles are the roles of the migrations, with the functions that each may call and readers may not.
// If several roles may call a function, it is listed for the role that it is meant for.
var roles = []struct {
	name      string
	functions []string
}{
	{"dibs_writer", []string{
		"append", "append_one", "append_each", "append_several", "append_shared", "find_messages", "ring", "stage", "trim_checkpoints",
	}},
	{"dibs_worker", []string{"queue_take", "queue_ready", "queue_extend", "queue_leave", "queue_finish", "queue_park"}},
	{"dibs_operator", []string{"queue_change"}},
	{"dibs_admin", []string{
		"trim", "delete_stream", "forget", "queue_remove", "raise_epoch", "category_streams", "verify_category", "verify_queues", "verify_store", "verify_table",
	}},
}

// roleFor returns the role that has the missing right. It takes the last word of the server's text
// as the object, in every language that puts names last.
func roleFor(err error) string {
	e, _ := errors.AsType[*pgconn.PgError](err)
	for _, role := range roles {
		for _, f := range role.functions {
			if strings.HasSuffix(e.Message, " "+f) {
				return role.name
			}
		}
	}
	return "dibs_reader to read, dibs_writer to write, dibs_worker to work on queues, or dibs_admin to trim, delete and verify,"
}

// closedError makes the error of a closed handle match [ErrClosed].
func closedError(cause error) error { return fmt.Errorf("%w: %w", ErrClosed, cause) }

// exhausted explains the error of a call when its context ended while it waited for a connection.
// Most often the caller's own transaction holds it.
func exhausted(err error, used, most int, advice string) error {
	if most == 0 || used < most || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: all connections of the pool are in use (%d of %d); if a transaction of yours has one, %s", err, used, most, advice)
}

// Advice for a caller when its own transaction holds the connection that a call needs.
const (
	adviceOfPool = "use a store over it (postgres.New(tx, nil)), or give the pool more"
	adviceOfSQL  = "end it first, write in it by Transact, or give the *sql.DB more (SetMaxOpenConns)"
)

// taken explains the error of a call when its context ended while it waited for the connection, or
// the transaction, of l.
func (l *Link) taken(err error) error {
	if l.tx {
		return fmt.Errorf("%w: another call has the transaction", err)
	}
	return fmt.Errorf("%w: another call has the connection; if it is a Transact of yours, use a store over its transaction "+
		"(postgres.New(tx, nil)), or a pool of more connections", err)
}

// AcquireFailed explains the error of a pool or a *sql.DB that returned no connection. It compares
// texts, because the packages do not export the errors of a closed pool.
func AcquireFailed(err error) error {
	if text := err.Error(); text == "closed pool" || text == "sql: database is closed" {
		return closedError(err)
	}
	return fmt.Errorf("acquire a connection: %w", Safe(err))
}

// Safe returns err without secrets that must not be logged: values of rows, which a server puts
// into the details of an error, and the password, which pgx keeps in the error of a failed
// connection.
func Safe(err error) error {
	if Explained(err) {
		return err
	}
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
