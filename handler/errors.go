package handler

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrUnknownType is returned by [Mux.Handle] for a message if no function is registered for its
// type, unless [Mux.IgnoreUnknown] was called. A newer version of the service may have written the
// message, so a consumer retries it as after any other failure: a replica that knows the type may
// take it over.
var ErrUnknownType = errors.New("unknown message type: no function is registered for it (On), and the mux does not ignore it (IgnoreUnknown)")

func invalid(name, rule string) error {
	var value any
	if name != "" {
		value = name
	}
	return messagestore.NewInvalidError("registration", value, rule)
}

// unregistered explains why no message of the Go type can be handled.
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

// A DecodeError says that the body of a message does not fit the Go type of its function. Another
// attempt would not help, so a consumer does not retry the message: it stops, or parks the message,
// at once.
type DecodeError struct {
	GoType string
	Cause  error // of encoding/json, or of the type's own UnmarshalJSON
}

// Error names the Go type and the cause; the mux adds the message in front.
func (e *DecodeError) Error() string { return fmt.Sprintf("decode into %s: %v", e.GoType, e.Cause) }

// Unwrap returns the cause, and an error that prevents a retry.
func (e *DecodeError) Unwrap() []error { return []error{e.Cause, calling.Refused} }
