package intenttest_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/intenttest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A forgettingStore passes for one whose intents can be removed, so that all of the suite runs in memory.
type forgettingStore struct{ *messagestore.Store }

func (forgettingStore) Forgets() bool { return true }

func TestIntentsInMemory(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, intenttest.Options{
		Open: func(*testing.T) intent.Store {
			return forgettingStore{testkit.Must(messagestore.New(memory.New(), nil))}
		},
		OpenWithClock: func(_ *testing.T, clock func() time.Time) intent.Store {
			return testkit.Must(messagestore.New(memory.NewWithClock(clock), nil))
		},
		Bubble: true,
	})
}

// A manager over another one keeps the same promises.
func TestIntentsOverAManager(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, intenttest.Options{
		Open: func(*testing.T) intent.Store {
			return forgettingStore{testkit.Must(messagestore.New(memory.New(), nil))}
		},
		OpenWithClock: func(_ *testing.T, clock func() time.Time) intent.Store {
			return testkit.Must(messagestore.New(memory.NewWithClock(clock), nil))
		},
		Over: func(_ *testing.T, store intent.Store, category messagestore.Category, config *intent.Config) (*intent.Manager, error) {
			var keeps intent.Config
			if config != nil {
				keeps = *config
			}
			asks := keeps
			keeps.Heartbeat, asks.Turn = 0, 0
			m, err := intent.New(store, category, &keeps)
			if err != nil {
				return nil, err
			}
			return intent.NewOver(m, category, &asks)
		},
		Bubble: true,
	})
}

// Of two processes that leave a line at once one comes second, and leaves by another step.
func TestOfTwoThatLeaveAtOnceBothLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &gathering{Store: testkit.Must(messagestore.New(memory.New(), nil))}
		managers := make([]*intent.Manager, 3)
		for i := range managers {
			var err error
			managers[i], err = intent.New(store, "payment:intent", nil)
			require.NoError(t, err)
		}
		holder, err := managers[0].Reserve(t.Context(), intent.Request{Key: "k", Content: 1, Session: "holder"})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i, m := range managers[1:] {
			all.Go(func() {
				_, err := m.Reserve(ctx, intent.Request{Key: "k", Content: 1, Session: fmt.Sprint("w", i), Wait: time.Hour})
				require.ErrorIs(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		met, err := managers[0].Lookup(t.Context(), "", "k")
		require.NoError(t, err)
		require.Len(t, met.Line, 2)

		store.missing.Store(2)
		cancel()
		all.Wait()

		require.LessOrEqual(t, store.missing.Load(), int64(0), "both have looked before one has left")
		met, err = managers[0].Lookup(t.Context(), "", "k")
		require.NoError(t, err)
		require.Empty(t, met.Line)
		require.NoError(t, holder.Lease.Release(t.Context(), ""))
	})
}

// In a gathering store the looks at a stream wait until none is missing, for a minute.
type gathering struct {
	*messagestore.Store

	missing atomic.Int64
}

func (s *gathering) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	m, err := s.Store.Last(ctx, stream)
	s.missing.Add(-1)
	for i := 0; i < 60_000 && s.missing.Load() > 0; i++ {
		time.Sleep(time.Millisecond)
	}
	return m, err
}
