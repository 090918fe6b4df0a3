package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// Between the look of one starter and its write, another starts the generation.
func TestAStarterThatComesSecondJoinsTheGenerationOfTheFirst(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	other := newConsumer(t, store.Store, &journal{}, nil)
	started := false
	store.write = func(messagestore.StreamName) error {
		if started {
			return nil
		}
		started = true
		return other.CatchUp(t.Context())
	}

	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))

	version, err := store.Version(t.Context(), "account:position-ledger")
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}

// A CatchUp that was alone when it started has no lease. A process that starts meanwhile takes over at the last
// checkpoint, and is not held up; the CatchUp is fenced at its next.
func TestAProcessThatStartsTakesOverFromACatchUpWithoutALease(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(c *consumer.Consumer, ctx context.Context) error{
		"Run": (*consumer.Consumer).Run, "CatchUp": (*consumer.Consumer).CatchUp,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := newDriver()
				store := testkit.Must(messagestore.New(driver, nil))
				write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3}, Deposited{4})
				entered, release := make(chan struct{}), make(chan struct{})
				early := &journal{}
				late := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
					if m.Position == 2 {
						time.Sleep(time.Minute) // until the checkpoint of those before is stored
						close(entered)
						<-release
					}
					return early.Handle(ctx, m)
				}), &consumer.Config{CheckpointMessages: 1})
				errs := make(chan error, 1)
				go func() { errs <- late.CatchUp(t.Context()) }()
				<-entered

				j := &journal{}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				began := time.Now()
				go func() { ended <- next(newConsumer(t, testkit.Must(messagestore.New(driver, nil)), j, nil), ctx) }()
				testkit.Await(t, "the rest is handled", func() (bool, any) { return len(j.all()) == 2, j.all() })
				require.Less(t, time.Since(began), time.Second, "it waits for no lease")
				require.Equal(t, []string{"account-1@2", "account-1@3"}, j.all())
				close(release)

				err := testkit.Receive(t, "the CatchUp ends", errs)
				require.ErrorIs(t, err, consumer.ErrConsumerFenced)
				require.ErrorContains(t, err, "consumer fenced: another process wrote to it: call CatchUp while no other process runs the consumer, in account:position-ledger+0: ")
				require.Equal(t, []string{"account-1@0", "account-1@1", "account-1@2"}, early.all()[:3])
				write(t, store, "account-1", Deposited{5})
				if name == "Run" {
					testkit.Await(t, "it goes on", func() (bool, any) { return len(j.all()) == 3, j.all() })
				}
				cancel()
				require.NoError(t, testkit.Receive(t, "the other ends", ended))
			})
		})
	}
}

// Beside members CatchUp is one of them: it waits for the whole category, is delivered nothing before, and no message is
// skipped or delivered twice.
func TestACatchUpBesideMembersWaitsForTheWholeCategory(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 4} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := newDriver()
				first := newReplica(t, driver, &consumer.Config{Concurrency: concurrency})
				time.Sleep(time.Minute)
				j := &journal{}
				ended := make(chan error, 1)
				go func() {
					ended <- newConsumer(t, testkit.Must(messagestore.New(driver, nil)), j, nil).CatchUp(t.Context())
				}()
				time.Sleep(time.Minute)
				want := writeEach(t, driver, 20, 0)
				time.Sleep(time.Minute)
				require.ElementsMatch(t, want, first.all())
				require.Empty(t, ended)
				require.NoError(t, first.stop())
				rest := writeEach(t, driver, 20, 1)

				require.NoError(t, testkit.Receive(t, "the CatchUp ends", ended))

				require.Empty(t, statusIn(t, testkit.Must(messagestore.New(driver, nil)), account).Replicas)
				require.NoError(t, newConsumer(t, testkit.Must(messagestore.New(driver, nil)), j, nil).CatchUp(t.Context()))
				require.ElementsMatch(t, rest, j.all())
			})
		})
	}
}
