package intent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
)

// Failures, to match with [errors.Is].
var (
	// ErrLeaseLost is matched by the error of a step on a lease that has ended: it was taken
	// over, released or confirmed. Nothing was written. See [LeaseLostError].
	ErrLeaseLost = errors.New("lease lost")

	// ErrGraceExceeded is matched by the error of [Manager.Do] for work that did not stop in
	// time after its lease had ended. It may still be under way.
	ErrGraceExceeded = errors.New("the work goes on without its lease")

	// ErrReleased is matched by the error of [Manager.Do] and [Do] for work that has released its lease by itself
	// and returned no error: its result is dropped, and nothing is confirmed.
	ErrReleased = errors.New("the work has released its lease")

	// ErrDone is matched by the error of [Manager.ForceRelease] for an intent that is
	// confirmed: nothing releases it any more.
	ErrDone = errors.New("the intent is confirmed")

	// ErrResult is matched by the error of [Result] and of [Do] for a stored result that does not decode
	// into the type that was asked for, and for one that was not kept ([Intent.NotKept]). The intent is done
	// all the same.
	ErrResult = errors.New("the result cannot be read")

	// ErrCorrupt is matched by the error for a stream whose last message is none of an
	// intent's. The error names its place.
	ErrCorrupt = intentlog.ErrCorrupt
)

// Sentinels of refused input. Each comes as a [*messagestore.InvalidError], which matches
// [messagestore.ErrInvalid] too, and nothing was sent.
var (
	// ErrInvalidKey is matched by the error for a key or scope that is empty, in which there is
	// nothing to see, or that is not valid UTF-8.
	ErrInvalidKey = keys.ErrInvalid

	// ErrInvalidConfig is matched by the error for a duration that is out of its bounds.
	ErrInvalidConfig = errors.New("invalid intent configuration")
)

// A LeaseLostError tells the end of a lease.
type LeaseLostError struct {
	Stream  messagestore.StreamName
	Session string // of the lease that was lost
	Token   int64  // of the lease that was lost

	// By is the intent as it is now: another session's lease, a release, a result. It is nil if
	// only the time is over, and where the store has no such intent.
	By *Intent

	cause string // where By is nil
}

// Error names the lease and its successor.
func (e *LeaseLostError) Error() string {
	cause := e.cause
	if by := e.By; by != nil {
		switch {
		case by.Forgotten:
			cause = "the intent is done, and was deleted"
		case by.Status == Done && by.Token == e.Token:
			cause = "it was confirmed"
		case by.Status == Done:
			cause = fmt.Sprintf("session %.80q confirmed with token %d", by.Session, by.Token)
		case by.Status == Free && by.Token == e.Token && by.By != "":
			cause = fmt.Sprintf("it was released by %.80q: %.80q", by.By, by.Reason)
		case by.Status == Free && by.Token == e.Token:
			cause = "it was released"
		default:
			cause = fmt.Sprintf("session %.80q came after it, with token %d", by.Session, by.Token)
		}
	}
	return fmt.Sprintf("lease lost: token %d of session %.80q on %s: %s", e.Token, e.Session, e.Stream, cause)
}

// Is reports whether target is [ErrLeaseLost].
func (e *LeaseLostError) Is(target error) bool { return target == ErrLeaseLost }

// A PanicError is what [Manager.Do] panics with after its function has panicked, in a goroutine of its
// own: without it the place would be lost.
type PanicError struct {
	Value any    // what the function panicked with
	Stack []byte // of its goroutine, as [runtime/debug.Stack] has it
}

// Error returns the value, and the stack below it.
func (e *PanicError) Error() string { return fmt.Sprintf("%v\n\n%s", e.Value, e.Stack) }

// Unwrap returns an error that has the stack too, and that unwraps to the value if it is an error.
func (e *PanicError) Unwrap() error { return (*failure.PanicError)(e) }

// A graceExceededError names the work that does not stop.
type graceExceededError struct {
	Stream messagestore.StreamName
	Token  int64
	Grace  time.Duration
	Lost   error // why the lease ended
}

// Error names the intent and the grace.
func (e *graceExceededError) Error() string {
	return fmt.Sprintf("the work on %s with token %d goes on %v after its lease: %v", e.Stream, e.Token, e.Grace, e.Lost)
}

// Is reports whether target is [ErrGraceExceeded].
func (e *graceExceededError) Is(target error) bool { return target == ErrGraceExceeded }

// Unwrap returns the reason for which the lease ended.
func (e *graceExceededError) Unwrap() error { return e.Lost }

// A corruptStreamsError names the first streams of a category that are none of intents.
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

// Unwrap returns the errors of the streams that are named.
func (e *corruptStreamsError) Unwrap() []error { return e.first }

// ofConfig has an invalid value match [ErrInvalidConfig].
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
