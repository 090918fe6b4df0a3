package intenttest_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/intenttest"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A forgettingStore passes for one whose intents can be removed, so that all of the suite runs in memory.
type forgettingStore struct{ *messagestore.Store }

func (forgettingStore) Forgets() bool { return true }

func TestIntentsInMemory(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, intenttest.Options{
		Open: func(*testing.T) intent.Store { return forgettingStore{must.New(messagestore.New(memory.New(), nil))} },
		OpenWithClock: func(_ *testing.T, clock func() time.Time) intent.Store {
			return must.New(messagestore.New(memory.NewWithClock(clock), nil))
		},
		Bubble: true,
	})
}
