package queue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

var (
	// ErrLost is matched by the error of ending a delivery that had ended before: its session was over, or an
	// operator changed the item. Nothing was changed. It is also the cause of the end of a handler's context.
	ErrLost = work.ErrLost

	// ErrWorking is returned by [Queue.Work] of a queue that is worked on by an earlier call.
	ErrWorking = errors.New("Work is called already")

	// ErrRemoved is matched by the error of a call for a queue that was removed ([Queue.Remove]). [Queue.Work] ends with it.
	ErrRemoved = queuing.ErrRemoved

	// ErrTooManyQueues is matched by the error of a call that would make one more queue of a category that has 100.
	// [Queue.Work] ends with it.
	ErrTooManyQueues = queuing.ErrTooManyQueues

	// ErrAbandoned is matched by the error of [Queue.Work] if handlers did not return in time. Their goroutines may
	// go on.
	ErrAbandoned = work.ErrAbandoned
)

// An UnfinishedError says that a queue was not removed, since there are items that are not finished, and how many. Waiting is
// counted up to 100,000.
type UnfinishedError struct {
	Waiting, Out, Later, Suspended, Held, Dead int64
}

// Error counts them.
func (e *UnfinishedError) Error() string {
	var counts []string
	for _, of := range []struct {
		n     int64
		state State
	}{{e.Waiting, Waiting}, {e.Out, Out}, {e.Later, Later}, {e.Suspended, Suspended}, {e.Held, Held}, {e.Dead, Dead}} {
		if of.n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", of.n, of.state))
		}
	}
	return "items are not finished: " + strings.Join(counts, ", ")
}

// A KeyReusedError says that an item with the same unique key and another type or other data was inserted before.
type KeyReusedError struct {
	Key string
	Met *messagestore.Message
}

// Error names the key and the item that was met.
func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("unique key %.80q: it is of another item, %s", e.Key, e.Met)
}

// Unwrap says that a handler that returns it parks its message.
func (*KeyReusedError) Unwrap() error { return failure.Parked }
