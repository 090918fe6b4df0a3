package queuing

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrAlone ends a ride of which nothing was done: the worker takes by itself.
var ErrAlone = errors.New("the take did not go with the write")

// ridePatience bounds how long a write waits for a worker that said that it waits, and has something else to do since.
const ridePatience = time.Second

// A Stop is where a worker waits for a write of its process that takes its next take along. It is safe for concurrent use.
type Stop struct {
	calls chan chan<- *Ride
	waits atomic.Bool
}

// NewStop returns a stop at which no worker waits.
func NewStop() *Stop { return &Stop{calls: make(chan chan<- *Ride)} }

// Wait says whether the worker receives from Calls, or will in a moment. If not, each write that calls is told so.
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

// Calls are those of writes. The worker answers each with a ride, or with nil if it wants nothing. It is nil for no stop.
func (s *Stop) Calls() <-chan chan<- *Ride {
	if s == nil {
		return nil
	}
	return s.calls
}

// Call returns the next take of the worker that waits, nil if none does. The caller ends a ride by Tell.
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

// A Ride is a take that goes with a write.
type Ride struct {
	Take Take
	told chan rideTold
}

type rideTold struct {
	Taken
	err error
}

// NewRide returns a ride of a take.
func NewRide(t Take) *Ride { return &Ride{t, make(chan rideTold, 1)} }

// Tell says what became of the take, and what it says first counts: the error is as of [Driver].QueueTake, or [ErrAlone].
func (r *Ride) Tell(taken Taken, err error) {
	select {
	case r.told <- rideTold{taken, err}:
	default:
	}
}

// Told waits for what Tell says.
func (r *Ride) Told() (Taken, error) {
	t := <-r.told
	return t.Taken, t.err
}

type stopKey struct{}

// WithStop returns the context of a write that takes along the take of a worker that waits. Of a nil context it is nil, which
// the write refuses.
func WithStop(ctx context.Context, s *Stop) context.Context {
	if ctx == nil {
		return nil
	}
	return context.WithValue(ctx, stopKey{}, s)
}

// StopOf returns the stop of a write, nil for none.
func StopOf(ctx context.Context) *Stop {
	s, _ := ctx.Value(stopKey{}).(*Stop)
	return s
}
