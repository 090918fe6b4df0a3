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
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// askToPark asks the ledger to park the message at a position of a stream.
func askToPark(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, at messagestore.Version) bool {
	t.Helper()
	for m, err := range store.ReadStream(t.Context(), stream, at) {
		require.NoError(t, err)
		asked, err := operate.Consumer(store, account, "ledger").Park(t.Context(), m, "the seat was sold")
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
			items := parkedOf(t, store, account, "ledger")
			require.Len(t, items, 1)
			require.Equal(t, "parked by an operator: the seat was sold; its last error: broken", items[0].Error)
			require.Greater(t, items[0].Failures, 5)
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
	items := parkedOf(t, store, account, "ledger")
	require.Len(t, items, 1)
	require.Equal(t, "parked by an operator: the seat was sold", items[0].Error)
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
		require.Empty(t, itemsOf(t, store, account, "ledger", queuing.Suspended))
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
	ledger := operate.Consumer(store, account, "ledger")
	for _, reason := range []string{"", strings.Repeat("x", 256), "two\nlines", "\xff"} {
		_, err := ledger.Park(t.Context(), of("account-1"), reason)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "reason")
	}
	_, err := ledger.Park(t.Context(), of("other-1"), "why")
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = ledger.Park(t.Context(), nil, "why")
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

func TestAMessageThatIsDroppedIsNotRedriven(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1})
		park(t, store, category, "ledger")
		retry(t, store, category, "ledger")
		parked, err := operate.Consumer(store, category, "ledger").Parked()
		require.NoError(t, err)
		at := parkedOf(t, store, category, "ledger")[0].Position

		dropped, err := parked.Drop(t.Context(), "refunded by hand", at)

		require.NoError(t, err)
		require.Equal(t, []messagestore.GlobalPosition{at}, dropped)
		require.Empty(t, parkedOf(t, store, category, "ledger"))
		item, err := parked.Item(t.Context(), at)
		require.NoError(t, err)
		require.Equal(t, "refunded by hand", item.Log[len(item.Log)-1].Text)
		j := &journal{}
		require.NoError(t, newIn(t, store, category, "ledger", j, nil).CatchUp(t.Context()))
		require.Empty(t, j.all(), "the redrive that was asked for before")
		dropped, err = parked.Drop(t.Context(), "again", at)
		require.NoError(t, err)
		require.Empty(t, dropped)
	})
}

// A queue of parked messages that anybody else made would follow the category, and nothing could be parked in it.
func TestOnlyAConsumerMakesTheQueueOfItsParkedMessages(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1})
		parked := testkit.Must(operate.Consumer(store, category, "ledger").Parked())
		at := testkit.Must(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 1})).Messages[0].GlobalPosition
		work := map[string]func() error{
			"receive": func() error {
				_, err := parked.Receive(t.Context(), 1, nil)
				return err
			},
			"work": func() error { return parked.Work(t.Context(), &journal{}, nil) },
		}
		for name, call := range work {
			require.ErrorIs(t, call(), messagestore.ErrInvalid, name)
		}
		require.ErrorIs(t, parked.Pause(t.Context()), messagestore.ErrInvalid)
		_, err := parked.Cancel(t.Context(), "void", at)
		require.ErrorIs(t, err, messagestore.ErrInvalid)

		park(t, store, category, "ledger")
		for name, call := range work {
			require.ErrorIs(t, call(), messagestore.ErrInvalid, name)
		}
		require.NoError(t, parked.Pause(t.Context()))
		require.NoError(t, parked.Resume(t.Context()))
		cancelled, err := parked.Cancel(t.Context(), "void", at)
		require.NoError(t, err)
		require.Equal(t, []messagestore.GlobalPosition{at}, cancelled)
	})
}

// A run that ends at once has parked a message and stored no checkpoint. What becomes of the item until the next run comes to
// the message is not undone: that run passes it.
func TestWhatWasParkedForAnOperatorIsNotParkedAgain(t *testing.T) {
	t.Parallel()
	store, j := newStore(), &journal{}
	write(t, store, "account-1", Deposited{1}, Deposited{2})
	q, driver := queueOf(t, store, account, "ledger")
	is, err := driver.QueuePark(t.Context(), queuing.Parking{Queue: q, Position: 2, Error: checkpoint.ByOperator + "the seat was sold"})
	require.NoError(t, err)
	require.True(t, is)
	h := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		_, err := testkit.Must(operate.Consumer(store, account, "ledger").Parked()).Drop(ctx, "void", 2)
		return errors.Join(err, j.Handle(ctx, m))
	})

	require.NoError(t, newConsumer(t, store, h, nil).CatchUp(t.Context()))

	require.Equal(t, []string{"account-1@0"}, j.all())
	require.Equal(t, "xD", logOf(t, store, account, "ledger", 2))
}

// A request to park is withdrawn, and the message is delivered.
func TestARequestToParkThatIsDroppedParksNothing(t *testing.T) {
	t.Parallel()
	store, j := newStore(), &journal{}
	write(t, store, "account-1", Deposited{1})
	require.True(t, askToPark(t, store, "account-1", 0))
	parked, err := operate.Consumer(store, account, "ledger").Parked()
	require.NoError(t, err)
	_, err = parked.Drop(t.Context(), "a mistake", 1)
	require.NoError(t, err)

	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))

	require.Equal(t, []string{"account-1@0"}, j.all())
	require.Empty(t, parkedOf(t, store, account, "ledger"))
}

// An item that is cancelled while it is redriven has one end, and its handler is told.
func TestACancelAndARedriveHaveOneEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		retry(t, store, account, "ledger")
		parked, err := operate.Consumer(store, account, "ledger").Parked()
		require.NoError(t, err)
		told := false
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			<-ctx.Done()
			told = true
			return ctx.Err()
		}), nil))
		time.Sleep(time.Minute)

		_, err = parked.Cancel(t.Context(), "refunded by hand", 1)
		require.NoError(t, err)
		time.Sleep(time.Minute)

		require.Empty(t, parkedOf(t, store, account, "ledger"))
		require.Equal(t, "xRC", logOf(t, store, account, "ledger", 1))
		synctest.Wait()
		require.True(t, told)
		require.NoError(t, stop())
	})
}

// A slowLook is a driver that takes a second to find what is to be parked.
type slowLook struct{ queuing.Driver }

func (d slowLook) QueueReady(ctx context.Context, q queuing.Queue) (queuing.Ready, error) {
	time.Sleep(time.Second)
	return d.Driver.QueueReady(ctx, q)
}

// A message that ends its process is delivered no more, however slow the store is.
func TestAMessageThatIsToBeParkedIsNotDeliveredFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, j := testkit.Must(messagestore.New(slowLook{newDriver()}, nil)), &journal{}
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		require.True(t, askToPark(t, store, "account-1", 0))
		stop := running(t, newConsumer(t, store, j, nil))
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
