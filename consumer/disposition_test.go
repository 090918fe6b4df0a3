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
		panics      bool // with the disposition, which is a failure as any other
	}{
		"Park": {
			handler.Park(errBroken),
			consumer.ErrorPolicy{Retry: forever},
			consumer.Stats{Failed: 1, Parked: 1, Handled: 1, Position: 3, Head: 2},
			0, false, false,
		},
		"RetryAfter": {
			handler.RetryAfter(time.Hour, errBroken),
			consumer.ErrorPolicy{Retry: once},
			consumer.Stats{Failed: 1, Retried: 1, Handled: 2, Position: 3, Head: 2},
			time.Hour, false, false,
		},
		"RetryAfter at once": {
			handler.RetryAfter(-1, errBroken),
			consumer.ErrorPolicy{Retry: once, Then: consumer.ParkMessage},
			consumer.Stats{Failed: 1, Retried: 1, Handled: 2, Position: 3, Head: 2},
			0, false, false,
		},
		"Skip": {
			handler.Skip("broken"),
			consumer.ErrorPolicy{Retry: once},
			consumer.Stats{Skipped: 1, Handled: 1, Position: 3, Head: 2},
			0, false, false,
		},
		"Refuse, which stops": {
			handler.Refuse(errBroken),
			consumer.ErrorPolicy{Retry: forever},
			consumer.Stats{Failed: 1, Head: 2},
			0, true, false,
		},
		"Refuse, which parks": {
			handler.Refuse(errBroken),
			consumer.ErrorPolicy{Retry: forever, Then: consumer.ParkMessage},
			consumer.Stats{Failed: 1, Parked: 1, Handled: 1, Position: 3, Head: 2},
			0, false, false,
		},
		"panic(Park), which stops": {
			handler.Park(errBroken),
			consumer.ErrorPolicy{Retry: once},
			consumer.Stats{Failed: 1, Head: 2},
			0, true, true,
		},
		"panic(RetryAfter), which parks": {
			handler.RetryAfter(time.Hour, errBroken),
			consumer.ErrorPolicy{Retry: once, Then: consumer.ParkMessage},
			consumer.Stats{Failed: 1, Parked: 1, Handled: 1, Position: 3, Head: 2},
			0, false, true,
		},
		"panic(Skip), which parks": {
			handler.Skip("broken"),
			consumer.ErrorPolicy{Retry: once, Then: consumer.ParkMessage},
			consumer.Stats{Failed: 1, Parked: 1, Handled: 1, Position: 3, Head: 2},
			0, false, true,
		},
		"panic(Refuse), which is retried": {
			handler.Refuse(errBroken),
			consumer.ErrorPolicy{Retry: forever},
			consumer.Stats{Failed: 1, Retried: 1, Handled: 2, Position: 3, Head: 2},
			0, false, true,
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
						if calls++; calls == 1 && test.panics {
							panic(wrap(test.disposition))
						} else if calls == 1 {
							return wrap(test.disposition)
						}
						return nil
					}), &consumer.Config{Errors: test.policy})
					before := time.Now()

					err := c.CatchUp(t.Context())

					require.Equal(t, test.took, time.Since(before).Truncate(time.Second)) // without the pause of a policy
					require.Equal(t, test.stats, c.Stats())
					if !test.stops {
						require.NoError(t, err)
						parked := parkedOf(t, store, account, "ledger")
						require.Len(t, parked, int(test.stats.Parked))
						require.False(t, test.panics && len(parked) > 0 && !strings.Contains(parked[0].Error, ".go:"), "it has the place of the panic")
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
		parked      int
		panics      bool
	}{
		"Park":                 {handler.Park(errBroken), 1, false},
		"RetryAfter":           {handler.RetryAfter(time.Hour, errBroken), 1, false},
		"Skip":                 {handler.Skip("broken"), 0, false},
		"Refuse":               {handler.Refuse(errBroken), 1, false},
		"no disposition, once": {errBroken, 1, false},
		"panic(Skip)":          {handler.Skip("broken"), 1, true},
	} {
		for how, wrap := range wrappings {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := newStore()
					write(t, store, "account-1", Deposited{1})
					park(t, store, account, "ledger")
					retry(t, store, account, "ledger")
					policy := consumer.ErrorPolicy{Then: consumer.ParkMessage}
					if test.panics {
						policy.Retry.For = consumer.NoRetry
					}
					calls := 0
					c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
						if calls++; calls == 1 && test.panics {
							panic(wrap(test.disposition))
						} else if calls == 1 {
							return wrap(test.disposition)
						}
						return nil
					}), &consumer.Config{Errors: policy})
					before := time.Now()

					require.NoError(t, c.CatchUp(t.Context()))

					require.Zero(t, time.Since(before))
					require.Len(t, parkedOf(t, store, account, "ledger"), test.parked)
				})
			})
		}
	}
}
