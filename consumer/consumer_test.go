package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

const account messagestore.Category = "account"

// Deposited is the event that the tests write.
type Deposited struct {
	Amount int `json:"amount"`
}

func (Deposited) MessageType() string { return "Deposited" }

type Withdrawn struct{}

func (Withdrawn) MessageType() string { return "Withdrawn" }

// A journal is a handler that notes its messages.
type journal struct {
	mu   sync.Mutex
	seen []string
}

func (j *journal) Handle(_ context.Context, m *messagestore.Message) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen = append(j.seen, fmt.Sprintf("%s@%d", m.Stream, m.Position))
	return nil
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.seen...)
}

func newDriver() queuing.Driver { return memory.New() }

func newStore() *messagestore.Store { return testkit.Must(messagestore.New(newDriver(), nil)) }

func write(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, bodies ...messagestore.Body) {
	t.Helper()
	_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...)
	require.NoError(t, err)
}

func newConsumer(t *testing.T, store consumer.Store, h consumer.Handler, config *consumer.Config) *consumer.Consumer {
	t.Helper()
	return newNamed(store, account, "ledger", h, config)
}

// running starts c in a bubble. The function stop ends the run and returns its error.
func running(t *testing.T, c *consumer.Consumer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return testkit.Receive(t, "the run ends", done)
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// runForAWhile runs c, which is expected to end by itself.
func runForAWhile(t *testing.T, c *consumer.Consumer) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	return c.Run(ctx)
}

var errBroken = errors.New("broken")

func TestCatchUpHandlesEverythingOnce(t *testing.T) {
	t.Parallel()
	store := newStore()
	j := &journal{}
	for range 3 {
		write(t, store, "account-1", Deposited{1})
		write(t, store, "account-2", Deposited{2})
		require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
	}

	require.Equal(t, []string{"account-1@0", "account-2@0", "account-1@1", "account-2@1", "account-1@2", "account-2@2"}, j.all())
}

func TestCatchUpHandlesWhatHandlersWrite(t *testing.T) {
	t.Parallel()
	store := newStore()
	count := 0
	h := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		if count++; count == 10 {
			return nil
		}
		_, err := store.Write(ctx, m.Stream, m.Position, messagestore.Follow(m, Deposited{count}))
		return err
	})
	write(t, store, "account-1", Deposited{0})

	require.NoError(t, newConsumer(t, store, h, nil).CatchUp(t.Context()))

	require.Equal(t, 10, count)
}

func TestRunStopsCleanly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		j := &journal{}
		stop := running(t, newConsumer(t, store, j, &consumer.Config{PollInterval: time.Minute}))
		synctest.Wait()
		write(t, store, "account-1", Deposited{1})
		synctest.Wait()

		require.Equal(t, []string{"account-1@0"}, j.all())
		require.NoError(t, stop())
	})
}

func TestAFailingHandlerStopsTheConsumerBeforeItsMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for range 3 {
			write(t, store, "account-1", Deposited{1})
		}
		var calls int
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Position == 1 {
				calls++
				return errBroken
			}
			return nil
		}), &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: 10 * time.Millisecond, MaxBackoff: time.Hour}}})

		err := runForAWhile(t, c)

		require.ErrorIs(t, err, errBroken)
		failed, ok := errors.AsType[*consumer.MessageError](err)
		require.True(t, ok)
		require.Equal(t, messagestore.Version(1), failed.Position)
		require.Equal(t, 2, calls)
		require.Equal(t, "consumer ledger of account: handle Deposited account-1@1, tried 2 times: broken", err.Error())

		j := &journal{}
		require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
		require.Equal(t, []string{"account-1@1", "account-1@2"}, j.all())
	})
}

func TestParkGoesOnWithTheNextMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for range 3 {
			write(t, store, "account-1", Deposited{1})
		}
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Position == 1 {
				return errBroken
			}
			return nil
		}), &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: 10 * time.Millisecond}, Then: consumer.ParkMessage}})

		require.NoError(t, c.CatchUp(t.Context()))

		stats := c.Stats()
		require.Equal(t, int64(2), stats.Handled)
		require.Equal(t, int64(1), stats.Parked)
		require.Equal(t, int64(2), stats.Failed)
		require.Equal(t, int64(1), stats.Retried)
	})
}

// parkAtOnce and stopAtOnce are policies without a retry.
var (
	parkAtOnce = consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage}
	stopAtOnce = consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}
)

// errHopeless asks to be parked.
var errHopeless = handler.Park(errors.New("hopeless"))

func requireGraceExceeded(t *testing.T, err error) {
	t.Helper()
	_, is := errors.AsType[*consumer.GraceExceededError](err)
	require.True(t, is, "%v", err)
}

// knowing returns h as a handler that knows these types.
func knowing(h consumer.Handler, types ...string) consumer.Handler { return knower{h, types} }

type knower struct {
	consumer.Handler

	types []string
}

func (k knower) Types() []string { return k.types }

// newNamed is tryNamed where that does not fail. It polls once a second, since the writes of tests wake
// consumers, and hours in a bubble are made of polls.
func newNamed(store consumer.Store, category messagestore.Category, name string, h consumer.Handler, config *consumer.Config) *consumer.Consumer {
	var seldom consumer.Config
	if config != nil {
		seldom = *config
	}
	if seldom.PollInterval == 0 {
		seldom.PollInterval = time.Second
	}
	return testkit.Must(tryNamed(store, category, name, h, &seldom))
}

// tryNamed is [consumer.New] without a word on standard error. With OnlyKnown, a handler that does not tell
// its types knows Deposited.
func tryNamed(store consumer.Store, category messagestore.Category, name string, h consumer.Handler, config *consumer.Config) (*consumer.Consumer, error) {
	var quiet consumer.Config
	if config != nil {
		quiet = *config
	}
	if quiet.Logger.IsZero() {
		quiet.Logger = logger.Silent()
	}
	if _, tells := h.(interface{ Types() []string }); quiet.OnlyKnown && !tells {
		h = knowing(h, Deposited{}.MessageType())
	}
	return consumer.New(store, category, name, h, &quiet)
}
