package queue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// The errors of queues on which callers may branch.
var (
	// ErrLost is returned when you end a delivery that had already ended: its session was over, or
	// an operator changed the item. Nothing was changed. It is also the cause with which a
	// handler's context is cancelled.
	ErrLost = work.ErrLost

	// ErrWorking is returned by [Queue.Work] while an earlier call works on the queue.
	ErrWorking = errors.New("Work was called already")

	// ErrRemoved is returned by a call for a queue that was removed ([Queue.Remove]). It ends
	// [Queue.Work].
	ErrRemoved = queuing.ErrRemoved

	// ErrTooManyQueues is returned by a call that would make one more queue in a category that has
	// 100. It ends [Queue.Work].
	ErrTooManyQueues = queuing.ErrTooManyQueues

	// ErrAbandoned is returned by [Queue.Work] if handlers did not return in time. Their goroutines
	// may go on.
	ErrAbandoned = work.ErrAbandoned
)

// An UnfinishedError says that a queue was not removed because it has unfinished items, and counts
// them. Waiting is counted up to 100,000.
type UnfinishedError struct {
	Waiting, Out, Later, Suspended, Held, Dead int64
}

// Error lists the counts.
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

// A KeyReusedError says that another item was inserted before with the same unique key, but another
// type or other data.
type KeyReusedError struct {
	Key string
	Met *messagestore.Message
}

// Error names the key and the earlier item.
func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("unique key %.80q: another item has it, %s", e.Key, e.Met)
}

// Unwrap makes a handler that returns the error park its message.
func (*KeyReusedError) Unwrap() error { return calling.Parked }
