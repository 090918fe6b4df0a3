package entity

import (
	"fmt"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/messagestore"
)

// A TrimmedError is the error for a stream whose first messages were removed: the rest does
// not show the entity's state. A snapshot from the message right before First, or a later
// one, would.
type TrimmedError struct {
	Stream messagestore.StreamName
	First  messagestore.Version // the position of the first message that is left
}

// Error names the position.
func (e *TrimmedError) Error() string {
	return fmt.Sprintf("the entity's stream was trimmed: it begins at position %d, and no snapshot has the messages before", e.First)
}

// Unwrap has a consumer park the message that needed the entity: a retry would not bring the
// messages back.
func (e *TrimmedError) Unwrap() error { return failure.Parked }

// A DeletedError is the error for a stream that was deleted: it holds a tombstone and no
// more. To begin the entity anew on purpose, write at Version: it is then folded from the
// messages after the tombstone.
type DeletedError struct {
	Stream  messagestore.StreamName
	Version messagestore.Version // of the stream, and the tombstone's position
}

// Error names the version.
func (e *DeletedError) Error() string {
	return fmt.Sprintf("the entity was deleted: its stream is a tombstone at position %d", e.Version)
}

// Unwrap has a consumer park the message that needed the entity: a retry would not bring the
// entity back.
func (e *DeletedError) Unwrap() error { return failure.Parked }

// A decodeError says why the data of a message does not fit the Go type of its function.
type decodeError struct {
	goType string
	cause  error
}

func (e *decodeError) Error() string { return fmt.Sprintf("decode into %s: %v", e.goType, e.cause) }

// Unwrap returns the cause, and that a consumer does not retry the message that it was handling.
func (e *decodeError) Unwrap() []error { return []error{e.cause, failure.Refused} }
