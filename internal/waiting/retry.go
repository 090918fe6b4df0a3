package waiting

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/messagestore"
)

// An Outcome is what is known of one write from the attempts so far. The zero value belongs to a
// write that was not attempted yet. Use it from one goroutine at a time.
type Outcome struct {
	unknown error // of the last attempt that may have happened
}

// Unknown records that the write may have happened, for a reason other than an attempt's error.
func (o *Outcome) Unknown(why error) {
	o.unknown = fmt.Errorf("%w: %w", messagestore.ErrOutcomeUnknown, why)
}

// Of records the error of an attempt, nil for a success, and returns the error for the write. After
// an attempt of unknown outcome the error also matches [messagestore.ErrOutcomeUnknown], until a
// later attempt resolves the outcome: it succeeds, its error is a conflict, or its error matches
// one of resolving, so the store has shown its state.
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
	// Resolving are errors with which the store shows the result of an earlier attempt: see
	// [Outcome.Of].
	Resolving []error

	// Decided reports whether no other attempt can help after an error.
	Decided func(err error) bool

	// Pause returns how long to wait before the next attempt.
	//
	// Defaults to 20 ms after the first failure and at most 500 ms, by [outage.Pause].
	Pause func(err error, failures int) time.Duration
}

const (
	minPause = 20 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// Do calls attempt at least once, until it returns nil, or an error after which no other attempt
// can help, or ctx is done. It returns the last error after [Outcome.Of].
func (l Loop) Do(ctx context.Context, attempt func() error) error {
	var o Outcome
	return l.DoFrom(ctx, &o, attempt)
}

// DoFrom is Do for a write about which something is already known.
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

// Lasts reports whether every attempt will fail with err until an operator, or the caller, changes
// something.
func Lasts(err error) bool {
	return is(err, messagestore.ErrClosed, messagestore.ErrInvalid, messagestore.ErrNotPermitted, messagestore.ErrNotSupported, calling.ErrLasting)
}

func is(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
