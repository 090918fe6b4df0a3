package saga

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrWaiting is the error of a step that has to wait: for a reply, a time, or its next attempt. The
// function returns it, or any other error, and is run again later. Until then each further step
// returns it too.
var ErrWaiting = errors.New("the saga goes on later")

// errStopped is the error of a step in a run that has ended for another reason than waiting.
var errStopped = errors.New("the saga has stopped")

// errMoved says that the saga's stream was not at the version that was read.
var errMoved = errors.New("the saga has moved on")

// errLate says that the deadline has passed, so that no step begins.
var errLate = errors.New("the deadline is over")

// errFenced says that another run has written to the saga.
var errFenced = errors.New("another process has gone on with the saga")

// errNoSaga says that no saga was started with the id. It matches [messagestore.ErrNotFound].
var errNoSaga error = noSagaError{}

type noSagaError struct{}

func (noSagaError) Error() string        { return "no saga was started with this id" }
func (noSagaError) Is(target error) bool { return target == messagestore.ErrNotFound }

// A StepError is the error of a step that has failed for good. It is the same in every run: it is
// made from the record, and does not wrap the error of the step's function.
type StepError struct {
	Step    string
	Reason  string // the text of the error, shortened
	Refused bool   // the error was a refusal, by handler.Refuse; else the attempts were used up, or no reply came in time
}

// Error names the step.
func (e *StepError) Error() string { return e.Step + ": " + e.Reason }

// A besideError is a definite error caused by a write to another stream than the saga's. Nothing
// was written.
type besideError struct{ error }

func (e *besideError) Unwrap() error { return e.error }

// isOutage reports whether the error of a write says nothing about the write itself: there was no
// connection, the outcome is unknown, or the database reports its own state. The attempt is then
// made again, and not counted.
func isOutage(err error) bool {
	outage, definite := judge(err)
	return outage && !definite
}

// isDefinite reports whether the store has refused the write.
func isDefinite(err error) bool {
	_, definite := judge(err)
	return definite
}

// judge finds out which facts the error of a write proves.
func judge(err error) (outage, definite bool) {
	for _, of := range []error{
		messagestore.ErrOutcomeUnknown, messagestore.ErrClosed, messagestore.ErrNotWritten, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		context.Canceled, driver.ErrBadConn,
	} {
		if errors.Is(err, of) {
			return true, false
		}
	}
	for _, of := range []error{
		messagestore.ErrVersionConflict, messagestore.ErrIDConflict, messagestore.ErrInvalid, messagestore.ErrNotPermitted,
		messagestore.ErrNotSupported, messagestore.ErrTransactionEnded,
	} {
		if errors.Is(err, of) {
			return false, true
		}
	}
	if outage, answered := isOutageState(err); answered {
		return outage, !outage
	}
	if e, is := errors.AsType[interface {
		error
		Code() int
	}](err); is { // of SQLite: busy, locked, out of memory, read-only, I/O, full, cannot open
		outage := slices.Contains([]int{5, 6, 7, 8, 10, 13, 14}, e.Code()&0xff)
		return outage, !outage
	}
	_, again := errors.AsType[*calling.RetryableError](err) // a connection that was lost, since it has no code
	_, network := errors.AsType[net.Error](err)
	return again || network, false
}

// isOutageState reports whether an error has an SQLSTATE, and whether that SQLSTATE is about the
// server's state. The SQLState method may be the caller's code: if it panics, the error counts as
// having none.
func isOutageState(err error) (is, answered bool) {
	defer func() {
		if recover() != nil {
			is, answered = false, false
		}
	}()
	e, answered := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if !answered {
		return false, false
	}
	state := e.SQLState()
	return slices.ContainsFunc([]string{"08", "53", "57P", "58", "XX", "25006"}, func(class string) bool {
		return strings.HasPrefix(state, class)
	}), true
}

// A suspension is the error of a run that ends with the saga suspended.
type suspension struct{ suspendedEvent }

func (p *suspension) Error() string { return "the saga is suspended: " + p.Reason }

// suspend returns the error that ends a run with the saga suspended.
func suspend(why, step string, reason error) error {
	if stuck, is := reason.(*suspension); is { //nolint:errorlint // it is one already
		return stuck
	}
	return &suspension{suspendedEvent{Why: why, Step: step, Reason: textOf(reason)}}
}

func invalid(field string, value any, rule string) error {
	return messagestore.NewInvalidError(field, value, rule)
}

// skipped returns the error that suspends a saga because a function has returned handler.Skip. A
// saga cannot skip a step, because the next ones need its output.
func skipped(step string, err error) error {
	return suspend(whyInvalid, step, fmt.Errorf("handler.Skip is for messages, and a saga cannot skip a step: return nil or handler.Refuse: %w", err))
}

const maxText = 500

// textOf returns the text of an error, fit to be stored.
func textOf(err error) (s string) {
	defer func() {
		if recover() != nil {
			s = fmt.Sprintf("%T, whose text panics", err)
		}
	}()
	return shorten(err.Error())
}

func shorten(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// askedPause returns the pause before the next attempt that a function has asked for by
// handler.RetryAfter. Each attempt is recorded, so the pause is at least a second.
func askedPause(asked *calling.DispositionError) time.Duration {
	if asked.After <= 0 {
		return time.Second
	}
	return min(asked.After, maxWait)
}

// pause returns the pause before the next attempt after a number of failures.
func (r Retry) pause(failures int) time.Duration {
	return outage.Pause(failures, r.MinBackoff, r.MaxBackoff)
}
