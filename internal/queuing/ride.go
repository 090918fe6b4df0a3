package queuing

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrAlone says that a write did not carry the take, and nothing was done: the worker takes without
// it.
var ErrAlone = errors.New("the take did not go with the write")

// ridePatience bounds how long a write waits for a worker that said it waits, if the worker has
// become busy since.
const ridePatience = time.Second

// A Stop is the place where a worker waits for a write of its process to carry its next take. It is
// safe for concurrent use.
type Stop struct {
	calls chan chan<- *Ride
	waits atomic.Bool
}

// NewStop returns a stop without a worker.
func NewStop() *Stop { return &Stop{calls: make(chan chan<- *Ride)} }

// Wait says whether the worker receives from Calls, or will in a moment. Wait(false) gives nil to
// each write that is waiting.
func (s *Stop) Wait(waits bool) {
	if s == nil {
		return
	}
	s.waits.Store(waits)
	for !waits {
		select {
		case call := <-s.calls:
			call <- nil
		default:
			return
		}
	}
}

// Waits reports whether a worker waits.
func (s *Stop) Waits() bool { return s != nil && s.waits.Load() }

// Calls returns the calls of writes. The worker answers each with a ride, or with nil if it wants
// nothing. Calls is nil if s is nil.
func (s *Stop) Calls() <-chan chan<- *Ride {
	if s == nil {
		return nil
	}
	return s.calls
}

// Call returns the next take of the waiting worker, nil if no worker waits or the worker wants
// nothing. The caller must end the ride by Tell.
func (s *Stop) Call() *Ride {
	if !s.Waits() {
		return nil
	}
	answer := make(chan *Ride, 1)
	timer := time.NewTimer(ridePatience)
	defer timer.Stop()
	select {
	case s.calls <- answer:
		return <-answer
	case <-timer.C:
		return nil
	}
}

// A Ride is a take that a write carries.
type Ride struct {
	Take Take
	told chan rideTold
}

type rideTold struct {
	Taken
	err error
}

// NewRide returns a ride for a take.
func NewRide(t Take) *Ride { return &Ride{t, make(chan rideTold, 1)} }

// Tell reports the result of the take, once: later calls do nothing. The error comes from
// [Keeper].QueueTake, or is [ErrAlone].
func (r *Ride) Tell(taken Taken, err error) {
	select {
	case r.told <- rideTold{taken, err}:
	default:
	}
}

// Told waits for Tell and returns its arguments.
func (r *Ride) Told() (Taken, error) {
	t := <-r.told
	return t.Taken, t.err
}

type stopKey struct{}

// WithStop returns the context of a write that may carry the take of a waiting worker.
func WithStop(ctx context.Context, s *Stop) context.Context {
	return context.WithValue(ctx, stopKey{}, s)
}

// StopOf returns the stop in a write's context, nil without one.
func StopOf(ctx context.Context) *Stop {
	s, _ := ctx.Value(stopKey{}).(*Stop)
	return s
}
