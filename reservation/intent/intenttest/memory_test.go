package intenttest_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation/intent"
	"github.com/dibs-go/dibs/reservation/intent/intenttest"
)

// A forgettingStore passes for one whose intents can be removed, so that all of the suite runs in memory.
type forgettingStore struct{ *messagestore.Store }

func (forgettingStore) ForgetsIntents() bool { return true }

func TestIntentsInMemory(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, intenttest.Options{
		Open: func(*testing.T) intent.Store { return forgettingStore{messagestore.New(memory.New(), nil)} },
		OpenWithClock: func(_ *testing.T, clock func() time.Time) intent.Store {
			return messagestore.New(memory.NewWithClock(clock), nil)
		},
		Bubble: true,
	})
}
