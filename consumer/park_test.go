package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// park has the consumer of a name park all of a category.
func park(t *testing.T, store consumer.Store, category messagestore.Category, name string) {
	t.Helper()
	require.NoError(t, newIn(t, store, category, name, always(errHopeless), nil).CatchUp(t.Context()))
}

// queueOf returns the queue of the parked messages of a consumer, and its driver.
func queueOf(t *testing.T, store consumer.Store, category messagestore.Category, name string) (queuing.Queue, queuing.Driver) {
	t.Helper()
	driver, err := store.Driver()
	require.NoError(t, err)
	queues, is := driver.(queuing.Driver)
	require.True(t, is)
	if tapped, is := queues.(*tappedDriver); is {
		queues = tapped.Driver
	}
	return checkpoint.Consumer{Category: category, Name: name}.Parked(), queues
}

// parkedOf returns what a consumer has parked, also what is to be redriven.
func parkedOf(t *testing.T, store consumer.Store, category messagestore.Category, name string) (all []queuing.Item) {
	t.Helper()
	return itemsOf(t, store, category, name, queuing.Dead, queuing.Later, queuing.Held, queuing.Out)
}

func itemsOf(t *testing.T, store consumer.Store, category messagestore.Category, name string, states ...queuing.State) (all []queuing.Item) {
	t.Helper()
	q, driver := queueOf(t, store, category, name)
	for _, state := range states {
		items, err := driver.QueueItems(t.Context(), queuing.List{Queue: q, State: state, Limit: queuing.MaxItems})
		require.NoError(t, err)
		all = append(all, items...)
	}
	return all
}

// retry has the messages redriven that a consumer has parked: those at positions, or all. It
// returns how many.
func retry(t *testing.T, store consumer.Store, category messagestore.Category, name string, positions ...messagestore.GlobalPosition) int {
	t.Helper()
	if len(positions) == 0 {
		for _, item := range itemsOf(t, store, category, name, queuing.Dead) {
			positions = append(positions, item.Position)
		}
	}
	if len(positions) == 0 {
		return 0
	}
	q, driver := queueOf(t, store, category, name)
	changed, err := driver.QueueChange(t.Context(), queuing.Change{Queue: q, Action: queuing.RetryNow, Positions: positions})
	require.NoError(t, err)
	return len(changed)
}

// redrive has all redriven that ledger has parked, by a consumer with h that catches up, and
// returns how many messages are no longer parked.
func redrive(t *testing.T, store consumer.Store, h consumer.Handler) int {
	t.Helper()
	before := len(parkedOf(t, store, account, "ledger"))
	retry(t, store, account, "ledger")
	require.NoError(t, newConsumer(t, store, h, nil).CatchUp(t.Context()))
	return before - len(parkedOf(t, store, account, "ledger"))
}

// logOf returns the log of an item, a letter for each entry.
func logOf(t *testing.T, store consumer.Store, category messagestore.Category, name string, at messagestore.GlobalPosition) (log string) {
	t.Helper()
	q, driver := queueOf(t, store, category, name)
	item, err := driver.QueueItem(t.Context(), q, at)
	require.NoError(t, err)
	for _, entry := range item.Log {
		log += string(entry.What)
	}
	return log
}

func TestAParkedMessageIsAnItemWithItsError(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2})
		original, err := store.Last(t.Context(), category.Stream("1"))
		require.NoError(t, err)
		c := newIn(t, store, category, "ledger", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.ID == original.ID {
				return errBroken
			}
			return nil
		}), &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: time.Millisecond, MaxBackoff: time.Millisecond}, Then: consumer.ParkMessage}})

		require.NoError(t, c.CatchUp(t.Context()))

		parked := parkedOf(t, store, category, "ledger")
		require.Len(t, parked, 1)
		require.Equal(t, queuing.Dead, parked[0].State)
		require.Equal(t, original, parked[0].Message)
		require.Equal(t, "broken", parked[0].Error)
		require.Equal(t, int(c.Stats().Failed), parked[0].Failures)
		require.Greater(t, parked[0].Failures, 1)
		after, err := store.Last(t.Context(), category.Stream("1"))
		require.NoError(t, err)
		require.Equal(t, original, after, "nothing was copied")

		own, err := operate.Consumer(store, category, "ledger").Parked()
		require.NoError(t, err)
		status, err := own.Status(t.Context())
		require.NoError(t, err)
		require.True(t, status.Parked)
		require.EqualValues(t, 1, status.Dead)
		require.Equal(t, 1, positionsNow(t, store, category)[0].Parked)
	})
}

func TestAnErrorThatAsksForItIsParkedAtOnceUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Deposited{2})
	c := newConsumer(t, store, always(fmt.Errorf("wrapped: %w", errHopeless)), nil)

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, int64(2), c.Stats().Parked)
	require.Equal(t, int64(2), c.Stats().Failed)
	require.Equal(t, "wrapped: hopeless", parkedOf(t, store, account, "ledger")[0].Error)
}

// The process is killed between parking a message and its checkpoint.
func TestAMessageIsParkedOnce(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	store.write = func(stream messagestore.StreamName) error {
		if stream.Category() == positions && stream.ID() != "ledger" {
			return errStore
		}
		return nil
	}
	config := &consumer.Config{Errors: parkAtOnce}
	c := newConsumer(t, store, always(errBroken), config)
	require.ErrorIs(t, c.CatchUp(t.Context()), errStore)
	require.Len(t, parkedOf(t, store, account, "ledger"), 1)
	store.write = nil

	require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))

	require.Equal(t, "x", logOf(t, store, account, "ledger", 1))
}

// The checkpoint is set back by hand, so a message that was redriven is redelivered, and
// fails again.
func TestAMessageThatFailsAfterItWasRedrivenIsParkedAgain(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	var log bytes.Buffer
	config := &consumer.Config{Errors: parkAtOnce, Logger: logger.Zerolog(zerolog.New(&log))}
	require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))
	for range 2 {
		require.Equal(t, 1, redrive(t, store, &journal{}))
		write(t, store, "account:position-ledger+0", raw("Recorded", `{"position": 0, "after": "0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b"}`))
		log.Reset()

		require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))

		parked := parkedOf(t, store, account, "ledger")
		require.Len(t, parked, 1)
		require.Equal(t, 1, parked[0].Failures)
		require.Contains(t, log.String(), "message parked")
	}
	require.Equal(t, "xRxRx", logOf(t, store, account, "ledger", 1))
	require.Equal(t, 1, redrive(t, store, &journal{}))
}

// A consumer that was reset leaves a failing message to the new generation.
func TestAConsumerThatWasResetParksNothing(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	deliveries := 0
	c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
		if deliveries++; deliveries > 1 {
			return nil
		}
		_, err := operate.Consumer(store, account, "ledger").Reset(ctx, 0)
		return errors.Join(err, errHopeless)
	}), &consumer.Config{Errors: parkAtOnce})

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, 2, deliveries)
	require.Zero(t, c.Stats().Parked)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
}

// Nor is anything parked in a store that does not have it.
func TestAMessageThatTheStoreHasLostIsNotParked(t *testing.T) {
	t.Parallel()
	d := newReplaced()
	store := testkit.Must(messagestore.New(d, nil))
	write(t, store, "account-1", Deposited{1})
	c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
		d.by(d.restore(t, 1))
		return errHopeless
	}), nil)

	require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrPositionAhead)

	require.Zero(t, c.Stats().Parked)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
}

// What keeps no queues keeps nothing that is parked, so the consumer stops before the message.
func TestAStoreWithoutQueuesParksNothing(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(struct{ messagestore.Driver }{newDriver()}, nil))
	write(t, store, "account-1", Deposited{1})
	j := &journal{}
	c := newConsumer(t, store, always(errHopeless), nil)

	require.ErrorIs(t, c.CatchUp(t.Context()), messagestore.ErrNotSupported)

	require.Zero(t, c.Stats().Parked)
	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
	require.Len(t, j.all(), 1)
}

func TestAMessageThatCannotBeParkedIsNotPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore(), park: func() error { return errStore }}
		write(t, store.Store, "account-1", Deposited{1}, Deposited{2})
		calls := 0
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls++
			return errBroken
		}), &consumer.Config{Errors: parkAtOnce})
		stop := running(t, c)
		time.Sleep(10 * time.Minute)
		require.Equal(t, 1, calls) // it is not handled again, only parked
		require.Zero(t, c.Stats().Position)
		require.NotZero(t, c.Stats().StoreErrors)

		store.set(func(s *tap) { s.park = nil })
		time.Sleep(10 * time.Second)

		require.Equal(t, int64(2), c.Stats().Parked)
		require.NoError(t, stop())
		spoiled := &tap{Store: newStore(), park: func() error { return errStore }}
		write(t, spoiled.Store, "account-1", Deposited{1})
		require.ErrorIs(t, newConsumer(t, spoiled, always(errBroken), &consumer.Config{Errors: parkAtOnce}).CatchUp(t.Context()), errStore)
	})
}

func TestALargeMessageIsParkedAndRedriven(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]messagestore.Envelope{
		"LargeData": {Body: raw("Deposited", `{"large": "`+strings.Repeat("d", messagestore.MaxMessageBytes-20)+`"}`)},
		"LargeMetadata": {Body: Deposited{1}, Metadata: messagestore.Metadata{Properties: messagestore.Properties{
			"large": strings.Repeat("p", messagestore.MaxMessageBytes-100),
		}}},
		"DeepData": {Body: raw("Deposited", strings.Repeat(`{"a":`, 512)+"1"+strings.Repeat("}", 512))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			write(t, store, "account-1", message)
			original, err := store.Last(t.Context(), "account-1")
			require.NoError(t, err)
			require.NoError(t, newConsumer(t, store, always(errHopeless), nil).CatchUp(t.Context()))
			require.Len(t, parkedOf(t, store, account, "ledger"), 1)

			var given *messagestore.Message
			n := redrive(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
				given = m
				return nil
			}))

			require.Equal(t, 1, n)
			require.Equal(t, original, given)
		})
	}
}

func TestTheTextOfAnErrorIsBoundedAndClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\x00b\nc":                     "a b c",
		"\xff":                          "\uFFFD",
		strings.Repeat("e", 2000):       strings.Repeat("e", 1024) + "…",
		strings.Repeat("é", 1000):       strings.Repeat("é", 512) + "…",
		"x" + strings.Repeat("é", 1000): "x" + strings.Repeat("é", 511) + "\uFFFD…",
	} {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		h := always(errors.New(text))
		require.NoError(t, newConsumer(t, store, h, &consumer.Config{Errors: parkAtOnce}).CatchUp(t.Context()))
		require.Equal(t, want, parkedOf(t, store, account, "ledger")[0].Error)
		require.Zero(t, redrive(t, store, h))
		require.Equal(t, want, parkedOf(t, store, account, "ledger")[0].Error)
	}
}

func TestRedriveDeliversTheOriginalsInOrderOfTheirStream(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		for i := range 6 {
			write(t, store, category.Stream(fmt.Sprint(i%2)), Deposited{i})
		}
		seen := map[messagestore.StreamName][]*messagestore.Message{}
		broken := true
		h := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if broken {
				return errBroken
			}
			seen[m.Stream] = append(seen[m.Stream], m)
			return nil
		})
		c := newIn(t, store, category, "ledger", h, &consumer.Config{Errors: parkAtOnce})
		require.NoError(t, c.CatchUp(t.Context()))
		require.Len(t, parkedOf(t, store, category, "ledger"), 6)

		require.Equal(t, 6, retry(t, store, category, "ledger"))
		require.NoError(t, c.CatchUp(t.Context()))
		parked := parkedOf(t, store, category, "ledger")
		require.Len(t, parked, 6)
		require.Equal(t, "xRx", logOf(t, store, category, "ledger", parked[0].Position))

		broken = false
		require.Equal(t, 6, retry(t, store, category, "ledger"))
		require.NoError(t, c.CatchUp(t.Context()))
		for i := range 2 {
			stream := category.Stream(fmt.Sprint(i))
			n := 0
			for m, err := range store.ReadStream(t.Context(), stream, 0) {
				require.NoError(t, err)
				require.Equal(t, m, seen[stream][n])
				n++
			}
			require.Len(t, seen[stream], n)
		}
		require.Zero(t, retry(t, store, category, "ledger"))
		require.NoError(t, c.CatchUp(t.Context()))
		require.Len(t, seen[category.Stream("0")], 3)
	})
}

func TestWhatOthersHaveParkedIsLeftAlone(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "other")
	j := &journal{}
	retry(t, store, account, "other")

	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))

	require.Len(t, j.all(), 1, "its own delivery")
	require.Empty(t, parkedOf(t, store, account, "ledger"))
	require.Len(t, parkedOf(t, store, account, "other"), 1)
}

func TestARedriveFailsAsADeliveryDoes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		handler handler.HandlerFunc
		text    string
	}{
		{func(context.Context, *messagestore.Message) error { panic("poison") }, "panic: poison"},
		{func(context.Context, *messagestore.Message) error { runtime.Goexit(); return nil }, "the function ended its goroutine"},
		{func(context.Context, *messagestore.Message) error { return handler.RetryAfter(time.Hour, errBroken) }, "broken"},
		{func(context.Context, *messagestore.Message) error { return handler.Park(errBroken) }, "broken"},
	} {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		retry(t, store, account, "ledger")
		c := newConsumer(t, store, test.handler, nil)

		require.NoError(t, c.CatchUp(t.Context()))

		parked := itemsOf(t, store, account, "ledger", queuing.Dead)
		require.Len(t, parked, 1)
		first, _, _ := strings.Cut(parked[0].Error, "\n")
		require.Equal(t, test.text, first)
		require.Equal(t, int64(1), c.Stats().Failed)
	}
}

func TestARedriveThatIsSkippedEndsItsItem(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	retry(t, store, account, "ledger")
	var log logbook
	c := newConsumer(t, store, always(handler.Skip("a test account")), &consumer.Config{Logger: log.logger()})

	require.NoError(t, c.CatchUp(t.Context()))

	require.Empty(t, parkedOf(t, store, account, "ledger"))
	require.Equal(t, int64(1), c.Stats().Skipped)
	require.Contains(t, log.of(t, "item skipped")[0]["error"], "a test account")
}

// A process with the same identity has its own delivery of the message: while the one has it, the
// other waits.
func TestARedriveIsOfOneProcess(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	retry(t, store, account, "ledger")
	j := &journal{}
	twin := newConsumer(t, store, j, nil)

	err := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
		require.NoError(t, twin.CatchUp(ctx))
		return errBroken
	}), nil).CatchUp(t.Context())

	require.NoError(t, err)
	require.Empty(t, j.all())
	require.Equal(t, "xRx", logOf(t, store, account, "ledger", 1))
}
