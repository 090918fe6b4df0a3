package handler

import (
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/failure"
)

// Park is the error of a function for a message that a person has to look at: it is parked at
// once, whatever the policy. The package comment has its effect in each place. Err may be nil.
func Park(err error) error {
	return &failure.DispositionError{Kind: failure.Park, Err: err}
}

// RetryAfter is the error of a function that wants its message again after d, for as long as it says so: the
// failure is not counted against the retries of a policy. A d below 0 is 0. The package comment has its effect
// in each place. Err may be nil.
func RetryAfter(d time.Duration, err error) error {
	return &failure.DispositionError{Kind: failure.Retry, After: max(0, d), Err: err}
}

// Skip is the error of a function that passes over its message for a reason, which is logged and counted. The
// package comment has its effect in each place.
func Skip(reason string) error {
	skip := &failure.DispositionError{Kind: failure.Skip}
	if reason != "" {
		skip.Err = errors.New(reason)
	}
	return skip
}

// Refuse is the error of a function that no other attempt helps, since its message breaks a rule, say:
// there are no retries, and the policy's last action comes at once. The package comment has its effect in
// each place. Err may be nil.
func Refuse(err error) error {
	return &failure.DispositionError{Kind: failure.Refuse, Err: err}
}
