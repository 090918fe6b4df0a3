package outbox_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
)

// A slowDriver counts takes, each of which takes two milliseconds.
type slowDriver struct {
	queuing.Driver

	takes atomic.Int64
}

func (d *slowDriver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	d.takes.Add(1)
	time.Sleep(2 * time.Millisecond)
	return d.Driver.QueueTake(ctx, t)
}

// The messages of one key go one after the other, but not each with a call of the store.
func TestAKeyWithManyMessagesIsNotSentACallAMessage(t *testing.T) {
	t.Parallel()
	for name, hot := range map[string]int{"one key": 1, "five keys": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := &slowDriver{Driver: memory.New()}
				store := testkit.Must(messagestore.New(driver, nil))
				for i := range 1000 {
					write(t, store, fmt.Sprint("k", i%hot), i, i+1)
				}
				sink := &receiver{delay: 100 * time.Microsecond}
				relay := relayOf(store, sink, nil)

				require.NoError(t, relay.CatchUp(t.Context()))

				requireOrder(t, store, sink.all(), nil)
				require.Len(t, sink.all(), 1000, "each once")
				require.Zero(t, sink.overlaps)
				require.Less(t, driver.takes.Load(), int64(200))
				require.EqualValues(t, 1000, relay.Stats().Sent)
				status, err := relay.Queue().Status(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 1000, status.Finished)
			})
		})
	}
}

// A message that fails behind others of its key is tried again after its back-off, as it would be by itself, and is dead in the end,
// with its key held.
func TestAMessageThatFailsBehindOthersFailsAlone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"an error": func() error { return errAway }, "a refusal": func() error { return errRefused },
		"a panic": func() error { panic("sink") }, "Goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				write(t, store, "k", 0, 20)
				var tries []time.Time
				sink := &receiver{answer: func(m *outbox.Message) error {
					if m.Position == 7 {
						tries = append(tries, time.Now())
						return fail()
					}
					return nil
				}}
				relay := relayOf(store, sink, &outbox.Config{MaxAttempts: 3, MaxAge: time.Millisecond})
				time.Sleep(time.Second)

				require.NoError(t, relay.CatchUp(t.Context()))

				require.Len(t, sink.all(), 7)
				require.EqualValues(t, 1, relay.Stats().Dead)
				want := 3
				if name == "a refusal" {
					want = 1
				}
				require.EqualValues(t, want, relay.Stats().Failed)
				if name == "Goexit" { // it leaves no word behind: the message comes next, and then each attempt counts
					tries = tries[1:]
				}
				require.Len(t, tries, want)
				for i := 1; i < len(tries); i++ {
					require.GreaterOrEqual(t, tries[i].Sub(tries[i-1]), 50*time.Millisecond<<(i-1))
				}
			})
		})
	}
}

// A cutDriver reaches no queue while it is cut.
type cutDriver struct {
	queuing.Driver

	cut atomic.Bool
}

func (d *cutDriver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	if d.cut.Load() {
		return queuing.Taken{}, errAway
	}
	return d.Driver.QueueTake(ctx, t)
}

func (d *cutDriver) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	if d.cut.Load() {
		return nil, errAway
	}
	return d.Driver.QueueExtend(ctx, e)
}

// An error of a message that was tried behind others belongs to the attempt that comes next, and to no later one: another process
// has buried the message meanwhile, and an operator has had it tried again.
func TestAnErrorBehindOthersIsForgottenWhenAnotherProcessHasTheMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := memory.New()
		driver := &cutDriver{Driver: shared}
		ours, theirs := testkit.Must(messagestore.New(driver, nil)), testkit.Must(messagestore.New(shared, nil))
		write(t, theirs, "k", 0, 3)
		time.Sleep(time.Second)
		var mended atomic.Bool
		fails := func(m *outbox.Message) error {
			if m.Position != 1 || mended.Load() {
				return nil
			}
			driver.cut.Store(true)
			return errRefused
		}
		first, second := relayOf(ours, &receiver{answer: fails}, nil), relayOf(theirs, &receiver{answer: fails}, nil)
		running, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error, 1)
		go func() { done <- first.Run(running) }()
		time.Sleep(time.Second)
		require.True(t, driver.cut.Load())
		require.Zero(t, first.Stats().Failed)
		other, leave := context.WithTimeout(t.Context(), 5*time.Minute)
		defer leave()
		require.NoError(t, second.Run(other))
		dead := testkit.Must(second.Queue().Items(t.Context(), queue.Dead, 0, 10))
		require.Len(t, dead, 1)
		mended.Store(true)
		retry(t, second.Queue(), dead)

		driver.cut.Store(false)
		time.Sleep(time.Minute)

		stop()
		require.NoError(t, <-done)
		require.Zero(t, first.Stats().Dead)
		require.EqualValues(t, 3, testkit.Must(second.Queue().Status(t.Context())).Finished)
	})
}

// O4 for messages that were sent behind another of their key: a death has no more of them sent again than Prefetch says.
func TestADeathRepeatsNoMoreOfAKeyThanPrefetch(t *testing.T) {
	t.Parallel()
	for _, prefetch := range []int{4, 5, 20} {
		t.Run(fmt.Sprint(prefetch), func(t *testing.T) {
			t.Parallel()
			all := 0 // a death between two takes repeats nothing
			for moment := range 5 {
				synctest.Test(t, func(t *testing.T) {
					store := newStore()
					write(t, store, "k", 0, 2000)
					first := &receiver{delay: time.Millisecond}
					p := start(store, first, &outbox.Config{Concurrency: 4, Prefetch: prefetch, Lease: time.Second})
					time.Sleep(time.Duration(333+moment) * time.Millisecond)
					p.kill(t)
					before := first.all()
					require.Greater(t, len(before), 100)

					second := &receiver{}
					require.NoError(t, relayOf(store, second, nil).CatchUp(t.Context()))

					requireOrder(t, store, append(before, second.all()...), nil)
					again := len(before) + len(second.all()) - 2000
					require.LessOrEqual(t, again, prefetch)
					all += again
				})
			}
			require.Positive(t, all)
		})
	}
}
