package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
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

// A slow message occupies one worker, and only messages of its own cardinal id wait
// behind it.
func TestSlowMessagesHoldUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 700 {
			stream := account.Stream(fmt.Sprint(i % 100))
			if i%100 == 0 {
				stream = account.Stream(fmt.Sprintf("slow%d", i))
			}
			write(t, store, stream, Deposited{i})
		}
		var fast atomic.Int64
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if strings.HasPrefix(m.Stream.ID(), "slow") {
				time.Sleep(10 * time.Minute)
			} else {
				fast.Add(1)
			}
			return nil
		}), &consumer.Config{Concurrency: 8})
		start := time.Now()
		stop := running(t, c)
		time.Sleep(time.Minute)
		synctest.Wait()

		require.Equal(t, int64(693), fast.Load())
		time.Sleep(10 * time.Minute)
		require.Equal(t, int64(700), c.Stats().Handled)
		require.NoError(t, stop())
		require.Less(t, time.Since(start), 20*time.Minute) // the slow ones were slow together
	})
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

// A read that is under way may be too early for the message of a wake-up.
func TestABellThatRingsDuringAReadIsHeard(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"Here": false, "WhoKnowsWhere": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &rungStore{tap: &tap{Store: newStore()}, bell: make(chan messagestore.GlobalPosition)}
				var late atomic.Bool
				store.read = func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
					page, err := store.Store.ReadCategoryPage(t.Context(), q)
					if late.CompareAndSwap(true, false) {
						written, err := store.Store.Write(t.Context(), "account-1", messagestore.AnyVersion, Deposited{1})
						require.NoError(t, err)
						if elsewhere {
							written.GlobalPosition = 0
						}
						store.bell <- written.GlobalPosition
					}
					return &page, err
				}
				c := newConsumer(t, store, &journal{}, &consumer.Config{PollInterval: time.Hour})
				stop := running(t, c)
				time.Sleep(10 * time.Hour)
				before := time.Now()
				late.Store(true)
				store.bell <- 0
				synctest.Wait()

				require.Equal(t, int64(1), c.Stats().Handled)
				require.Zero(t, time.Since(before))
				require.NoError(t, stop())
			})
		})
	}
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

// A message that is being parked is in flight too.
func TestAMessageThatIsBeingParkedCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(slowToPark{newDriver()}, nil))
		for i := range 10 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		var inHand, most atomic.Int64
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Stream == "account-0" {
				return errHopeless
			}
			if n := inHand.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer inHand.Add(-1)
			time.Sleep(time.Second)
			return nil
		}), &consumer.Config{Concurrency: 2})

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, int64(1), most.Load())
		require.Equal(t, int64(1), c.Stats().Parked)
	})
}

type slowToPark struct{ queuing.Driver }

func (d slowToPark) QueuePark(ctx context.Context, p queuing.Parking) (bool, error) {
	time.Sleep(14 * time.Second)
	return d.Driver.QueuePark(ctx, p)
}

// Messages that are written while the workers are busy are read together, and before the
// workers run out of them. A page holds one message at least, and no second one if the first
// is as large as the driver's bound of a page.
func TestAPageThatHoldsNoSecondMessageIsNoEnd(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*consumer.Config{"Whole": {}, "Types": {OnlyKnown: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				write(t, store, "account-1", Deposited{1}, Deposited{2}, Withdrawn{}, Deposited{3})
				var reads atomic.Int64
				tapped := &tap{Store: store, read: func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
					reads.Add(1)
					q.Limit = 1
					page, err := store.ReadCategoryPage(t.Context(), q)
					return &page, err
				}}
				j := &journal{}
				require.NoError(t, newConsumer(t, tapped, j, config).CatchUp(t.Context()))
				require.GreaterOrEqual(t, len(j.all()), 3)
				require.Less(t, reads.Load(), int64(25))

				stop := running(t, newConsumer(t, tapped, j, config))
				before := len(j.all())
				write(t, store, "account-2", Deposited{1}, Deposited{2}, Deposited{3})
				time.Sleep(time.Minute)
				require.Len(t, j.all(), before+3)
				require.NoError(t, stop())
			})
		})
	}
}

func TestABusyConsumerReadsSeldomAndInTime(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			var reads atomic.Int64
			tapped := &tap{Store: store, read: func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
				if q.Limit == 1 { // to see whether a message is still there
					return nil, nil
				}
				reads.Add(1)
				time.Sleep(80 * time.Millisecond)
				return nil, nil
			}}
			c := newConsumer(t, tapped, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
				time.Sleep(100 * time.Millisecond)
				return nil
			}), &consumer.Config{Concurrency: concurrency, PollInterval: time.Hour})
			stop := running(t, c)
			time.Sleep(time.Second)
			before := reads.Load()
			for i := range 1000 {
				write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
				time.Sleep(20 * time.Millisecond)
			}
			require.LessOrEqual(t, reads.Load()-before, int64(20))
			time.Sleep(100*time.Second/time.Duration(concurrency) - 20*time.Second + 100*time.Millisecond)
			synctest.Wait()

			require.Equal(t, int64(1000), c.Stats().Handled) // which it was never without
			require.NoError(t, stop())
		})
	}
}
