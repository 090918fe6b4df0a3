package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/messagestore"
)

// ErrNotMigrated is matched by the error of a call on a database that does not have
// the schema, or only an older one. See [SchemaVersionError] and package migrations.
var ErrNotMigrated error = lastingError("the schema is not there, or not up to date: run dibs migrate up")

// A lastingError does not go away when what failed is tried again; a consumer stops
// at one.
type lastingError string

func (e lastingError) Error() string { return string(e) }

// Permanent says so.
func (lastingError) Permanent() bool { return true }

// writeFailed says what an error means for a write that was one statement: nothing
// was written if the server says so while it goes on, and otherwise nobody knows.
func (d *Driver) writeFailed(err error, appends []messagestore.Append) error {
	if definite(err) {
		return d.failed(err)
	}
	return unknownOutcome(safe(err), appends)
}

func unknownOutcome(cause error, appends []messagestore.Append) error {
	unknown := &messagestore.OutcomeUnknownError{Cause: cause}
	for _, a := range appends {
		w := messagestore.UnknownWrite{Stream: a.Stream, IDs: make([]uuid.UUID, len(a.Records))}
		for i, r := range a.Records {
			w.IDs[i] = r.ID
		}
		unknown.Writes = append(unknown.Writes, w)
	}
	return unknown
}

// definite reports whether the server has refused a statement and rolled it back.
// An error that ends the session may come after the commit: 57P01, for one, while
// it waits for a standby.
func definite(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.SeverityUnlocalized != "ERROR" {
		return false
	}
	switch {
	case strings.HasPrefix(e.Code, "08"), strings.HasPrefix(e.Code, "57P"), e.Code == "25P03":
		return false
	}
	return true
}

// retryable reports whether a statement that was refused may do better next time.
func retryable(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "40001" || e.Code == "40P01") && !errors.Is(err, messagestore.ErrOutcomeUnknown)
}

// isLockTimeout reports whether a statement was refused since somebody else did not let
// go of a lock.
func isLockTimeout(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "55P03" && definite(err)
}

// isCancelled reports whether a statement was ended before it was through: its time was
// over, or somebody has cancelled it.
func isCancelled(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "57014" && definite(err)
}

// isUniqueViolation reports whether a statement was refused for what is there already.
func isUniqueViolation(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "23505" && definite(err)
}

// What the server says of a schema, a function and a table that is not there.
var noSchema = []string{"3F000", "42883", "42P01"}

// denied is the SQLSTATE of a call for which the user lacks the right.
const denied = "42501"

// readOnly is what it says of a write to a standby, and in a transaction that only
// reads.
const readOnly = "25006"

// failed makes an error one that callers can match and show.
func (d *Driver) failed(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return safe(err)
	}
	switch {
	case slices.Contains(noSchema, e.Code):
		return fmt.Errorf("%w: %w", ErrNotMigrated, safe(err))
	case e.Code == "DB002":
		return fmt.Errorf("%w, so what was written to it is not known any more", messagestore.ErrDeleted)
	case e.Code == "DB001":
		return messagestore.NewInvalidError(kinds[e.ColumnName], strings.TrimPrefix(e.Message, "invalid "), nil, "the database refuses it")
	}
	return safe(err)
}

// kinds are what the parameters of the functions are called here.
var kinds = map[string]error{
	"streams":       messagestore.ErrInvalidStreamName,
	"expected":      messagestore.ErrInvalidExpectedVersion,
	"counts":        messagestore.ErrInvalidBatch,
	"ids":           messagestore.ErrInvalidID,
	"types":         messagestore.ErrInvalidType,
	"data":          messagestore.ErrInvalidData,
	"metadata":      messagestore.ErrInvalidMetadata,
	"from_position": messagestore.ErrInvalidPosition,
	"max_messages":  messagestore.ErrInvalidLimit,
	"group_member":  messagestore.ErrInvalidGroup,
	"by":            messagestore.ErrInvalidReport,
	"sort":          messagestore.ErrInvalidReport,
	"max_rows":      messagestore.ErrInvalidLimit,
	"stream":        messagestore.ErrInvalidStreamName,
	"keep":          ErrInvalidRemoval,
	"min_age":       ErrInvalidRemoval,
	"reason":        ErrInvalidRemoval,
	"dry_run":       ErrInvalidRemoval,
	"id":            messagestore.ErrInvalidID,
}

// safe returns err without what a log must not have: the values of rows, which a
// server puts into the details of an error, and the password, which pgx keeps in
// the errors of a connection that could not be made.
func safe(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return &pgconn.PgError{
			Severity: e.Severity, SeverityUnlocalized: e.SeverityUnlocalized, Code: e.Code, Message: e.Message,
			SchemaName: e.SchemaName, TableName: e.TableName, ColumnName: e.ColumnName, ConstraintName: e.ConstraintName,
		}
	}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return errInvalidURL
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
