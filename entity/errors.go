package entity

import (
	"fmt"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
)

// A TrimmedError is the error for a stream if its first messages were removed: the rest does not
// show the entity's state. A snapshot at the message right before First, or a later one, would.
type TrimmedError struct {
	Stream messagestore.StreamName
	First  messagestore.Version // the position of the first remaining message
}

// Error names the position.
func (e *TrimmedError) Error() string {
	return fmt.Sprintf("the entity's stream was trimmed: it begins at position %d, and no snapshot has the messages before", e.First)
}

// Unwrap makes a consumer park the message that needed the entity: a retry would not bring the
// messages back.
func (e *TrimmedError) Unwrap() error { return calling.Parked }

// A DeletedError is the error for a deleted stream, which only has a tombstone. To begin the entity
// again on purpose, write at Version: it is then folded from the messages after the tombstone.
type DeletedError struct {
	Stream  messagestore.StreamName
	Version messagestore.Version // of the stream, and the tombstone's position
}

// Error names the version.
func (e *DeletedError) Error() string {
	return fmt.Sprintf("the entity was deleted: its stream is a tombstone at position %d", e.Version)
}

// Unwrap makes a consumer park the message that needed the entity: a retry would not bring the
// entity back.
func (e *DeletedError) Unwrap() error { return calling.Parked }

// A decodeError says why the data of a message does not fit the Go type of its function.
type decodeError struct {
	goType string
	cause  error
}

func (e *decodeError) Error() string { return fmt.Sprintf("decode into %s: %v", e.goType, e.cause) }

// Unwrap returns the cause, and an error that keeps a consumer from retrying the message that it
// was handling.
func (e *decodeError) Unwrap() []error { return []error{e.cause, calling.Refused} }
