package calling

import (
	"errors"
	"fmt"
	"time"
)

// A Kind is one of the four dispositions. Package handler has a table of their effects.
type Kind int

const (
	// Retry asks for another attempt after a given time.
	Retry Kind = iota + 1

	// Park asks to park the message at once, under every policy.
	Park

	// Skip skips a message: it is counted and logged.
	Skip

	// Refuse says that no other attempt can help: the policy's last action is taken at once.
	Refuse
)

// A DispositionError has a disposition. [DispositionOf] finds it in any error that wraps it.
type DispositionError struct {
	Kind  Kind
	After time.Duration // how long Retry waits
	Err   error         // the reason, or nil if an error around it has the reason
}

// Error returns the reason.
func (e *DispositionError) Error() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Kind == Park:
		return "parked"
	case e.Kind == Skip:
		return "skipped"
	case e.Kind == Refuse:
		return "refused"
	}
	return fmt.Sprintf("retried after %v", e.After)
}

// Unwrap returns the reason.
func (e *DispositionError) Unwrap() error { return e.Err }

// Parked is an error for Unwrap to return, if the message of the error has to be parked:
//
//	func (e *KeyReusedError) Unwrap() error { return calling.Parked }
var Parked error = &DispositionError{Kind: Park} //nolint:errname // it is a disposition, which errors unwrap to

// Refused is an error for Unwrap to return, if the same attempt would fail in the same way again:
//
//	func (e *DecodeError) Unwrap() []error { return []error{e.Cause, calling.Refused} }
var Refused error = &DispositionError{Kind: Refuse} //nolint:errname // it is a disposition, which errors unwrap to

// ErrLasting is matched by an error that concerns every message, and stays until an operator acts. A
// consumer stops after such an error, unless it has a disposition, and parks nothing. Only errors
// of Dibs match it: a handler's error cannot stop a consumer by a method.
var ErrLasting = errors.New("it stays until an operator acts")

// A LastingError is the text of an error that matches [ErrLasting].
type LastingError string

// Error returns the text.
func (e LastingError) Error() string { return string(e) }

// Is reports whether target is [ErrLasting].
func (e LastingError) Is(target error) bool { return target == ErrLasting }

// DispositionOf returns the disposition in err, or nil. If there are several it returns the
// outermost, and of joined ones the first. A disposition with which a function has panicked does
// not count: the function has failed without deciding. The methods of err are a user's code: if one
// panics, there is no disposition.
func DispositionOf(err error) (found *DispositionError) {
	defer func() {
		if recover() != nil {
			found = nil
		}
	}()
	return outermost(err)
}

// outermost is [errors.AsType], except that it does not look inside a panic.
func outermost(err error) (found *DispositionError) {
	for err != nil {
		switch e := err.(type) { //nolint:errorlint // it goes from one to the next itself
		case *DispositionError:
			return e
		case *PanicError:
			return nil
		}
		if e, is := err.(interface{ As(target any) bool }); is && e.As(&found) {
			return found
		}
		switch e := err.(type) { //nolint:errorlint // as above
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, joined := range e.Unwrap() {
				if found := outermost(joined); found != nil {
					return found
				}
			}
			return nil
		default:
			return nil
		}
	}
	return nil
}

// Asks reports whether e is a disposition of the given kind. It returns false if e is nil.
func (e *DispositionError) Asks(kind Kind) bool { return e != nil && e.Kind == kind }

// A RetryableError is the definite failure of a transaction that may succeed when it is run again:
// a serialization failure, a deadlock or a lost connection. Drivers return it to TxStore.Transact,
// which runs its function again.
type RetryableError struct {
	Cause error

	// NotBegun says that the connection was lost before the database had answered any statement of
	// the function. Then the function's own error, if it returned one, says nothing about its work.
	NotBegun bool
}

// Error returns the text of the cause.
func (e *RetryableError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *RetryableError) Unwrap() error { return e.Cause }
