package messagestore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Answers and failures of a store, to match with [errors.Is].
var (
	// ErrVersionConflict is matched by the error of a write whose stream is not
	// at the version the write expects: another writer was first. Nothing was
	// written. See [VersionConflictError].
	ErrVersionConflict = errors.New("version conflict")

	// ErrIDConflict is matched by the error of a write with the id of a message
	// that is recorded already, with other content or elsewhere. Nothing was
	// written. See [IDConflictError].
	ErrIDConflict = errors.New("message id conflict")

	// ErrOutcomeUnknown is matched by the error of a write that may or may not
	// have happened: the connection was lost, or the context ended, after it was
	// sent and before it was answered. [Store.Resolve] finds out, and writing the
	// same messages with the same ids again is safe. See [OutcomeUnknownError].
	ErrOutcomeUnknown = errors.New("outcome unknown")

	// ErrNotWritten is returned by [Store.Resolve] for a write of unknown outcome
	// that turns out not to have happened, and never will.
	ErrNotWritten = errors.New("not written")

	// ErrDeleted is matched by the error of [Store.Resolve] for a write to a stream that was
	// deleted since: whether it happened is no longer known. To write the same messages again,
	// at the version expected then, is safe.
	ErrDeleted = errors.New("the stream was deleted")

	// ErrNotFound is returned by [Store.Last] if there is no such message.
	ErrNotFound = errors.New("no such message")

	// ErrClosed is matched by the error of a call on a store whose database handle was closed: by
	// [Store.Close], or by its owner, as by Close of a pool, or by the end of a transaction. It
	// stays so. Nothing was written, unless the error matches [ErrOutcomeUnknown] too: then an
	// earlier attempt of the call may have written.
	ErrClosed = errors.New("the store is closed")

	// ErrNotPermitted is matched by the error of a call to which the database's user has no
	// right. Nothing was read or written. It stays so until an operator grants the right, and the
	// error names the role to grant.
	ErrNotPermitted = errors.New("not permitted")

	// ErrNotSupported is matched by the error of a call that a store's driver cannot do.
	ErrNotSupported = errors.New("not supported by this driver")
)

// ErrInvalid is matched by the error of input that is refused before any round trip. It
// comes as an [*InvalidError], whose Field tells which input it is.
var ErrInvalid = errors.New("invalid")

// An InvalidError says which input was refused, and by which rule. Nothing was sent or
// written.
type InvalidError struct {
	Field string // which input: "stream name", "data"
	Rule  string // the rule that it breaks, in words
	Value string // the value, shortened and quoted
	Index int    // the message of a batch, from 0, or -1

	// Kind is a sentinel of the package that refused, which the error matches besides
	// ErrInvalid. Nil is none.
	Kind error
}

// NewInvalidError returns an error that matches [ErrInvalid], with which a driver, or a package
// over a store, refuses its own input. The value is kept shortened and quoted; an int, an int64
// and a bool as they are, and nil as nothing.
func NewInvalidError(field string, value any, rule string) *InvalidError {
	return &InvalidError{Field: field, Rule: rule, Value: quote(value), Index: -1}
}

// Error returns "invalid stream name "cat-": the identifier is empty".
func (e *InvalidError) Error() string { return e.text(e.Value) }

// WithoutValue returns the text of Error without the value, which may be a part of a message's
// content: "invalid stream name: the identifier is empty". The library's loggers get this one.
func (e *InvalidError) WithoutValue() string { return e.text("") }

func (e *InvalidError) text(value string) string {
	var b strings.Builder
	b.WriteString("invalid ")
	if e.Index >= 0 {
		fmt.Fprintf(&b, "message %d: ", e.Index)
	}
	b.WriteString(e.Field)
	if value != "" {
		b.WriteString(" " + value)
	}
	return b.String() + ": " + e.Rule
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the sentinel of the package that refused, or nil.
func (e *InvalidError) Unwrap() error { return e.Kind }

// at returns err with the index of the message that it speaks of.
func at(index int, err error) error {
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		located := *invalid
		located.Index = index
		return &located
	}
	return fmt.Errorf("message %d: %w", index, err)
}

// quote returns value as one short line: an error is read by a person and must
// not carry a payload or break a log.
func quote(value any) string {
	const most = 48
	var s string
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		s = v
	case []byte:
		s = string(v)
	case json.RawMessage:
		s = string(v)
	case int, int64, bool:
		return fmt.Sprint(v)
	default:
		s = fmt.Sprint(v)
	}
	if len(s) <= most {
		return strconv.QuoteToGraphic(s)
	}
	cut := most
	for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.QuoteToGraphic(s[:cut]), len(s))
}

// A VersionConflictError has the version that a refused write expected, and the version that it
// found. Another writer was first: read the stream again and decide again.
type VersionConflictError struct {
	Stream   StreamName
	Expected Version

	// Actual is the version the stream was at. In a PostgreSQL transaction at
	// REPEATABLE READ or above, whose snapshot cannot see the other writer's
	// messages, it is the least that the version can be. It is Expected where
	// another message is there than StreamWrite.After names.
	Actual Version
}

// Error names the versions; the store puts the stream in front.
func (e *VersionConflictError) Error() string {
	if e.Expected == e.Actual {
		return fmt.Sprintf("version conflict: another message than the one expected is at %v", e.Actual)
	}
	text := fmt.Sprintf("version conflict: expected %v, found %v", e.Expected, e.Actual)
	if e.Expected == 0 && e.Actual == NoStream {
		text += " (version 0 expects one message: is NoStream meant, or AnyVersion?)"
	}
	if is, within := e.Expected.Exists(e.Actual); is && within && e.Actual != NoStream {
		text += " (the stream was deleted)"
	}
	return text
}

// Is reports whether target is [ErrVersionConflict].
func (e *VersionConflictError) Is(target error) bool { return target == ErrVersionConflict }

// An IDConflictError says where the message is that has the id already.
type IDConflictError struct {
	ID     uuid.UUID
	Stream StreamName // that holds the id
	// Position is the recorded message's.
	Position Version
}

// Error names the id and the message that has it.
func (e *IDConflictError) Error() string {
	return fmt.Sprintf("message id conflict: %s is recorded with other content or elsewhere, as %s@%d", e.ID, quote(string(e.Stream)), e.Position)
}

// Is reports whether target is [ErrIDConflict].
func (e *IDConflictError) Is(target error) bool { return target == ErrIDConflict }

// An OutcomeUnknownError carries the ids by which to find out whether a write happened. Give it
// to [Store.Resolve], or write the same messages again.
type OutcomeUnknownError struct {
	// Writes are what was sent, one for each stream; the store fills them in. Another process needs
	// no more of them than the streams and the ids.
	Writes []Append

	Cause error // the failure after the write was sent
}

// Error names the cause.
func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("outcome unknown: %v", e.Cause)
}

// Is reports whether target is [ErrOutcomeUnknown].
func (e *OutcomeUnknownError) Is(target error) bool { return target == ErrOutcomeUnknown }

// Unwrap returns the cause.
func (e *OutcomeUnknownError) Unwrap() error { return e.Cause }
