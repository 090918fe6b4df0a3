package handler

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

var (
	// ErrUnknownType is matched by the error of a strict mux for a message of a
	// type that nothing is registered for.
	ErrUnknownType = errors.New("unknown message type")

	// ErrUndecodable is matched by the error for a message whose body does not fit
	// the Go type registered for it. Handling it again will not help. See
	// [DecodeError].
	ErrUndecodable = errors.New("undecodable body")

	// ErrInvalidRegistration is matched by the error of a mux that was registered
	// with by mistake. It comes as a [*messagestore.InvalidError].
	ErrInvalidRegistration = errors.New("invalid registration")
)

func invalid(name, rule string) error {
	var value any
	if name != "" {
		value = name
	}
	return messagestore.NewInvalidError(ErrInvalidRegistration, "registration", value, rule)
}

// A PanicError is what a panic in a function or a middleware becomes.
type PanicError struct {
	Type     string // of the message that was being handled
	Stream   messagestore.StreamName
	Position messagestore.Version

	Value any    // what was panicked with
	Stack []byte // where, as runtime/debug.Stack has it
}

// Error names what was panicked with, shortened; the mux puts the message in
// front.
func (e *PanicError) Error() string {
	const most = 200
	text := fmt.Sprint(e.Value)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return "panic: " + text
}

// Unwrap returns what was panicked with, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A DecodeError says why a body does not fit the Go type it was registered for.
type DecodeError struct {
	GoType string
	Cause  error // of encoding/json, or of the type's own UnmarshalJSON
}

// Error names the Go type and the cause; the mux puts the message in front.
func (e *DecodeError) Error() string { return fmt.Sprintf("decode into %s: %v", e.GoType, e.Cause) }

// Is reports whether target is [ErrUndecodable].
func (e *DecodeError) Is(target error) bool { return target == ErrUndecodable }

// Unwrap returns the cause.
func (e *DecodeError) Unwrap() error { return e.Cause }
