package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// However many messages are there to be taken, however fast.
func TestNoMessageIsBegunOnceTheContextIsDone(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 2000 {
		write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
	}
	for i, stopAt := range []int64{1, 100, 1000} {
		ctx, cancel := context.WithCancel(t.Context())
		var calls int64
		c := newNamed(store, account, fmt.Sprintf("ledger%d", i), handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			if calls++; calls == stopAt {
				cancel()
			}
			return nil
		}), nil)

		require.NoError(t, c.Run(ctx))

		require.Equal(t, stopAt, calls)
		require.Equal(t, calls, c.Stats().Handled)
		require.Equal(t, messagestore.GlobalPosition(stopAt+1), c.Stats().Position)
	}
}

// A run that stops still parks a message whose handler failed for good.
func TestWhatFailsForGoodWhileTheRunStopsIsParked(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			write(t, store, "account-1", Deposited{1}, Deposited{2})
			c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
				time.Sleep(2 * time.Second)
				return errHopeless
			}), &consumer.Config{Concurrency: concurrency})
			stop := running(t, c)
			time.Sleep(time.Second)

			require.NoError(t, stop())

			require.Equal(t, consumer.Stats{Failed: 1, Parked: 1, Head: 2, Position: 2}, c.Stats())
		})
	}
}

// The data that a consumer holds is bounded, for messages of any size.
func TestLargeMessagesAreReadInSmallBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const small, messages, size = 100, 300, 64 << 10
		store := newStore()
		for i := range messages {
			body := raw("Deposited", fmt.Sprintf(`{"note": %q}`, strings.Repeat("x", size)))
			if i < small {
				body.Data = json.RawMessage(`{}`)
			}
			write(t, store, "account-1", body)
		}
		var mu sync.Mutex
		held, heldLater := 0, 0
		var last messagestore.GlobalPosition
		tapped := &tap{Store: store}
		tapped.read = func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
			page, err := store.ReadCategoryPage(t.Context(), q)
			mu.Lock()
			defer mu.Unlock()
			for _, m := range page.Messages {
				if m.GlobalPosition > last { // else it was read before, and is not held
					held += len(m.Data)
					last = m.GlobalPosition
				}
			}
			return &page, err
		}
		c := newConsumer(t, tapped, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			time.Sleep(time.Second) // so that the next batch is there, if there is room
			mu.Lock()
			defer mu.Unlock()
			if m.Position >= messages/2 {
				heldLater = max(heldLater, held)
			}
			held -= len(m.Data)
			return nil
		}), nil)

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, int64(messages), c.Stats().Handled)
		require.Greater(t, heldLater, 4<<20) // there are two batches
		require.LessOrEqual(t, heldLater, 8<<20)
	})
}

// A rungStore gets its wake-ups from the test.
type rungStore struct {
	*tap
	bell chan messagestore.GlobalPosition
}

func (s *rungStore) Watch(category messagestore.Category, _ time.Duration) (<-chan messagestore.GlobalPosition, func()) {
	if category != account {
		return nil, func() {}
	}
	return s.bell, func() {}
}
