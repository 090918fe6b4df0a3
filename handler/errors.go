package handler

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrUnknownType is matched by the error of [Mux.Handle] for a message of a type that no function is
// registered for, unless [Mux.IgnoreUnknown] was called. A newer version of the service may have
// written the message, so a consumer retries it as it does after any other failure: a replica that
// knows the type may take it over.
var ErrUnknownType = errors.New("unknown message type: no function is registered for it (On), and the mux does not ignore it (IgnoreUnknown)")

func invalid(name, rule string) error {
	var value any
	if name != "" {
		value = name
	}
	return messagestore.NewInvalidError("registration", value, rule)
}

// unregistered says why no message of the Go type can be handled.
func unregistered(goType string, err error) error {
	wrong, ok := errors.AsType[*messagestore.InvalidError](err)
	if !ok {
		return err
	}
	if wrong.Field == "older form" {
		return invalid(goType, wrong.Error())
	}
	return invalid(goType, wrong.Rule)
}

// A DecodeError says why the body of a message does not fit the Go type that its function
// takes. Handling the message again does not help, so a consumer does not retry it: it stops, or
// parks the message, at once.
type DecodeError struct {
	GoType string
	Cause  error // of encoding/json, or of the type's own UnmarshalJSON
}

// Error names the Go type and the cause; the mux puts the message in front.
func (e *DecodeError) Error() string { return fmt.Sprintf("decode into %s: %v", e.GoType, e.Cause) }

// Unwrap returns the cause, and that the message is not retried.
func (e *DecodeError) Unwrap() []error { return []error{e.Cause, failure.Refused} }
