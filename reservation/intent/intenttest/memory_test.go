package intenttest_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation/intent"
	"github.com/dibs-go/dibs/reservation/intent/intenttest"
)

func TestIntentsInMemory(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, intenttest.Options{
		Open: func(*testing.T) intent.Store { return messagestore.New(memory.New(), nil) },
		OpenWithClock: func(_ *testing.T, clock func() time.Time) intent.Store {
			return messagestore.New(memory.NewWithClock(clock), nil)
		},
		Bubble: true,
	})
}
