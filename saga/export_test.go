package saga

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrFenced is the error of GoOn once another process has gone on.
var ErrFenced = errFenced

// Store is a store that a test may replace.
type Store = store

// NewOver is New over any store.
func NewOver[In, Out any](store Store, name string, f func(r *Run, in In) (Out, error), steps Steps, config *Config) (*Saga[In, Out], error) {
	return newSaga(store, name, f, steps, config)
}

// NewOperatorOver is NewOperator over any store.
func NewOperatorOver(store Store, category messagestore.Category, by string) (*Operator, error) {
	return newOperator(store, category, by)
}

// GoOn goes on with the saga of m's stream, as the consumer has it.
func GoOn(ctx context.Context, of answered, m *messagestore.Message) error {
	_, err := of.answered().goOn(ctx, m, true, nil)
	return err
}

// PauseOf is the pause before the next turn, after one that ended with the error.
func PauseOf(err error) time.Duration {
	t, is := errors.AsType[*turned](err)
	if !is {
		return 0
	}
	return t.Delay
}

// Turn is one turn of the saga whose first message is m, after so many that failed.
func (s *Saga[In, Out]) Turn(ctx context.Context, m *messagestore.Message, failures int) error {
	return s.core.turn(ctx, &work.Delivery{Item: queuing.Taking{Message: m, Failures: failures}}, nil)
}

// KeptBytes is how much a process keeps of the sagas of a definition.
func KeptBytes(of answered) int {
	k := of.answered().kept
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size
}

// MaxKeptBytes bounds that.
const MaxKeptBytes = maxKeptBytes

// Messages in the stream of a saga.
type (
	StartedEvent   = startedEvent
	BeganEvent     = beganEvent
	DoneEvent      = doneEvent
	FailedEvent    = failedEvent
	CompletedEvent = completedEvent
	RepliedEvent   = repliedEvent
	SignalledEvent = signalledEvent
	ResumedEvent   = resumedEvent
)

// OutsideTypes are the types of those that come from outside of a runner.
var OutsideTypes = outsideTypes
