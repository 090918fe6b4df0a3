package entity

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/messagestore"
)

// Why an entity cannot be loaded although its stream can be read, to match with
// [errors.Is].
var (
	// ErrTrimmed is matched by the error for a stream whose first messages were removed:
	// what is left does not say what the entity is. See [TrimmedError].
	ErrTrimmed = errors.New("the entity's stream was trimmed")

	// ErrDeleted is matched by the error for a stream that was deleted. See
	// [DeletedError].
	ErrDeleted = errors.New("the entity was deleted")
)

// A TrimmedError says from where on a stream is there. A snapshot would help that was
// taken right before that, or later.
type TrimmedError struct {
	Stream messagestore.StreamName
	First  messagestore.Version // the position of the first message that is left
}

// Error names the position.
func (e *TrimmedError) Error() string {
	return fmt.Sprintf("%v: it begins at position %d, and no snapshot has what was before", ErrTrimmed, e.First)
}

// Is reports whether target is [ErrTrimmed].
func (e *TrimmedError) Is(target error) bool { return target == ErrTrimmed }

// A DeletedError says that nothing is left of an entity but a tombstone. To begin it
// anew on purpose, write at Version: the entity is then what comes after the tombstone.
type DeletedError struct {
	Stream  messagestore.StreamName
	Version messagestore.Version // of the stream, and the tombstone's position
}

// Error names the version.
func (e *DeletedError) Error() string {
	return fmt.Sprintf("%v: its stream is a tombstone at position %d", ErrDeleted, e.Version)
}

// Is reports whether target is [ErrDeleted].
func (e *DeletedError) Is(target error) bool { return target == ErrDeleted }

// Park tells a consumer to park the message that needed the entity, whatever its
// policy: to try again would not bring the entity back.
func (e *DeletedError) Park() bool { return true }
