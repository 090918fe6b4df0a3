// Package steer is how the error of a handler tells a consumer what becomes of the
// message: parked, retried after a given time, skipped, or not retried. Package consumer exports
// the constructors; packages that a consumer must not be imported by, such as
// reservation and entity, use this one.
package steer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Verdict is what becomes of a message whose handler returned an error.
type Verdict int

const (
	// Retry delivers the message again after a pause.
	Retry Verdict = iota + 1

	// Park writes a dead letter for the message at once, whatever the policy.
	Park

	// Skip counts and logs the message, and moves on.
	Skip

	// NoRetry leaves out the retries: the policy decides at once whether the consumer stops or
	// parks the message.
	NoRetry
)

// An Error carries a verdict. [Of] finds it in whatever wraps it.
type Error struct {
	Verdict Verdict
	After   time.Duration // how long Retry waits
	Err     error         // why, or nil where the error around it says why
}

// Error returns the reason.
func (e *Error) Error() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Verdict == Park:
		return "parked"
	case e.Verdict == Skip:
		return "skipped"
	case e.Verdict == NoRetry:
		return "not retried"
	}
	return fmt.Sprintf("retried after %v", e.After)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Parked is what an error unwraps to if its message is to be parked:
//
//	func (e *KeyReusedError) Unwrap() error { return steer.Parked }
var Parked error = &Error{Verdict: Park} //nolint:errname // it is a verdict, which errors unwrap to

// Hopeless is what an error unwraps to if the same message will fail in the same way again:
//
//	func (e *DecodeError) Unwrap() []error { return []error{e.Cause, steer.Hopeless} }
var Hopeless error = &Error{Verdict: NoRetry} //nolint:errname // it is a verdict, which errors unwrap to

// Of returns the verdict in err, nil if there is none. The methods of a handler's
// error are the handler's code: one that panics gives no verdict.
func Of(err error) (verdict *Error) {
	defer func() {
		if recover() != nil {
			verdict = nil
		}
	}()
	verdict, _ = errors.AsType[*Error](err)
	return verdict
}

type deliveryKey struct{}

// A Delivery is the consumer that calls a handler.
type Delivery struct {
	Consumer string

	// Wrote is told of each stream that the handler has written to. It may be called from
	// several goroutines at once.
	Wrote func(stream string)

	// Unread is told of a category that the handler writes copies to, and that no consumer has read.
	Unread func(category string)
}

// WithDelivery returns a context for handlers.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// Consumer returns the name of the consumer that delivers the message, or "".
func Consumer(ctx context.Context) string {
	if ctx == nil {
		return ""
	}
	if d, ok := ctx.Value(deliveryKey{}).(*Delivery); ok {
		return d.Consumer
	}
	return ""
}

// Wrote tells the consumer whose handler has the context that a stream was written to.
func Wrote(ctx context.Context, stream string) {
	if d, ok := ctx.Value(deliveryKey{}).(*Delivery); ok && d.Wrote != nil {
		d.Wrote(stream)
	}
}

// Unread tells the consumer whose handler has the context that it writes copies of its commands to a category that no
// consumer has read.
func Unread(ctx context.Context, category string) {
	if d, ok := ctx.Value(deliveryKey{}).(*Delivery); ok && d.Unread != nil {
		d.Unread(category)
	}
}
