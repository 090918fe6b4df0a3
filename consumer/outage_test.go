package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/saga"
)

// All lines of a service are counted: of five consumers, a clock, the look at the heads and the session
// that listens.
func TestAnOutageOfTheServerIsTwoLinesOfTheWholeService(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedOn(t, pgtest.Server(t))
	var log logbook
	warnings := logger.Zerolog(zerolog.New(&log).Level(zerolog.WarnLevel))
	driver, err := postgres.Open(t.Context(), url, &postgres.Config{Logger: warnings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	store := testkit.Must(messagestore.New(driver, &messagestore.Config{Logger: warnings}))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	write(t, store, "account-1", Deposited{1})
	consumers := make([]*consumer.Consumer, 5)
	for i := range consumers {
		c := newNamed(store, account, fmt.Sprintf("c%d", i), always(nil), &consumer.Config{Start: consumer.FromStart(), Logger: warnings})
		consumers[i] = c
		running.Go(func() { _ = c.Run(ctx) })
	}
	trips := testkit.Must(saga.New(store, "booking", func(*saga.Run, int) (int, error) { return 0, nil }, nil, &saga.Config{Logger: warnings}))
	running.Go(func() { _ = trips.Run(ctx) })
	handled := func(n int64) func() bool {
		return func() bool {
			for _, c := range consumers {
				if c.Stats().Handled < n || c.Stats().Position < messagestore.GlobalPosition(n) {
					return false
				}
			}
			return true
		}
	}
	testkit.AwaitTrue(t, "the first message is handled", handled(1))
	before := len(log.of(t, ""))

	start := pgtest.Stop(t, url)
	testkit.AwaitTrue(t, "each consumer has failed often", func() bool {
		for _, c := range consumers {
			if c.Stats().StoreErrors < 5 {
				return false
			}
		}
		return true
	})
	start()
	testkit.AwaitTrue(t, "the end of the outage", func() bool { return len(log.of(t, "store is back")) > 0 })
	write(t, store, "account-1", Deposited{2})
	testkit.AwaitTrue(t, "the second message is handled", handled(2))

	all := log.of(t, "")[before:]
	require.Len(t, all, 2)
	require.Equal(t, "store failed: trying again", all[0]["message"])
	require.Equal(t, "store is back", all[1]["message"])
	require.NotEmpty(t, all[1]["after"])
	require.Greater(t, all[1]["errors"], 25.0)
}

// A consumer that says nothing, and the store's look at the heads without a logger, leave the first line to
// a consumer that has one.
func TestAnOutageIsSaidByACallerThatHasALogger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		var log logbook
		silent := running(t, newNamed(store, account, "silent", always(nil), &consumer.Config{Logger: logger.Silent()}))
		heard := running(t, newNamed(store, account, "heard", always(nil), &consumer.Config{Logger: log.logger()}))
		time.Sleep(time.Minute)
		store.set(func(s *tap) {
			s.read = func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return nil, errStore }
		})
		time.Sleep(30 * time.Second)
		store.set(func(s *tap) { s.read = nil })
		time.Sleep(30 * time.Second)

		require.Len(t, log.of(t, "store failed: trying again"), 1)
		require.Len(t, log.of(t, "store is back"), 1)
		require.NoError(t, silent())
		require.NoError(t, heard())
	})
}

// A failure of a handler while the store is away is not the message's: nothing of it counts, and the lines are
// those of the outage, however long it lasts.
func TestAnOutageIsNoFailureOfTheMessagesAtWork(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]consumer.FailureAction{"stop": consumer.StopConsumer, "park": consumer.ParkMessage} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &leaving{Store: newStore()}
				var log logbook
				var handled atomic.Int64
				c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
					time.Sleep(time.Second) // so that the store goes away meanwhile
					if _, err := store.Now(ctx); err != nil {
						return fmt.Errorf("my own statement: %w", err)
					}
					handled.Add(1)
					return nil
				}), &consumer.Config{Logger: logger.Zerolog(zerolog.New(&log).Level(zerolog.InfoLevel)), Start: consumer.FromStart(), Concurrency: 5, Errors: consumer.ErrorPolicy{Then: then}})
				for i := range 10 {
					write(t, store.Store, messagestore.StreamName(fmt.Sprintf("account-%d", i)), Deposited{i})
				}
				stop := running(t, c)
				time.Sleep(500 * time.Millisecond)
				store.away.Store(true)
				time.Sleep(8 * time.Minute) // and the policy gives up after five
				store.away.Store(false)
				time.Sleep(20 * time.Second)

				require.EqualValues(t, 10, handled.Load())
				require.NoError(t, stop())
				require.Zero(t, c.Stats().Failed)
				require.Zero(t, c.Stats().Parked)
				require.Empty(t, log.of(t, "handler failed"))
				require.Len(t, log.of(t, "store failed: trying again"), 1)
				require.Len(t, log.of(t, "store is back"), 1)
			})
		})
	}
}

// What fails by itself counts after an outage as it did before.
func TestAFailureAfterAnOutageCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &leaving{Store: newStore()}
		c := newConsumer(t, store, always(errors.New("it is the message")), &consumer.Config{Start: consumer.FromStart(), Errors: consumer.ErrorPolicy{Then: consumer.ParkMessage}})
		write(t, store.Store, "account-1", Deposited{1})
		stop := running(t, c)
		time.Sleep(4 * time.Minute)
		before := c.Stats().Failed
		require.Positive(t, before)
		store.away.Store(true)
		time.Sleep(8 * time.Minute)
		require.Equal(t, before, c.Stats().Failed)
		store.away.Store(false)
		time.Sleep(4 * time.Minute)
		require.Zero(t, c.Stats().Parked, "the outage is no part of the policy's five minutes")
		time.Sleep(2 * time.Minute)
		require.EqualValues(t, 1, c.Stats().Parked)
		require.Greater(t, c.Stats().Failed, before)
		require.NoError(t, stop())
	})
}

// A consumer that is idle looks whether what failed works, or the end would never be said. Here that is a look
// at the replicas, because of a bell that did not tell how far to read; the next bell tells.
func TestTheEndOfAnOutageIsSaidByAnIdleConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &leaving{Store: newStore(), bell: make(chan messagestore.GlobalPosition, 1)}
		var log logbook
		stop := running(t, newConsumer(t, store, always(nil), &consumer.Config{Logger: log.logger()}))
		time.Sleep(time.Minute)
		store.away.Store(true)
		store.bell <- 0
		time.Sleep(30 * time.Second)
		store.bell <- 1
		time.Sleep(5 * time.Second)
		store.away.Store(false)
		time.Sleep(30 * time.Second)

		require.Len(t, log.of(t, "store failed: trying again"), 1)
		require.Len(t, log.of(t, "store is back"), 1)
		require.NoError(t, stop())
	})
}

// A leaving store is away as long as a test says so.
type leaving struct {
	*messagestore.Store

	away atomic.Bool
	bell chan messagestore.GlobalPosition // of the positions, if there is one
}

func (s *leaving) Watch(category messagestore.Category, interval time.Duration) (<-chan messagestore.GlobalPosition, func()) {
	if s.bell != nil && category == positions {
		return s.bell, func() {}
	}
	return s.Store.Watch(category, interval)
}

func (s *leaving) err() error {
	if s.away.Load() {
		return errStore
	}
	return nil
}

func (s *leaving) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if err := s.err(); err != nil {
		return messagestore.Written{}, err
	}
	return s.Store.Write(ctx, stream, expected, bodies...)
}

func (s *leaving) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	if err := s.err(); err != nil {
		return func(yield func(*messagestore.Message, error) bool) { yield(nil, err) }
	}
	return s.Store.ReadStream(ctx, stream, from)
}

func (s *leaving) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if err := s.err(); err != nil {
		return messagestore.CategoryPage{}, err
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

func (s *leaving) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if err := s.err(); err != nil {
		return nil, err
	}
	return s.Store.Last(ctx, stream)
}

func (s *leaving) Driver() (messagestore.Driver, error) {
	if err := s.err(); err != nil {
		return nil, err
	}
	return s.Store.Driver()
}

func (s *leaving) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	if err := s.err(); err != nil {
		return 0, err
	}
	return s.Store.Version(ctx, stream)
}

func (s *leaving) Now(ctx context.Context) (time.Time, error) {
	if err := s.err(); err != nil {
		return time.Time{}, err
	}
	return s.Store.Now(ctx)
}

func (s *leaving) End(ctx context.Context, category messagestore.Category) (messagestore.GlobalPosition, error) {
	if err := s.err(); err != nil {
		return 0, err
	}
	return s.Store.End(ctx, category)
}

func (s *leaving) PositionAt(ctx context.Context, category messagestore.Category, at time.Time) (messagestore.GlobalPosition, error) {
	if err := s.err(); err != nil {
		return 0, err
	}
	return s.Store.PositionAt(ctx, category, at)
}

// A store that fails at something each second for a moment is said twice in ten seconds, and not each time.
func TestAStoreThatComesAndGoesIsNotSaidEachTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		var log logbook
		stop := running(t, newConsumer(t, store, always(nil), &consumer.Config{Logger: log.logger()}))
		time.Sleep(time.Minute)
		for i := range 60 {
			store.set(func(s *tap) { s.write = func(messagestore.StreamName) error { return errStore } })
			write(t, store.Store, "account-1", Deposited{i})
			time.Sleep(1500 * time.Millisecond)
			store.set(func(s *tap) { s.write = nil })
			time.Sleep(1500 * time.Millisecond)
		}

		require.InDelta(t, 180/12, len(log.of(t, "store failed: trying again")), 4)
		require.Len(t, log.of(t, "store is back"), len(log.of(t, "store failed: trying again")))
		require.NoError(t, stop())
	})
}
