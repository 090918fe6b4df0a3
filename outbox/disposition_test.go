package outbox_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/outbox"
)

// The row of a relay in the table of package handler: the sink has the disposition for the first message of one of two
// keys, once.
func TestDispositions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		disposition                   error
		sent, skipped, dead, attempts int64
		took                          time.Duration
	}{
		"Park":                      {handler.Park(errAway), 2, 0, 1, 3, 0},
		"Refuse":                    {handler.Refuse(errAway), 2, 0, 1, 3, 0},
		"Skip":                      {handler.Skip("broken"), 3, 1, 0, 4, 0},
		"RetryAfter":                {handler.RetryAfter(time.Minute, errAway), 4, 0, 0, 5, time.Minute},
		"RetryAfter, which is long": {handler.RetryAfter(24*time.Hour, errAway), 4, 0, 0, 5, outbox.MaxRetryAfter},
	} {
		for how, wrap := range map[string]func(error) error{
			"wrapped": func(err error) error { return fmt.Errorf("send: %w", err) },
			"joined":  func(err error) error { return errors.Join(errors.New("the receipt is lost"), err) },
		} {
			for _, batches := range []bool{false, true} {
				t.Run(fmt.Sprint(name, " ", how, " ", batches), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						store := newStore()
						write(t, store, "a", 0, 2)
						write(t, store, "b", 0, 2)
						sink := &batchReceiver{receiver: receiver{}}
						var mu sync.Mutex
						attempts, failed := int64(0), false
						sink.answer = func(m *outbox.Message) error {
							mu.Lock()
							defer mu.Unlock()
							if attempts++; m.Key() == "a" && !failed {
								failed = true
								return wrap(test.disposition)
							}
							return nil
						}
						relay := relayOf(store, &sink.receiver, &outbox.Config{Concurrency: 2})
						if batches {
							relay = relayOf(store, sink, &outbox.Config{Concurrency: 2})
						}
						before := time.Now()

						require.NoError(t, relay.CatchUp(t.Context()))

						require.InDelta(t, test.took, time.Since(before), float64(time.Second))
						stats := relay.Stats()
						require.Equal(t, []int64{test.sent, test.skipped, test.dead, test.attempts}, []int64{stats.Sent, stats.Skipped, stats.Dead, attempts})
					})
				})
			}
		}
	}
}
