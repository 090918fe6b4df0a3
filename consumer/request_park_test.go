package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// askToPark asks the ledger to park the message at a position of a stream.
func askToPark(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, at messagestore.Version) bool {
	t.Helper()
	for m, err := range store.ReadStream(t.Context(), stream, at) {
		require.NoError(t, err)
		asked, err := deadletter.Of(store, account, "ledger").RequestPark(t.Context(), m, "the seat was sold")
		require.NoError(t, err)
		return asked
	}
	require.Fail(t, "no such message")
	return false
}

func TestAnOperatorParksTheMessageThatIsRetried(t *testing.T) {
	t.Parallel()
	for _, config := range []consumer.Config{{}, {Concurrency: 4}} {
		synctest.Test(t, func(t *testing.T) {
			store, j := newStore(), &journal{}
			write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
			var log logbook
			config.Errors.Retry.For, config.Logger = consumer.Forever, log.logger()
			stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
				if m.Position == 1 {
					return errBroken
				}
				return j.Handle(ctx, m)
			}), &config))
			time.Sleep(time.Minute)
			require.Equal(t, []string{"account-1@0"}, j.all())

			require.True(t, askToPark(t, store, "account-1", 1))
			time.Sleep(40 * time.Second)

			require.Equal(t, []string{"account-1@0", "account-1@2"}, j.all())
			letters := parkedOf(t, store, account, "ledger")
			require.Len(t, letters, 1)
			require.Equal(t, "the seat was sold", letters[0].Reason)
			require.Equal(t, "broken", letters[0].Error)
			require.Greater(t, letters[0].Attempts, 5)
			parked := log.of(t, "message parked")
			require.Len(t, parked, 1)
			require.Equal(t, "the seat was sold", parked[0]["reason"])
			require.NoError(t, stop())
		})
	}
}

// The message may be one that kills its process: the next start parks it before the handler sees
// it, also if the one before has died between parking it and its checkpoint.
func TestAnOperatorParksTheMessageOfAStoppedConsumer(t *testing.T) {
	t.Parallel()
	store, j := newStore(), &journal{}
	write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
	kills := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		if m.Position == 1 {
			return errBroken
		}
		return j.Handle(ctx, m)
	})
	require.ErrorIs(t, newConsumer(t, store, kills, &consumer.Config{Errors: stopAtOnce}).CatchUp(t.Context()), errBroken)
	require.True(t, askToPark(t, store, "account-1", 1))

	spoiled := &tap{Store: store, write: func(stream messagestore.StreamName) error {
		if stream.Category() == positions {
			return errStore
		}
		return nil
	}}
	require.ErrorIs(t, newConsumer(t, spoiled, j, &consumer.Config{Errors: stopAtOnce}).CatchUp(t.Context()), errStore)
	require.Len(t, parkedOf(t, store, account, "ledger"), 1)
	c := newConsumer(t, store, kills, &consumer.Config{Errors: stopAtOnce})
	require.NoError(t, c.CatchUp(t.Context()))

	require.NotContains(t, j.all(), "account-1@1")
	require.Contains(t, j.all(), "account-1@2")
	require.Zero(t, c.Stats().Failed)
	letters := parkedOf(t, store, account, "ledger")
	require.Len(t, letters, 1)
	require.Equal(t, "parked by an operator: the seat was sold", letters[0].Error)
	require.False(t, letters[0].FirstFailedAt.IsZero())
	require.False(t, askToPark(t, store, "account-1", 1), "it is parked")

	// It is redriven like any other, and the request does not come back.
	require.Equal(t, 1, redrive(t, store, j))
	require.Contains(t, j.all(), "account-1@1")
	_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 0)
	require.NoError(t, err)
	again := &journal{}
	require.NoError(t, newConsumer(t, store, again, nil).CatchUp(t.Context()))
	require.Equal(t, []string{"account-1@0", "account-1@1", "account-1@2"}, again.all())
}

func TestAMessageThatWasHandledBeforeIsNotParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		var log logbook
		stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{Logger: log.logger()}))
		time.Sleep(time.Minute)

		require.True(t, askToPark(t, store, "account-1", 0))
		time.Sleep(time.Hour)

		require.Empty(t, parkedOf(t, store, account, "ledger"))
		require.Len(t, log.of(t, "not parked, as an operator has asked"), 1)
		require.NoError(t, stop())
	})
}

// The member that has the message's part of the category parks it, and settles the request for
// all.
func TestTheMemberThatHasTheMessageParksIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 8 {
			write(t, store, messagestore.StreamName(fmt.Sprintf("account-%d", i)), Deposited{1})
		}
		var log logbook
		for range 3 {
			config := &consumer.Config{Concurrency: 2, Logger: log.logger(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever}}}
			running(t, newConsumer(t, store, always(errBroken), config))
			time.Sleep(time.Minute)
		}
		for i := range 8 {
			require.True(t, askToPark(t, store, messagestore.StreamName(fmt.Sprintf("account-%d", i)), 0))
		}
		time.Sleep(5 * time.Minute)

		require.Len(t, parkedOf(t, store, account, "ledger"), 8)
		require.Len(t, log.of(t, "message parked"), 8)
		require.Empty(t, log.of(t, "not parked"))
		last, err := store.Last(t.Context(), "account:deadLetter-ledger+requests")
		require.NoError(t, err)
		require.Equal(t, "RedrivesSettled", last.Type)
		require.JSONEq(t, fmt.Sprintf(`{"next":%d}`, last.Position), string(last.Data))
	})
}

func TestARequestToParkIsValidated(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	write(t, store, "other-1", Deposited{1})
	of := func(stream messagestore.StreamName) *messagestore.Message {
		m, err := store.Last(t.Context(), stream)
		require.NoError(t, err)
		return m
	}
	letters := deadletter.Of(store, account, "ledger")
	for _, reason := range []string{"", strings.Repeat("x", 1025), "two\nlines", "\xff"} {
		_, err := letters.RequestPark(t.Context(), of("account-1"), reason)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "reason")
		_, err = letters.Drop(t.Context(), of("account-1").ID, reason)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	_, err := letters.RequestPark(t.Context(), of("other-1"), "why")
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = letters.RequestPark(t.Context(), nil, "why")
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

func TestADroppedLetterIsClosedWithItsReason(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	letters := deadletter.Of(store, account, "ledger")
	letter := parkedOf(t, store, account, "ledger")[0]
	request(t, store, account, "ledger")

	dropped, err := letters.Drop(t.Context(), letter.ID, "refunded by hand")

	require.NoError(t, err)
	require.Equal(t, letter.DeadLetter, dropped.DeadLetter)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
	last, err := store.Last(t.Context(), letter.DeadLetter)
	require.NoError(t, err)
	require.Equal(t, "Redriven", last.Type)
	require.JSONEq(t, fmt.Sprintf(`{"attempts":%d,"dropped":"refunded by hand"}`, letter.Attempts), string(last.Data))
	require.Equal(t, messagestore.StreamName("account-1"), last.Metadata.CausationStream)

	j := &journal{}
	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
	require.Empty(t, j.all(), "the redrive that was requested before is settled")

	_, err = letters.Drop(t.Context(), letter.ID, "again")
	_, is := errors.AsType[*deadletter.NotParkedError](err)
	require.True(t, is, "%v", err)
}

// A letter that is redriven while it is dropped has one end.
func TestADropAndARedriveHaveOneEnd(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	letters := deadletter.Of(store, account, "ledger")
	letter := parkedOf(t, store, account, "ledger")[0]
	request(t, store, account, "ledger")

	require.NoError(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
		_, err := letters.Drop(ctx, letter.ID, "refunded by hand")
		return err
	}), nil).CatchUp(t.Context()))

	version, err := store.Version(t.Context(), letter.DeadLetter)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(1), version)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
}

// A slowLook is a store that takes a second to find requests.
type slowLook struct{ *messagestore.Store }

func (s slowLook) LastOfType(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	time.Sleep(time.Second)
	return s.Store.LastOfType(ctx, stream, messageType)
}

// A message that ends its process is delivered no more, however slow the store is.
func TestAMessageThatIsToBeParkedIsNotDeliveredFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, j := newStore(), &journal{}
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		require.True(t, askToPark(t, store, "account-1", 0))
		stop := running(t, newConsumer(t, slowLook{store}, j, nil))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"account-1@1"}, j.all())
		require.NoError(t, stop())
	})
}

// Replicas leave slots at several positions: the consumer is at the lowest message of all.
func TestNextIsTheFirstMessageOfSeveralParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, j := newStore(), &journal{}
		write(t, store, "account-0", Deposited{1})
		broken := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			if m.Stream == "account-0" {
				return errBroken
			}
			return j.Handle(ctx, m)
		})
		var stops []func() error
		for range 2 {
			stops = append(stops, running(t, newConsumer(t, store, broken, &consumer.Config{Concurrency: 2, Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever}}})))
			time.Sleep(time.Minute)
		}
		for i := range 10 {
			write(t, store, messagestore.StreamName(fmt.Sprintf("account-%d", i)), Deposited{2})
			time.Sleep(time.Minute)
		}
		for _, stop := range stops {
			require.NoError(t, stop())
		}
		for i := range 10 {
			write(t, store, messagestore.StreamName(fmt.Sprintf("account-%d", i)), Deposited{3})
		}

		next, err := operate.Consumer(store, account, "ledger").Next(t.Context())

		require.NoError(t, err)
		require.Len(t, next, 1)
		require.Equal(t, "account-0@0", fmt.Sprintf("%s@%d", next[0].Stream, next[0].Position))
		_, err = operate.Consumer(store, account, "male").Next(t.Context())
		_, is := errors.AsType[*operate.UnknownConsumerError](err)
		require.True(t, is, "%v", err)
	})
}
