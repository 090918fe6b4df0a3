package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
)

// failingOf returns a receiver that fails for keys, for as long as is holds.
func failingOf(is func(key string) bool) *receiver {
	return &receiver{answer: func(m *outbox.Message) error {
		if is(m.Key()) {
			return errAway
		}
		return nil
	}}
}

// A book keeps what is logged.
type book struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *book) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

// count returns how many lines of a level have a text.
func (b *book) count(level, text string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.text.String()) {
		if strings.Contains(line, `"level":"`+level+`"`) && strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (b *book) logger() logger.Logger { return logger.Zerolog(zerolog.New(b)) }

// One host of many is away, or one message is answered with 500: its key is held, and dead after its attempts and its age.
// The other keys notice nothing, and an operator's retry sends all of the key in order.
func TestAKeyThatFailsIsDeadInTheEndAndOthersFlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 10 {
			for _, key := range keys(20) {
				write(t, store, key, i, i+1)
			}
		}
		var mended bool
		sink := failingOf(func(key string) bool { return key == "k3" && !mended })
		relay := relayOf(store, sink, &outbox.Config{MaxAge: 2 * time.Hour, PollInterval: time.Hour, Lease: 10 * time.Hour})
		defer running(t, relay)()

		time.Sleep(5 * time.Second)
		require.Len(t, sink.all(), 19*10, "the other keys flow")
		time.Sleep(110 * time.Minute)
		require.Zero(t, relay.Stats().Dead, "it is not old enough")
		write(t, store, "k4", 10, 11)
		time.Sleep(time.Second)
		require.Len(t, sink.all(), 19*10+1)
		time.Sleep(20 * time.Minute)

		require.EqualValues(t, 1, relay.Stats().Dead)
		dead := testkit.Must(relay.Queue().Items(t.Context(), queue.Dead, 0, 10))
		require.Len(t, dead, 1)
		require.Equal(t, outgoing.Stream("k3"), dead[0].Message.Stream)
		require.Equal(t, errAway.Error(), dead[0].Error)
		require.Len(t, testkit.Must(relay.Queue().Items(t.Context(), queue.Held, 0, 10)), 9)
		tries := len(sink.tried())
		time.Sleep(time.Hour)
		require.Len(t, sink.tried(), tries, "nothing is sent behind a dead message")

		mended = true
		retry(t, relay.Queue(), dead)
		time.Sleep(3 * time.Second) // a worker looks each second while something is held

		requireOrder(t, store, sink.all(), nil)
	})
}

func TestAMessageIsDeadAfterADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "k", 0, 1)
		relay := relayOf(store, failingOf(func(string) bool { return true }), &outbox.Config{PollInterval: time.Hour, Lease: 10 * time.Hour})
		defer running(t, relay)()

		time.Sleep(23 * time.Hour)
		require.Zero(t, relay.Stats().Dead)
		time.Sleep(time.Hour + 10*time.Minute)

		require.EqualValues(t, 1, relay.Stats().Dead)
	})
}

// Of a message that is old already each attempt is made, and no more.
func TestAnOldMessageHasItsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "k", 0, 2)
		time.Sleep(time.Hour)
		sink := failingOf(func(string) bool { return true })
		relay := relayOf(store, sink, &outbox.Config{MaxAttempts: 3, MaxAge: time.Minute})

		require.NoError(t, relay.CatchUp(t.Context()))

		require.Len(t, sink.tried(), 3)
		require.EqualValues(t, 1, relay.Stats().Dead)
		require.EqualValues(t, 3, relay.Stats().Failed)
	})
}

func TestASinkThatIsAwayForANightBuriesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for _, key := range keys(3) {
			write(t, store, key, 0, 3)
		}
		back := time.Now().Add(10 * time.Hour)
		sink := failingOf(func(string) bool { return time.Now().Before(back) })
		relay := relayOf(store, sink, &outbox.Config{PollInterval: time.Hour, Lease: 10 * time.Hour})
		defer running(t, relay)()

		time.Sleep(10*time.Hour + 10*time.Minute + time.Second)

		requireOrder(t, store, sink.all(), nil)
		require.Zero(t, relay.Stats().Dead)
	})
}

// Four hours are more than the age of each message, and leave time for far more than its attempts.
func TestASinkThatIsOutBuriesNothingHoweverLong(t *testing.T) {
	t.Parallel()
	for _, batches := range []bool{false, true} {
		t.Run(fmt.Sprint(batches), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, began := newStore(), time.Now()
				for _, key := range keys(20) {
					write(t, store, key, 0, 2)
				}
				back := time.Now().Add(4 * time.Hour)
				away := func(string) bool { return time.Now().Before(back) }
				b := &batchReceiver{receiver: *failingOf(away)}
				var sink outbox.Sink = &b.receiver
				if batches {
					sink = b
				}
				var log book
				relay := relayOf(store, sink, &outbox.Config{Logger: log.logger(), MaxAttempts: 5, MaxAge: time.Hour, PollInterval: time.Hour, Lease: 10 * time.Hour})
				defer running(t, relay)()

				time.Sleep(3 * time.Hour)
				require.WithinDuration(t, began, relay.Stats().OutSince, time.Second)
				require.InDelta(t, 3*6, log.count("error", "the sink is out"), 4, "it is said every ten minutes")
				require.Less(t, log.count("warn", "handler failed"), 100, "the outage is not said by each message")
				require.Less(t, len(b.tried()), 20*3*3600/60+500, "a message is tried every one to two minutes")
				time.Sleep(time.Hour + 2*time.Minute + time.Second)

				requireOrder(t, store, b.all(), nil)
				require.Zero(t, relay.Stats().Dead)
				require.Zero(t, relay.Stats().OutSince)
			})
		})
	}
}

// Before anything was taken nobody knows that the sink is well: the messages that it would take come to their turn.
func TestAThousandBadKeysKeepTheOthersForMinutesAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for _, key := range keys(1000) {
			write(t, store, key, 0, 1)
		}
		write(t, store, "fine", 0, 2)
		sink := failingOf(func(key string) bool { return key != "fine" })
		relay := relayOf(store, sink, &outbox.Config{PollInterval: time.Hour, Lease: 10 * time.Hour})
		defer running(t, relay)()

		time.Sleep(3 * time.Minute)

		require.Len(t, sink.all(), 2)
	})
}

// A transport answers each request with a status.
type transport int

func (t transport) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(t), Body: io.NopCloser(strings.NewReader("no"))}, nil
}

// The only URL of a sink is gone: no message is given up for it, and it is said.
func TestAURLThatIsGoneIsSaidAndBuriesNothing(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusGone} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				for _, key := range keys(20) {
					write(t, store, key, 0, 2)
				}
				sink := testkit.Must(outbox.HTTP("https://bank.example/hooks", &outbox.HTTPConfig{Transport: transport(status)}))
				var log book
				relay := relayOf(store, sink, &outbox.Config{Logger: log.logger(), MaxAttempts: 5, MaxAge: time.Hour, PollInterval: time.Hour, Lease: 10 * time.Hour})
				defer running(t, relay)()

				time.Sleep(4 * time.Hour)

				require.Zero(t, relay.Stats().Dead)
				require.Equal(t, relay.Stats().Calls, relay.Stats().Gone)
				require.NotZero(t, relay.Stats().OutSince)
				require.InDelta(t, 4*6, log.count("error", "the URL of the sink is gone"), 4)
				require.Positive(t, log.count("error", fmt.Sprintf("the answer is %d", status)))
			})
		})
	}
}

// A Send that heeds nothing holds its own key.
func TestASendThatDoesNotReturnHoldsItsKeyAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 5 {
			for _, key := range keys(4) {
				write(t, store, key, i, i+1)
			}
		}
		free, taken := make(chan struct{}), &receiver{}
		sink := sinkFunc(func(ctx context.Context, m *outbox.Message) error {
			if m.Key() == "k0" {
				<-free
				return errAway
			}
			return taken.Send(ctx, m)
		})
		relay := relayOf(store, sink, &outbox.Config{Concurrency: 2, Timeout: time.Second, Grace: time.Second})
		defer running(t, relay)()

		time.Sleep(time.Minute)

		require.Len(t, taken.all(), 15)
		require.Greater(t, relay.Stats().Abandoned, int64(1))
		close(free)
	})
}
