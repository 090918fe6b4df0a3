package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	errortext "github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// Failures of this driver, for [errors.Is].
var (
	// ErrBusy is returned when a call waited too long for another connection to finish. Nothing was
	// written.
	ErrBusy = errors.New("the SQLite database is busy")

	// ErrNotAStore is returned when the file to open is not a database, or is a database of another
	// application.
	ErrNotAStore = errors.New("not a message store")

	// ErrNewerSchema is returned when a newer version of this package wrote the file to open.
	ErrNewerSchema error = calling.LastingError("the schema is newer than this program")

	// ErrNoSchema is returned when the database of a caller's transaction does not have the tables:
	// see [Schema].
	ErrNoSchema error = calling.LastingError("the message store's tables are not in this database: create them with sqlite.Schema")
)

// An openError names the file that could not be opened, the cause and the remedy.
type openError struct {
	path  string
	rule  string // the cause in words, and the remedy
	cause error  // of SQLite or the operating system; may be nil
}

// Error returns "open /var/lib/app: it is a directory: ...", in one line.
func (e *openError) Error() string {
	said := fmt.Sprintf("open %q: %s", errortext.Shorten(e.path), e.rule)
	if e.cause == nil {
		return said
	}
	cause := e.cause
	if of, ok := errors.AsType[*fs.PathError](cause); ok && len(of.Path) > errortext.Max {
		cause = of.Err // the path is in the text already
	}
	return said + ": " + errortext.Of(cause)
}

// Unwrap returns the cause.
func (e *openError) Unwrap() error { return e.cause }

// A busyError says how long a call waited for another connection, perhaps of another process, to
// finish its transaction.
type busyError struct {
	waited time.Duration
	cause  error
}

// Error also names the remedy if a transaction was begun the wrong way.
func (e *busyError) Error() string {
	if code(e.cause) == codeBusySnapshot {
		return fmt.Sprintf("%v: the transaction has read what another has changed since: begin it with BEGIN IMMEDIATE", ErrBusy)
	}
	return fmt.Sprintf("%v: another connection held it for %v", ErrBusy, e.waited.Round(time.Millisecond))
}

// Is reports whether target is [ErrBusy].
func (e *busyError) Is(target error) bool { return target == ErrBusy }

// Unwrap returns SQLite's error.
func (e *busyError) Unwrap() error { return e.cause }

// SQLite's result codes (https://www.sqlite.org/rescode.html), the same in every
// driver for it.
const (
	codePerm         = 3
	codeBusy         = 5
	codeLocked       = 6
	codeNoMemory     = 7
	codeReadOnly     = 8
	codeInterrupt    = 9
	codeIO           = 10
	codeCorrupt      = 11
	codeFull         = 13
	codeCantOpen     = 14
	codeProtocol     = 15
	codeNotADB       = 26
	codeBusySnapshot = codeBusy | 2<<8
)

// code returns the extended result code in err, or 0.
func code(err error) int {
	coded, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	if !ok {
		return 0
	}
	return coded.Code()
}

func primary(err error) int { return code(err) & 0xFF }

// isBusy reports whether the statement may be tried again: it found a lock and did nothing.
func isBusy(err error) bool {
	switch primary(err) {
	case codeBusy, codeLocked, codeProtocol:
		return true
	}
	return false
}

// mayEndTransaction reports whether SQLite may have rolled back the whole transaction because of
// err (https://www.sqlite.org/lang_transaction.html, "Response To Errors").
func mayEndTransaction(err error) bool {
	switch primary(err) {
	case codeNoMemory, codeInterrupt, codeIO, codeFull:
		return true
	}
	return false
}

// explain returns the error as a caller should see it.
func explain(err error) error {
	if c := primary(err); c == codeReadOnly || c == codePerm {
		return fmt.Errorf("%w: %w: check the rights of the file and of its folder", messagestore.ErrNotPermitted, err)
	}
	if err != nil && primary(err) <= 1 && strings.Contains(err.Error(), "no such table: dibs_") {
		return fmt.Errorf("%w (%w)", ErrNoSchema, err)
	}
	return err
}

// isAnswer reports whether err is an outcome that the driver promises, such as a conflict, after
// which the transaction is unchanged.
func isAnswer(err error) bool {
	return err == nil || errors.Is(err, messagestore.ErrVersionConflict) || errors.Is(err, messagestore.ErrIDConflict)
}

// ended makes the error of an ended transaction match [messagestore.ErrClosed]. A prepared
// statement has another error then, which database/sql does not export, so ended compares its text.
func ended(err error) error {
	switch {
	case err == nil:
		return nil
	case err.Error() == "sql: statement is closed":
		err = sql.ErrTxDone
	case !errors.Is(err, sql.ErrTxDone):
		return err
	}
	return fmt.Errorf("%w: %w", messagestore.ErrClosed, err)
}
