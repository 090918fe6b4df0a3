// Package steer is how the error of a handler tells a consumer what becomes of the
// message: parked, retried after a given time, or skipped. Package consumer exports
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
	}
	return fmt.Sprintf("retried after %v", e.After)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Parked is what an error unwraps to if its message is to be parked:
//
//	func (e *KeyReusedError) Unwrap() error { return steer.Parked }
var Parked error = &Error{Verdict: Park} //nolint:errname // it is a verdict, which errors unwrap to

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

type consumerKey struct{}

// WithConsumer returns a context for handlers that tells the name of the consumer.
func WithConsumer(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, consumerKey{}, name)
}

// Consumer returns the name of the consumer that delivers the message, or "".
func Consumer(ctx context.Context) string {
	name, _ := ctx.Value(consumerKey{}).(string)
	return name
}
