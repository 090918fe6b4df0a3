package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// wrappings are ways in which a handler's error comes around a disposition.
var wrappings = map[string]func(error) error{
	"alone":   func(err error) error { return err },
	"wrapped": func(err error) error { return fmt.Errorf("deposit: %w", err) },
	"joined": func(err error) error {
		return errors.Join(errors.New("the receipt is lost"), fmt.Errorf("deposit: %w", err))
	},
}

// The rows of the consumer in the table of package handler: its first message has the disposition, once.
func TestDispositions(t *testing.T) {
	t.Parallel()
	forever, once := consumer.Retry{For: consumer.Forever}, consumer.Retry{For: consumer.NoRetry}
	for name, test := range map[string]struct {
		disposition error
		policy      consumer.ErrorPolicy
		stats       consumer.Stats
		took        time.Duration
		stops       bool
	}{
		"Park": {
			handler.Park(errBroken),
			consumer.ErrorPolicy{Retry: forever},
			consumer.Stats{Failed: 1, Parked: 1, Handled: 1, Position: 3, Head: 2},
			0, false,
		},
		"Park, which a policy in order blocks": {
			handler.Park(errBroken),
			consumer.ErrorPolicy{Retry: forever, Then: consumer.ParkInOrder},
			consumer.Stats{Failed: 1, Parked: 2, Position: 3, Head: 2},
			0, false,
		},
		"RetryAfter": {
			handler.RetryAfter(time.Hour, errBroken),
			consumer.ErrorPolicy{Retry: once},
			consumer.Stats{Failed: 1, Retried: 1, Handled: 2, Position: 3, Head: 2},
			time.Hour, false,
		},
		"RetryAfter at once": {
			handler.RetryAfter(-1, errBroken),
			consumer.ErrorPolicy{Retry: once, Then: consumer.ParkMessage},
			consumer.Stats{Failed: 1, Retried: 1, Handled: 2, Position: 3, Head: 2},
			0, false,
		},
		"Skip": {
			handler.Skip("broken"),
			consumer.ErrorPolicy{Retry: once},
			consumer.Stats{Skipped: 1, Handled: 1, Position: 3, Head: 2},
			0, false,
		},
		"Refuse, which stops": {
			handler.Refuse(errBroken),
			consumer.ErrorPolicy{Retry: forever},
			consumer.Stats{Failed: 1, Head: 2},
			0, true,
		},
		"Refuse, which parks": {
			handler.Refuse(errBroken),
			consumer.ErrorPolicy{Retry: forever, Then: consumer.ParkMessage},
			consumer.Stats{Failed: 1, Parked: 1, Handled: 1, Position: 3, Head: 2},
			0, false,
		},
		"Refuse, which parks in order": {
			handler.Refuse(errBroken),
			consumer.ErrorPolicy{Retry: forever, Then: consumer.ParkInOrder},
			consumer.Stats{Failed: 1, Parked: 2, Position: 3, Head: 2},
			0, false,
		},
	} {
		for how, wrap := range wrappings {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := newStore()
					write(t, store, "account-1", Deposited{1}, Deposited{2})
					calls := 0
					c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
						if calls++; calls == 1 {
							return wrap(test.disposition)
						}
						return nil
					}), &consumer.Config{Errors: test.policy})
					before := time.Now()

					err := c.CatchUp(t.Context())

					require.Equal(t, test.took, time.Since(before))
					require.Equal(t, test.stats, c.Stats())
					if !test.stops {
						require.NoError(t, err)
						require.Len(t, parkedOf(t, store, account, "ledger"), int(test.stats.Parked))
						return
					}
					failed, is := errors.AsType[*consumer.MessageError](err)
					require.True(t, is, "%v", err)
					require.Equal(t, 1, failed.Attempts)
					require.ErrorIs(t, err, errBroken)
				})
			})
		}
	}
}

// The rows of a redrive in the table of package handler.
func TestDispositionsOfARedrive(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		disposition error
		then        consumer.FailureAction
		parked      int
		took        time.Duration
	}{
		"Park":                 {handler.Park(errBroken), consumer.ParkMessage, 1, 0},
		"Park in order":        {handler.Park(errBroken), consumer.ParkInOrder, 1, 0},
		"RetryAfter":           {handler.RetryAfter(time.Hour, errBroken), consumer.ParkMessage, 1, 0},
		"RetryAfter in order":  {handler.RetryAfter(time.Hour, errBroken), consumer.ParkInOrder, 0, time.Hour},
		"Skip":                 {handler.Skip("broken"), consumer.ParkMessage, 0, 0},
		"Skip in order":        {handler.Skip("broken"), consumer.ParkInOrder, 0, 0},
		"Refuse":               {handler.Refuse(errBroken), consumer.ParkMessage, 1, 0},
		"Refuse in order":      {handler.Refuse(errBroken), consumer.ParkInOrder, 1, 0},
		"no disposition, once": {errBroken, consumer.ParkMessage, 1, 0},
	} {
		for how, wrap := range wrappings {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := newStore()
					write(t, store, "account-1", Deposited{1})
					park(t, store, account, "ledger")
					request(t, store, account, "ledger")
					calls := 0
					c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
						if calls++; calls == 1 {
							return wrap(test.disposition)
						}
						return nil
					}), &consumer.Config{Errors: consumer.ErrorPolicy{Then: test.then}})
					before := time.Now()

					require.NoError(t, c.CatchUp(t.Context()))

					require.Equal(t, test.took, time.Since(before).Truncate(time.Minute))
					require.Len(t, parkedOf(t, store, account, "ledger"), test.parked)
				})
			})
		}
	}
}
