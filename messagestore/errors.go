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

// Answers and failures of a store, for [errors.Is].
var (
	// ErrVersionConflict is returned when a stream is not at the version that a write expects:
	// another writer was first. Nothing was written. See [VersionConflictError].
	ErrVersionConflict = errors.New("version conflict")

	// ErrIDConflict is returned when a message's id is recorded already, with other content or
	// elsewhere. Nothing was written. See [IDConflictError].
	ErrIDConflict = errors.New("message id conflict")

	// ErrOutcomeUnknown is returned when a write may or may not have happened: the connection was
	// lost, or the context ended, after the write was sent and before the answer came.
	// [Store.Resolve] finds out, and writing the same messages with the same ids again is safe. See
	// [OutcomeUnknownError].
	ErrOutcomeUnknown = errors.New("outcome unknown")

	// ErrNotWritten is returned by [Store.Resolve] when a write of unknown outcome has not happened
	// and never will.
	ErrNotWritten = errors.New("not written")

	// ErrDeleted is returned by [Store.Resolve] when the stream of the write was deleted since:
	// nobody knows whether the write happened. It is safe to write the same messages again with the
	// same expected version.
	ErrDeleted = errors.New("the stream was deleted")

	// ErrNotFound is returned by [Store.Last] when the message does not exist.
	ErrNotFound = errors.New("no such message")

	// ErrClosed is returned when the store's database handle was closed: by [Store.Close], by its
	// owner (Close of a pool) or by the end of a transaction. Every later call returns it too.
	// Nothing was written, unless the error also matches [ErrOutcomeUnknown]: then an earlier
	// attempt of the call may have written.
	ErrClosed = errors.New("the store is closed")

	// ErrNotPermitted is returned when the database's user lacks the right to a call. Nothing was
	// read or written. It stays so until an operator grants the right; the error names the role to
	// grant.
	ErrNotPermitted = errors.New("not permitted")

	// ErrNotSupported is returned when the store's driver cannot do what a call asks for.
	ErrNotSupported = errors.New("not supported by this driver")
)

// ErrInvalid is returned when input is refused before any round trip, as an [*InvalidError].
var ErrInvalid = errors.New("invalid")

// An InvalidError names the input that was refused and the rule that it breaks. Nothing was sent or
// written.
type InvalidError struct {
	Field string // which input: "stream name", "data"
	Rule  string // the rule that it breaks, in words
	Value string // the value, shortened and quoted
	Index int    // the index of the message in a batch, from 0, or -1

	// Kind is a sentinel of the package that refused; the error matches it and ErrInvalid. It may
	// be nil.
	Kind error
}

// NewInvalidError returns an error that matches [ErrInvalid], for drivers and packages over a store
// that refuse their own input. It keeps the value shortened and quoted; an int, an int64 or a bool
// unquoted; and nil as no value.
func NewInvalidError(field string, value any, rule string) *InvalidError {
	return &InvalidError{Field: field, Rule: rule, Value: quote(value), Index: -1}
}

// Error returns "invalid stream name "cat-": the identifier must not be empty".
func (e *InvalidError) Error() string { return e.text(e.Value) }

// WithoutValue returns the text of Error without the value, which may be part of a message's
// content: "invalid stream name: the identifier must not be empty". The library logs this text.
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

// at returns err with the index of the message that it is about.
func at(index int, err error) error {
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		located := *invalid
		located.Index = index
		return &located
	}
	return fmt.Errorf("message %d: %w", index, err)
}

// quote returns value as one short line, so that an error is readable, holds no payload and does
// not break a log.
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

	// Actual is the version of the stream. In a PostgreSQL transaction at REPEATABLE READ or above,
	// it is the lowest version possible, because the snapshot does not show the other writer's
	// messages. It equals Expected if another message is there than StreamWrite.After names.
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

// An IDConflictError says where the message with the id is.
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

// An OutcomeUnknownError has the ids by which [Store.Resolve] finds out whether a write happened.
// You may also write the same messages again.
type OutcomeUnknownError struct {
	// Writes are the appends that were sent, one for each stream; the store fills them in. To
	// resolve the outcome in another process, the streams and the ids are enough.
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
