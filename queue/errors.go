package queue

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

var (
	// ErrLost is matched by the error of ending a delivery that had ended before: its session was over, or an
	// operator changed the item. Nothing was changed. It is also the cause of the end of a handler's context.
	ErrLost = work.ErrLost

	// ErrWorking is returned by [Queue.Work] of a queue that is worked on by an earlier call.
	ErrWorking = errors.New("Work is called already")

	// ErrAbandoned is matched by the error of [Queue.Work] if handlers did not return in time. Their goroutines may
	// go on.
	ErrAbandoned = work.ErrAbandoned
)

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
func (*KeyReusedError) Unwrap() error { return disposition.Parked }
