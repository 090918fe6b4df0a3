package calling

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// ErrExited is the error for a function that ended its goroutine with [runtime.Goexit] instead of
// returning.
var ErrExited = errors.New("the function ended its goroutine")

// A PanicError is the error of a function that panicked, or ended its goroutine.
type PanicError struct {
	Value any    // the value of the panic, or ErrExited
	Stack []byte // from [runtime/debug.Stack]
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

// Exited reports whether the function ended its goroutine without a panic.
func (e *PanicError) Exited() bool {
	return e.Value == ErrExited //nolint:errorlint // it is the value itself
}

// Recovered returns the error of a function that did not return. Call it with the value of recover
// in the deferred function: nil means that the function ended its goroutine. If a panic is passed
// on from another goroutine, the error has the stack of the first panic.
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

// PanicOf returns the [*PanicError] in err, or nil. The methods of an error are the caller's code:
// if one panics, PanicOf returns nil.
func PanicOf(err error) (e *PanicError) {
	defer func() {
		if recover() != nil {
			e = nil
		}
	}()
	e, _ = errors.AsType[*PanicError](err)
	return e
}

// Is is [errors.Is], but returns false if a method of err panics, because that is the caller's
// code.
func Is(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}

// Catch is deferred by a function that calls another and has set err to ErrExited before. It sets
// err to a [*PanicError] if the other function did not return.
func Catch(err *error) {
	if value := recover(); value != nil || *err == ErrExited { //nolint:errorlint // as it was set
		*err = Recovered(value)
	}
}

// Go calls f in a new goroutine, and sends its error to the channel: a [*PanicError] if f does not
// return.
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

// Call calls f in a new goroutine, because f may end it, and returns its error: a [*PanicError] if
// f does not return.
func Call(f func() error) error { return <-Go(f) }

// MaxStack is the length of a stack in bytes before it is cut.
const MaxStack = 4096

// Stack returns the stack in err, starting at the function that panicked or ended its goroutine,
// cut to whole lines. It returns "" if err has no stack.
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
	if _, below, ok := strings.Cut(s, call); ok { // two lines of its own come first
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
