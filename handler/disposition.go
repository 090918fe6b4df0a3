package handler

import (
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
)

// Park returns the error of a function for a message that a person has to look at: the message is
// parked at once, under every policy. The package comment lists its effect in each place. Err may
// be nil.
func Park(err error) error {
	return &calling.DispositionError{Kind: calling.Park, Err: err}
}

// RetryAfter returns the error of a function that wants its message again after d. A function may
// return it any number of times: it does not count against the retries of a policy. A d below 0 is
// 0. The package comment lists its effect in each place. Err may be nil.
func RetryAfter(d time.Duration, err error) error {
	return &calling.DispositionError{Kind: calling.Retry, After: max(0, d), Err: err}
}

// Skip returns the error of a function that skips its message for a reason, which is logged and
// counted. The package comment lists its effect in each place.
func Skip(reason string) error {
	skip := &calling.DispositionError{Kind: calling.Skip}
	if reason != "" {
		skip.Err = errors.New(reason)
	}
	return skip
}

// Refuse returns the error of a function if another attempt cannot help, for example because its
// message breaks a rule. Then the message is not retried, and the policy's last action comes at
// once. The package comment lists its effect in each place. Err may be nil.
func Refuse(err error) error {
	return &calling.DispositionError{Kind: calling.Refuse, Err: err}
}
