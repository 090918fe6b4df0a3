package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/upcast"
)

// A release is a version of a service: the handler that it has.
type release func(*journal) consumer.Handler

// knows is a handler over a mux that knows Deposited, and Withdrawn if it is newer.
func knows(newer bool) release {
	return func(j *journal) consumer.Handler {
		mux := handler.New()
		handler.On(mux, func(ctx context.Context, m handler.Message[Deposited]) error { return j.Handle(ctx, m.Message) })
		if newer {
			handler.On(mux, func(ctx context.Context, m handler.Message[Withdrawn]) error { return j.Handle(ctx, m.Message) })
		}
		return mux
	}
}

// folds is a handler that folds an entity whose projection knows the same.
func folds(newer bool) release {
	return func(j *journal) consumer.Handler {
		p := entity.NewProjection[int]()
		entity.On(p, func(n int, _ Deposited) int { return n + 1 })
		if newer {
			entity.On(p, func(n int, _ Withdrawn) int { return n - 1 })
		}
		return handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			if _, err := p.Apply(0, m); err != nil {
				return err
			}
			return j.Handle(ctx, m)
		})
	}
}

// The older replica meets the message first: it was alone when it was written.
func TestAnOlderReplicaThatMeetsANewTypeWaitsAndANewerOneTakesItOver(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(newer bool) release{"Mux": knows, "Projection": folds} {
		for _, concurrency := range []int{1, 8} {
			t.Run(fmt.Sprintf("%s/%d", name, concurrency), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					driver := newDriver()
					store := testkit.Must(messagestore.New(driver, nil))
					config := &consumer.Config{Concurrency: concurrency}
					start := func(newer bool) (*consumer.Consumer, *journal, func() error) {
						j := &journal{}
						c := newConsumer(t, testkit.Must(messagestore.New(driver, nil)), of(newer)(j), config)
						return c, j, running(t, c)
					}
					older, byOlder, stopOlder := start(false)
					synctest.Wait()
					write(t, store, "account-1", Withdrawn{}, Deposited{1})
					write(t, store, "account-2", Deposited{1})
					time.Sleep(time.Minute)

					require.Greater(t, older.Stats().Retried, int64(5))
					require.NotContains(t, byOlder.all(), "account-1@1")
					if concurrency > 1 {
						require.Contains(t, byOlder.all(), "account-2@0") // others flow
					}
					require.Zero(t, older.Stats().Position)

					_, byNewer, stopNewer := start(true)
					time.Sleep(time.Minute)
					require.NoError(t, stopOlder(), "the older replica goes on until it is told to stop")
					time.Sleep(time.Minute)

					require.Equal(t, "account-1@0", byNewer.of("account-1")[0])
					require.Equal(t, []string{"account-1@0", "account-1@1"}, byNewer.of("account-1"))
					require.Subset(t, append(byOlder.all(), byNewer.all()...), []string{"account-2@0"})
					require.Zero(t, older.Stats().Parked)
					require.NoError(t, stopNewer())
				})
			})
		}
	}
}

// A lane that waits keeps the checkpoint before its message, so the others flow until the consumer is as far
// ahead of it as a crash may redeliver.
func TestALaneThatWaitsLetsOthersFlowAsFarAsACrashMayRedeliver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-new", Withdrawn{})
		for i := range 100 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		j := &journal{}
		c := newConsumer(t, store, knows(false)(j), &consumer.Config{Concurrency: 8, BatchSize: 10, CheckpointMessages: 15})
		stop := running(t, c)
		time.Sleep(time.Minute)

		require.Len(t, j.all(), 19) // two batches, of which the first message waits
		require.Zero(t, c.Stats().Position)
		require.NoError(t, stop())
	})
}

// of returns the messages of a stream.
func (j *journal) of(stream messagestore.StreamName) (all []string) {
	for _, seen := range j.all() {
		if strings.HasPrefix(seen, string(stream)+"@") {
			all = append(all, seen)
		}
	}
	return all
}

// The messages of a type's former name are read, whichever wrapper the mux has.
func TestAConsumerOfKnownTypesReadsARenamedTypeUnderBothNames(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", raw("PaidIn", `{"amount":1}`), Withdrawn{}, Deposited{2})
	mux, j := handler.New(), &journal{}
	handler.On(mux, func(ctx context.Context, m handler.Message[Deposited]) error { return j.Handle(ctx, m.Message) },
		upcast.Named[Deposited]("PaidIn"))
	c := newConsumer(t, store, mux, &consumer.Config{OnlyKnown: true})

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, []string{"account-1@0", "account-1@2"}, j.all())
	require.Zero(t, mux.Ignored())
	require.EqualValues(t, 2, c.Stats().Handled)
}

// A function that came behind the filter would get no message: its registration is refused.
func TestAFunctionThatComesBehindTheFilterIsRefused(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[Deposited]) error { return nil })
	c := newConsumer(t, newStore(), mux, &consumer.Config{OnlyKnown: true})
	require.NoError(t, c.CatchUp(t.Context()))

	handler.On(mux, func(context.Context, handler.Message[Withdrawn]) error { return nil })

	require.ErrorContains(t, c.CatchUp(t.Context()), `invalid registration "Withdrawn": must be registered before the mux is used`)
}

// The methods of a consumer are safe for concurrent use, also while it starts.
func TestAConsumerOfKnownTypesIsValidatedWhileItStarts(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	h := knows(false)(&journal{})
	c := newConsumer(t, store, h, &consumer.Config{OnlyKnown: true})
	var group sync.WaitGroup
	group.Go(func() {
		for range 100 {
			if _, err := tryNamed(store, account, "beside", h, &consumer.Config{OnlyKnown: true}); err != nil {
				t.Error(err)
			}
		}
	})
	for range 10 {
		require.NoError(t, c.CatchUp(t.Context()))
	}
	group.Wait()
}
