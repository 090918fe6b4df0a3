// Package riding lets a take of a queue go in the transaction of a write that it is to find: one round trip and one
// commit for both, and no other worker is offered what was written before the writer's own.
package riding

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
)

// ErrAlone ends a ride of which nothing was done: the worker takes by itself.
var ErrAlone = errors.New("the take did not go with the write")

// patience bounds how long a write waits for a worker that said that it waits, and has something else to do since.
const patience = time.Second

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
	timer := time.NewTimer(patience)
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
	Take queuing.Take
	told chan told
}

type told struct {
	queuing.Taken
	err error
}

// NewRide returns a ride of a take.
func NewRide(t queuing.Take) *Ride { return &Ride{t, make(chan told, 1)} }

// Tell says what became of the take, and what it says first counts: the error is as of [queuing.Driver].QueueTake, or [ErrAlone].
func (r *Ride) Tell(taken queuing.Taken, err error) {
	select {
	case r.told <- told{taken, err}:
	default:
	}
}

// Told waits for what Tell says.
func (r *Ride) Told() (queuing.Taken, error) {
	t := <-r.told
	return t.Taken, t.err
}

type key struct{}

// With returns the context of a write that takes along the take of a worker that waits. Of a nil context it is nil, which
// the write refuses.
func With(ctx context.Context, s *Stop) context.Context {
	if ctx == nil {
		return nil
	}
	return context.WithValue(ctx, key{}, s)
}

// Of returns the stop of a write, nil for none.
func Of(ctx context.Context) *Stop {
	s, _ := ctx.Value(key{}).(*Stop)
	return s
}
