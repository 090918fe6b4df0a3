package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/alarm"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
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
	store := messagestore.New(driver, &messagestore.Config{Logger: warnings})
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
	clock := alarm.New(store, "booking:saga", &alarm.Config{Logger: warnings})
	running.Go(func() { _ = clock.Run(ctx) })
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
	await.True(t, "the first message is handled", handled(1))
	before := len(log.of(t, ""))

	start := pgtest.Stop(t, url)
	await.True(t, "each consumer has failed often", func() bool {
		for _, c := range consumers {
			if c.Stats().StoreErrors < 5 {
				return false
			}
		}
		return true
	})
	start()
	await.True(t, "the end of the outage", func() bool { return len(log.of(t, "store is back")) > 0 })
	write(t, store, "account-1", Deposited{2})
	await.True(t, "the second message is handled", handled(2))

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
