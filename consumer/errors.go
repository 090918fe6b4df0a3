package consumer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// Reasons why a consumer stops, to match with [errors.Is].
var (
	// ErrRunning is returned by Run and CatchUp while the same Consumer runs, or while a
	// handler of an earlier run has not returned.
	ErrRunning = errors.New("the consumer is running")

	// ErrPaused is returned by CatchUp for a consumer that an operator has paused. Run does not
	// return it: it waits until the consumer is resumed.
	ErrPaused = checkpoint.ErrPaused

	// ErrConsumerFenced ends a CatchUp without a lease (it was alone when it started) after another
	// process has gone on from its last checkpoint. It is also the error if the stream of
	// checkpoints was deleted. If a consumer's lease was over, or an operator has reset the
	// consumer, it starts over instead, and Run goes on.
	ErrConsumerFenced = checkpoint.ErrFenced

	// ErrPositionAhead says that the store was rolled back, by a failover or a restore: the
	// checkpoint is beyond the end of the category, the message before it is not the one that was
	// read there, or a checkpoint of this process is gone. Find out which messages were lost.
	//
	// If you start the consumer again, it goes on from the store's checkpoint, provided that the
	// message before it is the same as was read there. Otherwise the error comes again: reset the
	// consumer.
	ErrPositionAhead = checkpoint.ErrAhead

	// ErrPositionCorrupt says that a message in the stream of checkpoints is not one.
	ErrPositionCorrupt = checkpoint.ErrCorrupt
)

// A MessageError names the message at which a consumer stopped.
type MessageError struct {
	ID             uuid.UUID
	Type           string
	Stream         messagestore.StreamName
	Position       messagestore.Version
	GlobalPosition messagestore.GlobalPosition
	Attempts       int   // how often it was delivered in this run
	Err            error // the last failure
}

func newMessageError(it *item, err error) *MessageError {
	m := it.Value.message
	return &MessageError{m.ID, m.Type, m.Stream, m.Position, m.GlobalPosition, it.Value.attempts, err}
}

// Error names the message and its last failure.
func (e *MessageError) Error() string {
	times := "once"
	if e.Attempts != 1 {
		times = fmt.Sprintf("%d times", e.Attempts)
	}
	return fmt.Sprintf("handle %s %s@%d, tried %s: %s", e.Type, e.Stream, e.Position, times, text.Of(e.Err))
}

// Unwrap returns the last failure.
func (e *MessageError) Unwrap() error { return e.Err }

// A GraceExceededError says that handlers went on after their context was cancelled. Only their
// goroutines may outlive Run. The next run redelivers the messages.
type GraceExceededError struct {
	Grace    time.Duration
	Messages []string // from [messagestore.Message.String]
}

// Error names the messages.
func (e *GraceExceededError) Error() string {
	return fmt.Sprintf("grace of %v exceeded: the handler goes on with %s", e.Grace, strings.Join(e.Messages, ", "))
}

// denied is the SQLSTATE of a right that the user lacks.
const denied = "42501"

// sqlState returns the SQLSTATE of a database error, or "". The errors of pgx and of other drivers
// have the method.
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// lasts reports whether an error stays until an operator acts, by its own type or by its SQLSTATE.
// The methods of a handler's error are the handler's code: if one panics, the error does not last.
func lasts(err error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, calling.ErrLasting) || errors.Is(err, messagestore.ErrClosed) || errors.Is(err, messagestore.ErrNotPermitted) || sqlState(err) == denied
}

// refused reports whether a database has answered a consumer's first call with an error caused by a
// wrong setting: a user, a password or a database that does not exist. An answer about the server's
// state does not count, and neither does a server that did not answer.
func refused(err error) bool {
	state := sqlState(err)
	if state == "" {
		return false
	}
	for _, class := range []string{"08", "25", "40", "53", "55", "57", "58", "XX"} {
		if strings.HasPrefix(state, class) {
			return false
		}
	}
	return true
}

// heals reports whether an error of the store may be gone at the next attempt.
func heals(err error) bool {
	for _, lasting := range []error{
		ErrConsumerFenced, ErrPositionAhead, ErrPositionCorrupt, checkpoint.ErrEpoch,
		messagestore.ErrInvalid, messagestore.ErrNotSupported, messagestore.ErrIDConflict,
	} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	return !lasts(err)
}
