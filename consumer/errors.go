package consumer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// Why a consumer stopped, to match with [errors.Is].
var (
	// ErrRunning is returned by Run and CatchUp while the same Consumer runs, or
	// while a handler that it had to leave behind has not returned.
	ErrRunning = errors.New("the consumer is running")

	// ErrConsumerFenced says that another process recorded a position under the same
	// identity, that the group has a new size, or that the consumer was told to go on
	// from elsewhere with [Reset]. See [FencedError].
	ErrConsumerFenced = errors.New("consumer fenced")

	// ErrPositionAhead says that the recorded position is beyond the end of the
	// category, that the message before it is another than was read there, or that what
	// this process recorded is gone: the store has lost messages, by a fail-over or
	// because it was restored from a backup. See [PositionAheadError].
	ErrPositionAhead = errors.New("position is ahead of the store")

	// ErrPositionCorrupt says that what is recorded is not a position. See
	// [PositionCorruptError].
	ErrPositionCorrupt = errors.New("position is corrupt")

	// ErrGraceExceeded says that a handler went on after its context was cancelled.
	// Its goroutine is the only one that may outlive Run. See [GraceExceededError].
	ErrGraceExceeded = errors.New("grace exceeded")

	// ErrHandlerExited is the failure of a handler that ended its goroutine with
	// [runtime.Goexit] instead of returning.
	ErrHandlerExited = errors.New("the handler ended its goroutine")
)

// A MessageError says which message a consumer stopped at.
type MessageError struct {
	ID             uuid.UUID
	Type           string
	Stream         messagestore.StreamName
	Position       messagestore.Version
	GlobalPosition messagestore.GlobalPosition
	Attempts       int   // how often the handler was called for it, in this run
	Err            error // the last failure
}

func newMessageError(it *item, err error) *MessageError {
	m := it.message
	return &MessageError{m.ID, m.Type, m.Stream, m.Position, m.GlobalPosition, it.attempts, err}
}

// Error names the message and its last failure.
func (e *MessageError) Error() string {
	times := "once"
	if e.Attempts != 1 {
		times = fmt.Sprintf("%d times", e.Attempts)
	}
	return fmt.Sprintf("handle %s %s@%d, tried %s: %s", e.Type, e.Stream, e.Position, times, errorText(e.Err))
}

// Unwrap returns the last failure.
func (e *MessageError) Unwrap() error { return e.Err }

// A PanicError is the failure of a handler that panicked.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // where
}

// Error returns the value, shortened.
func (e *PanicError) Error() string { return "panic: " + shorten(fmt.Sprint(e.Value)) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A FencedError says whose write was in the way. After a [Reset], start the consumer
// again. Otherwise run the consumer once for each
// identity - category, name and group member - and all members with one group size.
type FencedError struct {
	Stream   messagestore.StreamName // of positions, or the ledger of group sizes
	Expected messagestore.Version    // what this process wrote or read last
	Actual   messagestore.Version    // what another wrote since
}

// Error names the stream and the versions.
func (e *FencedError) Error() string {
	return fmt.Sprintf("consumer fenced: another process wrote to %s: expected version %v, found %v", e.Stream, e.Expected, e.Actual)
}

// Is reports whether target is [ErrConsumerFenced].
func (e *FencedError) Is(target error) bool { return target == ErrConsumerFenced }

// A PositionAheadError says what the store no longer has. Find out what was lost.
//
// A consumer that ran when it happened goes on, when it is started again, from the position
// that the store has, if that is of the history that the store has. If it is not, the error
// comes again: [Reset] the consumer to where it is to go on from.
type PositionAheadError struct {
	Stream   messagestore.StreamName     // where the position is recorded, or the ledger of group sizes
	Position messagestore.GlobalPosition // that was recorded, as this process knows it
	Expected messagestore.Version        // of the stream: what this process wrote or read last
	Actual   messagestore.Version        // of the stream

	// Behind is the id of the message that was read right before the position, and Found
	// that of the message in its place. They are zero if that is not known, or not there.
	Behind uuid.UUID
	Found  uuid.UUID
}

// Error names the stream, the position and the versions.
func (e *PositionAheadError) Error() string {
	if e.Actual < e.Expected {
		return fmt.Sprintf("position %d is ahead of the store, which has lost messages of %s: expected version %v, found %v",
			e.Position, e.Stream, e.Expected, e.Actual)
	}
	text := fmt.Sprintf("position %d in %s is ahead of the store, which has lost messages", e.Position, e.Stream)
	switch {
	case e.Behind != uuid.Nil && e.Found != uuid.Nil:
		return fmt.Sprintf("%s: it was right behind message %s, and the store has %s there", text, e.Behind, e.Found)
	case e.Behind != uuid.Nil:
		return fmt.Sprintf("%s: it was right behind message %s", text, e.Behind)
	}
	return text
}

// Is reports whether target is [ErrPositionAhead].
func (e *PositionAheadError) Is(target error) bool { return target == ErrPositionAhead }

// A PositionCorruptError says which recorded message is not a position.
type PositionCorruptError struct {
	Stream   messagestore.StreamName
	Position messagestore.Version // of the message in the stream
	Reason   string
}

// Error names the message and what is wrong with it.
func (e *PositionCorruptError) Error() string {
	return fmt.Sprintf("position is corrupt: %s@%d: %s", e.Stream, e.Position, e.Reason)
}

// Is reports whether target is [ErrPositionCorrupt].
func (e *PositionCorruptError) Is(target error) bool { return target == ErrPositionCorrupt }

// A GraceExceededError names the messages whose handlers would not stop. They are
// handed over again by the next run.
type GraceExceededError struct {
	Grace    time.Duration
	Messages []string // as [messagestore.Recorded.String] has them
}

// Error names the messages.
func (e *GraceExceededError) Error() string {
	return fmt.Sprintf("grace of %v exceeded: the handler goes on with %s", e.Grace, strings.Join(e.Messages, ", "))
}

// Is reports whether target is [ErrGraceExceeded].
func (e *GraceExceededError) Is(target error) bool { return target == ErrGraceExceeded }

// errEpoch ends a run whose store may have lost what handlers wrote. The next one goes on
// from the recorded position.
var errEpoch = errors.New("the store has another epoch: what was handled since the position was recorded is handed over again")

// heals reports whether an error of the store may be gone the next time.
func heals(err error) bool {
	for _, lasting := range []error{
		ErrConsumerFenced, ErrPositionAhead, ErrPositionCorrupt, errEpoch,
		messagestore.ErrInvalid, messagestore.ErrNotSupported, messagestore.ErrIDConflict,
	} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	var lasting interface{ Permanent() bool }
	return !errors.As(err, &lasting) || !lasting.Permanent()
}

// asksToPark reports whether err says that to try again is useless. The error is
// the handler's, and so is the code that is called here.
func asksToPark(err error) (asks bool) {
	defer func() {
		if recover() != nil {
			asks = false
		}
	}()
	var parker interface{ Park() bool }
	return err != nil && errors.As(err, &parker) && parker.Park()
}

// recovered returns the failure of a handler that panicked with value.
func recovered(value any) error { return &PanicError{Value: value, Stack: debug.Stack()} }

// errorText returns the text of a handler's error, as a log and a JSON string can
// hold it, even if the error's own method panics.
func errorText(err error) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprintf("%T, whose text panics", err)
		}
	}()
	return shorten(err.Error())
}

const maxErrorText = 1024

func shorten(s string) string {
	cut := len(s) > maxErrorText
	if cut {
		s = s[:maxErrorText]
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if cut {
		s += "…"
	}
	return s
}

// backoff returns the wait after so many failures: from least, doubling, to most,
// less up to a half.
func backoff(least, most time.Duration, failures int) time.Duration {
	d := least
	for i := 1; i < failures && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d - rand.N(d/2+1)
}
