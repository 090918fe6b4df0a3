package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

func TestRunGoesOnWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*tap){
		"Reads": func(s *tap) {
			s.read = func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return nil, errStore }
		},
		"Writes": func(s *tap) { s.write = func(messagestore.StreamName) error { return errStore } },
		"Looks":  func(s *tap) { s.look = func(messagestore.StreamName) error { return errStore } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &tap{Store: newStore()}
				write(t, store.Store, "account-1", Deposited{1})
				store.set(spoil)
				var log bytes.Buffer
				c := newConsumer(t, store, &journal{}, &consumer.Config{Logger: logger.Zerolog(zerolog.New(&log)), PollInterval: 100 * time.Millisecond})
				stop := running(t, c)
				time.Sleep(10 * time.Minute)
				require.NotZero(t, c.Stats().StoreErrors)
				require.Less(t, c.Stats().StoreErrors, int64(2*10*60+20)) // at most two a second: it does not spin
				require.Zero(t, c.Stats().Position)

				store.set(func(s *tap) { s.read, s.write, s.look = nil, nil, nil })
				time.Sleep(1200 * time.Millisecond) // a second since it last tried, and the reading

				require.Equal(t, int64(1), c.Stats().Handled)
				require.Equal(t, c.Stats().Head+1, c.Stats().Position)
				require.NoError(t, stop())
				require.Contains(t, log.String(), `"error":"`)
				require.Contains(t, log.String(), errStore.Error())
			})
		})
	}
}

func TestCatchUpReturnsTheStoresError(t *testing.T) {
	t.Parallel()
	for _, spoil := range []func(*tap){
		func(s *tap) {
			s.read = func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return nil, errStore }
		},
		func(s *tap) { s.write = func(messagestore.StreamName) error { return errStore } },
		func(s *tap) { s.look = func(messagestore.StreamName) error { return errStore } },
	} {
		store := &tap{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1})
		store.set(spoil)
		require.ErrorIs(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()), errStore)
	}
}

func TestRunStopsAtAnErrorThatDoesNotHeal(t *testing.T) {
	t.Parallel()
	for _, lasting := range []error{
		lastingError{},
		messagestore.ErrNotSupported,
		messagestore.NewInvalidError("category", "x", "no"),
	} {
		for _, spoil := range []func(*tap){
			func(s *tap) {
				s.read = func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return nil, lasting }
			},
			func(s *tap) { s.write = func(messagestore.StreamName) error { return lasting } },
			func(s *tap) { s.look = func(messagestore.StreamName) error { return lasting } },
		} {
			store := &tap{Store: newStore()}
			write(t, store.Store, "account-1", Deposited{1})
			store.set(spoil)
			require.ErrorIs(t, runForAWhile(t, newConsumer(t, store, &journal{}, nil)), lasting)
		}
	}
}

// A store that does not say how far it looked would be read for ever.
func TestAPageThatLeadsNowhereIsAnError(t *testing.T) {
	t.Parallel()
	for _, page := range []messagestore.CategoryPage{{More: true}, {Next: -1}} {
		store := &tap{Store: newStore(), read: func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return &page, nil }}
		require.ErrorContains(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()), "read category account: the store answers 0 with next")
	}
}

// A consumer gives up a read that hangs, and asks for smaller batches.
func TestAReadThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for range 100 {
			write(t, store, "account-1", Deposited{1})
		}
		c := newConsumer(t, &hanging{Store: store, most: 10}, &journal{}, nil)
		stop := running(t, c)
		time.Sleep(5 * time.Minute)

		require.Equal(t, int64(100), c.Stats().Handled)
		require.NoError(t, stop())
	})
}

// A hanging store does not answer a read of too many messages.
type hanging struct {
	*messagestore.Store
	most int
}

func (s *hanging) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if q.Limit > s.most {
		<-ctx.Done()
		return messagestore.CategoryPage{}, ctx.Err()
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

// A slow store lets each call wait, and one of them for ever.
type slow struct {
	*messagestore.Store
	pause time.Duration
	hangs int64 // which call, from 1
	calls atomic.Int64
}

func (s *slow) wait(ctx context.Context) error {
	pause := s.pause
	if s.calls.Add(1) == s.hangs {
		pause = 1000 * time.Hour
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}

func (s *slow) Epoch(ctx context.Context) (string, error) {
	if err := s.wait(ctx); err != nil {
		return "", err
	}
	return s.Store.Epoch(ctx)
}

func (s *slow) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	return s.Store.Last(ctx, stream)
}

func (s *slow) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if err := s.wait(ctx); err != nil {
		return messagestore.CategoryPage{}, err
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

func (s *slow) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if err := s.wait(ctx); err != nil {
		return messagestore.Written{}, err
	}
	return s.Store.Write(ctx, stream, expected, bodies...)
}

// The calls of a start: the epoch, the ledger, the last checkpoint, the one with which the consumer joins its group, and
// the message before it.
func TestAStartThatHangsIsGivenUpAndTriedAgain(t *testing.T) {
	t.Parallel()
	for call := int64(1); call <= 5; call++ {
		t.Run(fmt.Sprint(call), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &slow{Store: newStore(), hangs: call}
				write(t, store.Store, "account-1", Deposited{1})
				require.NoError(t, newConsumer(t, store.Store, &journal{}, nil).CatchUp(t.Context()))
				c := newConsumer(t, store, &journal{}, nil)
				stop := running(t, c)
				time.Sleep(14 * time.Second)
				require.Zero(t, c.Stats(), "it waits for the store")

				time.Sleep(2 * time.Second)

				require.Equal(t, int64(1), c.Stats().StoreErrors)
				require.Equal(t, messagestore.GlobalPosition(2), c.Stats().Position)
				require.NoError(t, stop())
			})
		})
	}
}

func TestAStartThatHangsStopsWhenItIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newConsumer(t, &slow{Store: newStore(), hangs: 1}, &journal{}, nil)
		stop := running(t, c)
		time.Sleep(time.Second)
		before := time.Now()

		require.NoError(t, stop())

		require.Zero(t, time.Since(before))
		require.Zero(t, c.Stats().StoreErrors)
	})
}

func TestLogsHoldNoContent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", raw("Deposited", `{"secret": "canary"}`))
		var log bytes.Buffer
		c := newConsumer(t, store, always(errBroken), &consumer.Config{
			Logger: logger.Zerolog(zerolog.New(&log)),
			Errors: consumer.ErrorPolicy{Then: consumer.ParkMessage},
		})

		require.NoError(t, c.CatchUp(t.Context()))

		require.NotContains(t, log.String(), "canary")
		require.Contains(t, log.String(), `"message":"message parked"`)
		require.Contains(t, log.String(), `"message":"consumer started"`)
	})
}
