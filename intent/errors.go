package intent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
)

// Failures, to match with [errors.Is].
var (
	// ErrLeaseLost is returned by a step on a lease that has ended: it was taken over, released or
	// confirmed. Nothing was written. See [LeaseLostError].
	ErrLeaseLost = errors.New("lease lost")

	// ErrGraceExceeded is returned by [Manager.Do] if the work did not stop in time after its lease
	// had ended. It may still be running.
	ErrGraceExceeded = errors.New("the work goes on without its lease")

	// ErrReleased is returned by [Manager.Do] and [Do] if the work has released its lease and
	// returned no error: its result is dropped, and nothing is confirmed.
	ErrReleased = errors.New("the work has released its lease")

	// ErrDone is returned by [Manager.ForceRelease] for a confirmed intent: nothing can release it
	// any more.
	ErrDone = errors.New("the intent is confirmed")

	// ErrResult is returned by [Result] and [Do] if a stored result does not decode into the type,
	// or was not kept ([Intent.NotKept]). The intent is still done.
	ErrResult = errors.New("the result cannot be read")

	// ErrCorrupt is returned for a stream if its last message does not belong to an intent. The
	// error names its place.
	ErrCorrupt = intentlog.ErrCorrupt
)

// Errors for invalid input. Each comes as a [*messagestore.InvalidError], which also matches
// [messagestore.ErrInvalid]. Nothing was sent.
var (
	// ErrInvalidKey is returned for a key or scope that is empty, has no visible character, or is
	// not valid UTF-8.
	ErrInvalidKey = keys.ErrInvalid

	// ErrInvalidConfig is returned for a duration that is out of its bounds.
	ErrInvalidConfig = errors.New("invalid intent configuration")
)

// A LeaseLostError describes the end of a lease.
type LeaseLostError struct {
	Stream  messagestore.StreamName
	Session string // of the lease that was lost
	Token   int64  // of the lease that was lost

	// By is the current intent: it has a new lease, a release, or a result. It is nil if only the
	// time is over, or if the store has no such intent.
	By *Intent

	cause string // if By is nil
}

// Error names the lease and its successor.
func (e *LeaseLostError) Error() string {
	cause := cmp.Or(e.cause, "the store has no such intent")
	if by := e.By; by != nil {
		switch {
		case by.Token == 0 && !by.Forgotten: // a service does not tell it to a stranger
			cause = fmt.Sprintf("another caller of the service has taken the intent, which is %v", by.Status)
		case by.Forgotten:
			cause = "the intent is done, and was deleted"
		case by.Token < e.Token || by.Token == e.Token && by.Session != e.Session:
			cause = fmt.Sprintf("there is no such lease: the last has token %d, of session %.80q", by.Token, by.Session)
		case by.Status == Done && by.Token == e.Token:
			cause = "it was confirmed"
		case by.Status == Done:
			cause = fmt.Sprintf("session %.80q confirmed with token %d", by.Session, by.Token)
		case by.Status == Free && by.Token == e.Token && by.By != "":
			cause = fmt.Sprintf("it was released by %.80q: %.80q", by.By, by.Reason)
		case by.Status == Free && by.Token == e.Token:
			cause = "it was released"
		default:
			cause = fmt.Sprintf("session %.80q took over, with token %d", by.Session, by.Token)
		}
	}
	return fmt.Sprintf("lease lost: token %d of session %.80q on %s: %s", e.Token, e.Session, e.Stream, cause)
}

// Is reports whether target is [ErrLeaseLost].
func (e *LeaseLostError) Is(target error) bool { return target == ErrLeaseLost }

// A PanicError is the value with which [Manager.Do] panics after its function has panicked. The
// function runs in a goroutine of its own, so its stack would be lost otherwise.
type PanicError struct {
	Value any    // the function's panic value
	Stack []byte // of its goroutine, from [runtime/debug.Stack]
}

// Error returns the value, and the stack below it.
func (e *PanicError) Error() string { return fmt.Sprintf("%v\n\n%s", e.Value, e.Stack) }

// Unwrap returns an error that has the stack too, and that unwraps to the value if that is an
// error.
func (e *PanicError) Unwrap() error { return (*calling.PanicError)(e) }

// A graceExceededError names work that does not stop.
type graceExceededError struct {
	Stream messagestore.StreamName
	Token  int64
	Grace  time.Duration
	Lost   error // why the lease ended
}

// Error names the intent and the grace.
func (e *graceExceededError) Error() string {
	return fmt.Sprintf("the work on %s with token %d still runs %v after the end of its lease: %v", e.Stream, e.Token, e.Grace, e.Lost)
}

// Is reports whether target is [ErrGraceExceeded].
func (e *graceExceededError) Is(target error) bool { return target == ErrGraceExceeded }

// Unwrap returns the reason why the lease ended.
func (e *graceExceededError) Unwrap() error { return e.Lost }

// A corruptStreamsError names the first corrupt streams of a category.
type corruptStreamsError struct {
	first []error
	more  int
}

const namedStreams = 10

func newCorruptStreams(all map[messagestore.StreamName]error) *corruptStreamsError {
	e := &corruptStreamsError{more: max(0, len(all)-namedStreams)}
	for _, stream := range slices.Sorted(maps.Keys(all))[:len(all)-e.more] {
		e.first = append(e.first, all[stream])
	}
	return e
}

// Error names each stream and the broken rule.
func (e *corruptStreamsError) Error() string {
	texts := make([]string, len(e.first), len(e.first)+1)
	for i, err := range e.first {
		texts[i] = err.Error()
	}
	if e.more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", e.more))
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the named streams.
func (e *corruptStreamsError) Unwrap() []error { return e.first }

// ofConfig makes an invalid value match [ErrInvalidConfig].
func ofConfig(err error) error {
	if wrong, ok := errors.AsType[*messagestore.InvalidError](err); ok {
		wrong.Kind = ErrInvalidConfig
	}
	return err
}

func invalid(field string, value any, rule string, kind error) error {
	e := messagestore.NewInvalidError(field, value, rule)
	e.Kind = kind
	return e
}
