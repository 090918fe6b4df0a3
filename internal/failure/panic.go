// Package failure is for functions that a caller has given to the library, and that fail. A panic becomes an error
// with its stack, so that the place of the panic is in the log. An error may have a disposition, by which the function
// tells what becomes of its message or its step: parked, retried after a given time, skipped, or refused. Package
// handler exports the constructors; packages below it, such as messagestore, use this one.
package failure

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// ErrExited is the value of a function that ended its goroutine with [runtime.Goexit] instead of returning.
var ErrExited = errors.New("the function ended its goroutine")

// A PanicError is the failure of a function that panicked, or ended its goroutine.
type PanicError struct {
	Value any    // what it panicked with, or ErrExited
	Stack []byte // where, as [runtime/debug.Stack] has it
}

// maxText is the length of a text in characters before it is cut.
const maxText = 1024

// Error returns the value, shortened.
func (e *PanicError) Error() string {
	if e.Exited() {
		return ErrExited.Error()
	}
	return fmt.Sprintf("panic: %.*s", maxText, fmt.Sprint(e.Value))
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Exited reports whether the function ended its goroutine, and did not panic.
func (e *PanicError) Exited() bool {
	return e.Value == ErrExited //nolint:errorlint // it is the value itself
}

// Recovered returns the error of a function that did not return, with the value of recover in the deferred
// function that calls it: nil if the function ended its goroutine. A panic that is passed on from another
// goroutine has the stack of the first.
func Recovered(value any) *PanicError {
	e := &PanicError{Value: value, Stack: debug.Stack()}
	if value == nil {
		e.Value = ErrExited
	}
	if err, is := value.(error); is {
		if first := PanicOf(err); first != nil {
			e.Stack = first.Stack
		}
	}
	return e
}

// PanicOf returns the [*PanicError] in err, nil if there is none. The methods of an error are the caller's code: if
// one panics, Of returns nil.
func PanicOf(err error) (e *PanicError) {
	defer func() {
		if recover() != nil {
			e = nil
		}
	}()
	e, _ = errors.AsType[*PanicError](err)
	return e
}

// Is is [errors.Is], and false if a method of err panics: it is the caller's code.
func Is(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}

// Catch is deferred by a function that calls another and has set err to ErrExited before. It sets err to a [*PanicError] if
// the other did not return.
func Catch(err *error) {
	if value := recover(); value != nil || *err == ErrExited { //nolint:errorlint // as it was set
		*err = Recovered(value)
	}
}

// Go calls f in a goroutine of its own, and gives its error to the channel: a [*PanicError] if it does not return.
func Go(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := ErrExited
		defer func() { done <- err }()
		defer Catch(&err)
		err = f()
	}()
	return done
}

// Call calls f in a goroutine of its own, since f may end it, and returns its error: a [*PanicError] if f does not return.
func Call(f func() error) error { return <-Go(f) }

// MaxStack is the length of a stack in bytes before it is cut.
const MaxStack = 4096

// Stack returns the stack in err, from the function that panicked on, or ended its goroutine, cut to whole lines; "" if
// there is none.
func Stack(err error) string {
	e := PanicOf(err)
	if e == nil {
		return ""
	}
	s := strings.ToValidUTF8(string(e.Stack), "\uFFFD")
	call := "\npanic("
	if e.Exited() {
		call = "\nruntime.Goexit("
	}
	if _, below, ok := strings.Cut(s, call); ok { // its own two lines come first
		for range 2 {
			if _, rest, more := strings.Cut(below, "\n"); more {
				below = rest
			}
		}
		s = below
	}
	if s = strings.TrimRight(s, "\n"); len(s) > MaxStack {
		s = s[:MaxStack]
		s = s[:max(0, strings.LastIndexByte(s, '\n'))] + "\n…"
	}
	return s
}
