package consumer

import (
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/steer"
)

// RetryAfter is the error of a handler that wants its message again after d, and not when
// the [ErrorPolicy] says. The policy does not count such a failure: the message is retried
// for as long as the handler says so, and messages of its cardinal id wait. The error may
// be wrapped. Err may be nil.
func RetryAfter(d time.Duration, err error) error {
	return &steer.Error{Verdict: steer.Retry, After: max(0, d), Err: err}
}

// Park is the error of a handler whose message can never be handled, such as one that
// breaks a rule: the message is parked at once under every [ErrorPolicy]. The error may
// be wrapped. See [ParkMessage].
func Park(err error) error {
	return &steer.Error{Verdict: steer.Park, Err: err}
}

// Skip is the error of a handler that passes over a message for a reason. The reason is
// logged, the message is counted in [Stats].Skipped, and the consumer moves on. The error
// may be wrapped.
func Skip(reason string) error {
	skip := &steer.Error{Verdict: steer.Skip}
	if reason != "" {
		skip.Err = errors.New(reason)
	}
	return skip
}
