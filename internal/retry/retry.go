// Package retry repeats a call of a store until it is decided, and keeps apart what its caller may take for
// decided: a write whose answer was lost may have happened, whatever error the next attempt ends with.
package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/messagestore"
)

// An Outcome is what the attempts at one write have told so far. The zero value is of a write that was not
// attempted. It is for one goroutine at a time.
type Outcome struct {
	unknown error // of the last attempt that may have happened
}

// Unknown has the write count as one that may have happened, for a reason other than an attempt's error.
func (o *Outcome) Unknown(why error) {
	o.unknown = fmt.Errorf("%w: %w", messagestore.ErrOutcomeUnknown, why)
}

// Of takes in the error of an attempt, nil for a success, and returns what is to be told of the write. After an
// attempt of unknown outcome an error matches [messagestore.ErrOutcomeUnknown] too, unless it resolves the
// outcome: it is a conflict, or matches one of resolving. The store has told its state then.
func (o *Outcome) Of(err error, resolving ...error) error {
	switch {
	case err == nil || is(err, messagestore.ErrVersionConflict, messagestore.ErrIDConflict) || is(err, resolving...):
		o.unknown = nil
	case errors.Is(err, messagestore.ErrOutcomeUnknown):
		o.unknown = err
	case o.unknown != nil:
		return fmt.Errorf("%w; and then: %w", o.unknown, err)
	}
	return err
}

// IsUnknown reports whether the write may have happened.
func (o *Outcome) IsUnknown() bool { return o.unknown != nil }

// A Loop says how a call is repeated.
type Loop struct {
	// Resolving are errors by which the store tells what became of an attempt before: see [Outcome.Of].
	Resolving []error

	// Decided reports whether no other attempt helps after an error.
	//
	// Defaults to [Lasts], and an error of Resolving.
	Decided func(err error) bool

	// Pause returns how long to wait before the next attempt.
	//
	// Defaults to 20 ms after the first failure and at most 500 ms, as [outage.Pause] has it.
	Pause func(err error, failures int) time.Duration
}

const (
	minPause = 20 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// Do calls attempt until it returns nil, or an error after which no other attempt helps, or ctx is done, and at
// least once. It returns the last error as [Outcome.Of] does.
func (l Loop) Do(ctx context.Context, attempt func() error) error {
	var o Outcome
	return l.DoFrom(ctx, &o, attempt)
}

// DoFrom is Do for a write of which something is known already.
func (l Loop) DoFrom(ctx context.Context, o *Outcome, attempt func() error) error {
	for failures := 1; ; failures++ {
		err := attempt()
		decided := err == nil || l.decided(err)
		if err = o.Of(err, l.Resolving...); decided || ctx.Err() != nil {
			return err
		}
		if outage.Wait(ctx, l.pause(err, failures)) != nil {
			return err
		}
	}
}

func (l Loop) decided(err error) bool {
	if l.Decided != nil {
		return l.Decided(err)
	}
	return Lasts(err) || is(err, l.Resolving...)
}

func (l Loop) pause(err error, failures int) time.Duration {
	if l.Pause != nil {
		return l.Pause(err, failures)
	}
	return outage.Pause(failures, minPause, maxPause)
}

// Lasts reports whether every attempt will fail with err until an operator, or the caller, changes something.
func Lasts(err error) bool {
	return is(err, messagestore.ErrClosed, messagestore.ErrInvalid, messagestore.ErrNotPermitted, messagestore.ErrNotSupported, failure.ErrLasting)
}

func is(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
