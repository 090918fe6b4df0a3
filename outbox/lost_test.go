package outbox_test

import (
	"context"
	"errors"
	"sync"
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
)

// An awayDriver is one whose queues may be away.
type awayDriver struct {
	queuing.Driver

	away atomic.Bool
}

func (d *awayDriver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	if d.away.Load() {
		return queuing.Taken{}, errAway
	}
	return d.Driver.QueueTake(ctx, t)
}

func (d *awayDriver) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	if d.away.Load() {
		return nil, errAway
	}
	return d.Driver.QueueExtend(ctx, e)
}

// A funcSink is a sink of functions.
type funcSink struct {
	send    func(ctx context.Context, m *outbox.Message) error
	sendAll func(ctx context.Context, all []*outbox.Message) []error
}

func (s *funcSink) Send(ctx context.Context, m *outbox.Message) error { return s.send(ctx, m) }

type batchSink struct{ funcSink }

func (s *batchSink) SendAll(ctx context.Context, all []*outbox.Message) []error {
	return s.sendAll(ctx, all)
}

// A message that waits while the sink is out is not sent any more once its lease was lost, or the relay stops.
func TestWhatIsLostWhileTheSinkIsOutIsNotSent(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(driver *awayDriver, stop func()){
		"the lease is lost": func(driver *awayDriver, _ func()) {
			driver.away.Store(true)
			time.Sleep(10 * time.Second)
			driver.away.Store(false)
		},
		"the relay is to end": func(_ *awayDriver, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := &awayDriver{Driver: memory.New()}
				store := testkit.Must(messagestore.New(driver, nil))
				for _, key := range keys(16) {
					write(t, store, key, 0, 1)
				}
				var vain atomic.Int64
				sink := &funcSink{send: func(ctx context.Context, _ *outbox.Message) error {
					if ctx.Err() != nil {
						vain.Add(1)
					}
					return errAway
				}}
				stop := sync.OnceFunc(running(t, relayOf(store, sink, &outbox.Config{Lease: time.Second, Grace: time.Millisecond})))
				defer stop()
				time.Sleep(time.Minute) // the pauses are 5 s long by now

				end(driver, stop)
				require.Zero(t, vain.Load(), "calls of the sink for messages that were given back")
			})
		})
	}
}

// The time of the message whose goroutine sends for others is not theirs: what fails by its end is sent again, and is no failure of
// the others.
func TestTheTimeOfOneMessageIsNotThatOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		var mu sync.Mutex
		taken := map[string]time.Duration{}
		began := time.Now()
		take := func(m *outbox.Message) {
			mu.Lock()
			defer mu.Unlock()
			taken[m.Key()] = time.Since(began)
		}
		slow := true
		sink := &batchSink{funcSink{
			send: func(_ context.Context, m *outbox.Message) error {
				if m.Key() == "a" {
					time.Sleep(5 * time.Second)
				}
				take(m)
				return nil
			},
			sendAll: func(ctx context.Context, all []*outbox.Message) []error {
				if slow {
					slow = false
					<-ctx.Done()
					return []error{errors.New("signal: killed"), errors.New("signal: killed")}
				}
				for _, m := range all {
					take(m)
				}
				return make([]error, len(all))
			},
		}}
		relay := relayOf(store, sink, &outbox.Config{Timeout: 10 * time.Second})
		defer running(t, relay)()

		write(t, store, "a", 0, 1)
		time.Sleep(time.Second)
		write(t, store, "b", 0, 1)
		time.Sleep(2 * time.Second)
		write(t, store, "c", 0, 1)
		time.Sleep(time.Minute)
		synctest.Wait()

		mu.Lock()
		defer mu.Unlock()
		require.EqualValues(t, 1, relay.Stats().Failed, "that of b, whose time was over")
		require.Equal(t, 11*time.Second, taken["c"].Truncate(time.Second))
		require.Contains(t, taken, "b")
	})
}
