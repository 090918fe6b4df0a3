package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

func TestMessagesOfAKeyAreSentInOrderAndThoseOfOthersBesideThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 20 {
			for _, key := range keys(10) {
				write(t, store, key, i, i+1)
			}
		}
		sink := &receiver{delay: 50 * time.Millisecond}
		relay := relayOf(store, sink, nil)
		begun := time.Now()

		require.NoError(t, relay.CatchUp(t.Context()))

		requireOrder(t, store, sink.all(), nil)
		require.Len(t, sink.all(), 200)
		require.Zero(t, sink.overlaps, "two messages of one key were in flight")
		require.Equal(t, 10, sink.together)
		require.Less(t, time.Since(begun), 2*time.Second)
		require.EqualValues(t, 200, relay.Stats().Sent)
		require.EqualValues(t, 200, relay.Stats().Calls)
	})
}

func TestMessagesThatComeWhileOneIsSentGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 5 {
			for _, key := range keys(64) {
				write(t, store, key, i, i+1)
			}
		}
		sink := &batchReceiver{receiver: receiver{delay: time.Second}}
		relay := relayOf(store, sink, nil)

		require.NoError(t, relay.CatchUp(t.Context()))

		requireOrder(t, store, sink.all(), nil)
		require.Len(t, sink.all(), 5*64)
		require.Zero(t, sink.overlaps)
		require.LessOrEqual(t, relay.Stats().Calls, int64(12))
		for _, batch := range sink.batches {
			require.Len(t, batch, len(slices.Compact(slices.Sorted(slices.Values(batch)))), "two messages of one key in one call")
		}
	})
}

// Two streams of one cardinal id are two keys: each is sent in order, beside the other.
func TestAKeyIsAStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 10 {
			for _, stream := range []messagestore.StreamName{"payments:outgoing-7", "payments:outgoing-7+a", "payments:outgoing-7+b"} {
				_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, Paid{i})
				require.NoError(t, err)
			}
		}
		sink := &batchReceiver{receiver: receiver{delay: time.Millisecond, answer: func(m *outbox.Message) error {
			if m.Key() == "7+a" {
				return errRefused
			}
			return nil
		}}}
		relay := relayOf(store, sink, nil)

		require.NoError(t, relay.CatchUp(t.Context()))

		require.Len(t, sink.all(), 20)
		require.Zero(t, sink.overlaps)
		require.EqualValues(t, 1, relay.Stats().Dead)
	})
}

func TestASinkSaysWhenToSendAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ asks, least, most time.Duration }{
		{90 * time.Second, 90 * time.Second, 90 * time.Second},
		{10 * 365 * 24 * time.Hour, outbox.MaxRetryAfter, outbox.MaxRetryAfter},
		{0, 50 * time.Millisecond, 200 * time.Millisecond},
		{-time.Hour, 50 * time.Millisecond, 200 * time.Millisecond},
	} {
		t.Run(test.asks.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				write(t, store, "k", 0, 1)
				var tries []time.Time
				sink := &receiver{answer: func(*outbox.Message) error {
					if tries = append(tries, time.Now()); len(tries) == 1 {
						return fmt.Errorf("sink: %w", handler.RetryAfter(test.asks, errAway))
					}
					return nil
				}}

				require.NoError(t, relayOf(store, sink, nil).CatchUp(t.Context()))

				require.Len(t, tries, 2)
				require.GreaterOrEqual(t, tries[1].Sub(tries[0]), test.least)
				require.LessOrEqual(t, tries[1].Sub(tries[0]), test.most+100*time.Millisecond) // a poll
			})
		})
	}
}

type wild struct{}

func (wild) Error() string { return "wild" }
func (wild) Is(error) bool { panic("Is") }
func (wild) As(any) bool   { panic("As") }
func (wild) Unwrap() error { panic("Unwrap") }

// A methodical error has the methods by which errors of other libraries say the like. They have no effect.
type methodical struct{}

func (methodical) Error() string             { return "methodical" }
func (methodical) Permanent() bool           { return true }
func (methodical) Park() bool                { return true }
func (methodical) RetryAfter() time.Duration { return time.Hour }

// No error of the sink stops a relay.
func TestAnyOtherErrorOfTheSinkIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"an error that lasts":         func() error { return calling.LastingError("not migrated") },
		"methods":                     func() error { return methodical{} },
		"a closed store":              func() error { return messagestore.ErrClosed },
		"a panic":                     func() error { panic("sink") },
		"a panic with an error":       func() error { panic(errAway) },
		"a panic with one that lasts": func() error { panic(messagestore.ErrClosed) },
		"a panic with Park":           func() error { panic(handler.Park(errAway)) },
		"a panic with RetryAfter":     func() error { panic(handler.RetryAfter(1000*time.Hour, errAway)) },
		"a panic with Skip":           func() error { panic(handler.Skip("broken")) },
		"a panic with Refuse":         func() error { panic(errRefused) },
		"an error that panics":        func() error { return wild{} },
		"Goexit":                      func() error { runtime.Goexit(); return nil },
		"a pause that it asks for":    func() error { return handler.RetryAfter(time.Second, errAway) },
	} {
		for _, batches := range []bool{false, true} {
			t.Run(fmt.Sprint(name, batches), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := newStore()
					for _, key := range keys(5) {
						write(t, store, key, 0, 2)
					}
					var tries atomic.Int64
					answer := func(*outbox.Message) error {
						if tries.Add(1) <= 6 {
							return fail()
						}
						return nil
					}
					var sink outbox.Sink
					var r *receiver
					if batches {
						b := &batchReceiver{receiver: receiver{answer: answer, delay: time.Millisecond}}
						sink, r = b, &b.receiver
					} else {
						r = &receiver{answer: answer, delay: time.Millisecond}
						sink = r
					}

					require.NoError(t, relayOf(store, sink, nil).CatchUp(t.Context()))

					requireOrder(t, store, r.all(), nil)
				})
			})
		}
	}
}

// A counted sink has another number of answers than messages, at first.
type counted struct {
	batchReceiver

	answers int
	calls   int
}

func (c *counted) SendAll(ctx context.Context, messages []*outbox.Message) []error {
	all := c.batchReceiver.SendAll(ctx, messages)
	if c.calls++; c.calls <= 3 {
		return slices.Repeat([]error{nil}, max(0, len(all)+c.answers))
	}
	return all
}

func TestAnswersOfAnotherNumberAreNone(t *testing.T) {
	t.Parallel()
	for _, answers := range []int{-1000, -1, 1} {
		t.Run(fmt.Sprint(answers), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				for _, key := range keys(20) {
					write(t, store, key, 0, 3)
				}
				sink := &counted{batchReceiver: batchReceiver{receiver: receiver{delay: time.Millisecond}}, answers: answers}
				relay := relayOf(store, sink, nil)

				require.NoError(t, relay.CatchUp(t.Context()))

				requireOrder(t, store, sink.all(), nil)
				require.Greater(t, len(sink.all()), 60, "those without an answer are sent again")
				require.Zero(t, relay.Stats().Dead)
			})
		})
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "42", 0, 1)
		var topics []string
		sink := &receiver{answer: func(m *outbox.Message) error { topics = append(topics, m.Topic); return nil }}

		require.NoError(t, relayOf(store, sink, nil).CatchUp(t.Context()))
		other, err := outbox.New(store, outgoing, "other", sink, &outbox.Config{Topic: func(m *messagestore.Message) string { return "payments." + m.Stream.CardinalID() }})
		require.NoError(t, err)
		require.NoError(t, other.CatchUp(t.Context()))

		require.Equal(t, []string{"payments:outgoing", "payments.42"}, topics)
	})
}

func TestHeadersAreVisibleAndBounded(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01931234-5678-7abc-8def-0123456789ab")
	at := time.Date(2026, 11, 23, 21, 0, 0, 123000, time.UTC)
	parent := "00-" + strings.Repeat("a", 32) + "-" + strings.Repeat("b", 16) + "-01"
	m := &outbox.Message{Message: &messagestore.Message{
		ID: id, Stream: "a-1\r\nx: y", Position: 7, Time: at, Type: "Paid\x00 100% é",
		Metadata: messagestore.Metadata{CorrelationStream: "transfer-5", Properties: messagestore.Properties{"traceparent": parent, "tracestate": "a=1"}},
	}}

	require.Equal(t, map[string]string{
		"dibs-id": id.String(), "dibs-stream": "a-1%0D%0Ax:%20y", "dibs-position": "7", "dibs-type": "Paid%00%20100%25%20%C3%A9",
		"dibs-time": "2026-11-23T21:00:00.000123Z", "dibs-correlation": "transfer-5", "traceparent": parent, "tracestate": "a=1",
	}, m.Headers())

	m.Type, m.Metadata.CorrelationStream = strings.Repeat("x", 1<<20), messagestore.StreamName(strings.Repeat("x", 1<<20))
	for _, bad := range []messagestore.Properties{
		{"traceparent": parent, "tracestate": "a\r\nb: c"},
		{"traceparent": parent, "tracestate": strings.Repeat("x", 1<<20)},
		{"traceparent": strings.Repeat("0", 1<<20)},
		{"traceparent": parent + "\n"},
		{"traceparent": 7, "tracestate": "a=1"},
	} {
		m.Metadata.Properties = bad
		headers := m.Headers()
		require.NotContains(t, headers, "dibs-type")
		require.NotContains(t, headers, "dibs-correlation")
		require.NotContains(t, headers, "tracestate")
		if _, is := bad["tracestate"].(string); !is {
			require.NotContains(t, headers, "traceparent")
		}
	}
}

func TestMistakesAreNamedTogether(t *testing.T) {
	t.Parallel()
	store := newStore()
	var none *receiver
	for _, test := range []struct {
		store    *messagestore.Store
		category messagestore.Category
		name     string
		sink     outbox.Sink
		config   *outbox.Config
		texts    []string
	}{
		{store, outgoing, "a", nil, nil, []string{"invalid sink: must not be nil"}},
		{store, outgoing, "a", none, nil, []string{"invalid sink: must not be nil"}},
		{nil, "x-y", "a-b", nil, &outbox.Config{Concurrency: 1001}, []string{"invalid sink", "invalid store", "category", `queue name "a-b"`, "Concurrency 1001"}},
		{store, outgoing, "", &receiver{}, nil, []string{"queue name", "must not be empty"}},
		{store, outgoing, "a", &receiver{}, &outbox.Config{
			Lease: 1, Concurrency: -1, MaxAttempts: -1, MaxAge: -1, Timeout: 1, PollInterval: 1, Grace: -1, Correlation: "a-b",
		}, []string{"Lease", "Concurrency", "MaxAttempts", "MaxAge", "Timeout", "PollInterval", "Grace", "correlation"}},
		{store, outgoing, "a", &receiver{}, &outbox.Config{MaxAttempts: 10_001, MaxAge: 1 << 62, Prefetch: 63}, []string{"MaxAttempts", "MaxAge", "Prefetch 63: must be between Concurrency and 1000"}},
		{store, outgoing, "a", testkit.Must(outbox.Into(store, nil)), nil, []string{"invalid sink: must not be the store that the relay reads"}},
	} {
		_, err := outbox.New(test.store, test.category, test.name, test.sink, test.config)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		for _, text := range test.texts {
			require.ErrorContains(t, err, text)
		}
	}
	sink, err := outbox.Into(nil, nil)
	require.Nil(t, sink)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "invalid store: must not be nil")
	require.ErrorIs(t, new(outbox.Relay).Run(t.Context()), messagestore.ErrInvalid)
}

// A sizedSink notes how much data it is given at a time.
type sizedSink struct {
	batchReceiver

	most atomic.Int64
}

func (s *sizedSink) SendAll(ctx context.Context, messages []*outbox.Message) []error {
	size := int64(0)
	for _, m := range messages {
		size += int64(len(m.Data))
	}
	if size > s.most.Load() {
		s.most.Store(size)
	}
	return s.batchReceiver.SendAll(ctx, messages)
}

// However large messages are, those that are sent together have 4 MiB of data at most.
func TestABatchHasFourMiBAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		data := fmt.Appendf(nil, `{"a":"%s"}`, bytes.Repeat([]byte("a"), 900<<10))
		for _, key := range keys(12) {
			_, err := store.Write(t.Context(), outgoing.Stream(key), messagestore.AnyVersion, messagestore.Raw{Type: "Large", Data: data})
			require.NoError(t, err)
		}
		sink := &sizedSink{batchReceiver: batchReceiver{receiver: receiver{delay: time.Millisecond}}}

		require.NoError(t, relayOf(store, sink, nil).CatchUp(t.Context()))

		require.Len(t, sink.all(), 12)
		require.Greater(t, sink.most.Load(), int64(2<<20), "they go together")
		require.LessOrEqual(t, sink.most.Load(), int64(4<<20))
	})
}
