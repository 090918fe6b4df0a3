package brokertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// A SinkBroker is the broker of one test, which takes the messages of [Outgoing].
type SinkBroker interface {
	// Sink returns a sink over its own connection, like another process.
	Sink(t testing.TB) outbox.Sink

	// Arrived returns the messages in the broker; the messages of each key are in the broker's
	// order.
	Arrived(t testing.TB) []Message

	// Kill ends the broker like kill -9, and Start starts it with the data that it had stored.
	Kill(t testing.TB)
	Start(t testing.TB)

	// Remake deletes the place of the messages, such as a topic, with everything in it, and makes
	// it again.
	Remake(t testing.TB)
}

// A SinkWithWindow is a broker that remembers the ids of messages for a while.
type SinkWithWindow interface {
	// Forget waits until the broker has forgotten all ids.
	Forget(t testing.TB)
}

// SinkOptions describe a broker for [Sinks].
type SinkOptions struct {
	// Start starts a broker for a test, and ends it with the test.
	Start func(t testing.TB) SinkBroker

	// Share is Start for a test that does not kill the broker: several tests may share a broker,
	// each with its own part. nil means Start.
	Share func(t testing.TB) SinkBroker

	// Once says that the broker has each message once, however often and by whichever sink it is
	// sent. Otherwise it has each at least once.
	Once bool

	// TooLarge is a size of data, in bytes, that the broker refuses; 0 if there is no such bound.
	TooLarge int
}

// Sinks tests the promises of a sink.
func Sinks(t *testing.T, o SinkOptions) {
	if o.Share == nil {
		o.Share = o.Start
	}
	for name, test := range map[string]func(*testing.T, SinkOptions){
		"each message arrives whole and in order":          arrivesWhole,
		"a key of any text is that key":                    keysOfAnyText,
		"what is sent again is the same":                   sentAgain,
		"a late message of a stale sink stays where it is": staleSink,
		"sinks side by side":                               sideBySide,
		"crashes between send and checkpoint":              crashes,
		"a broker that is killed loses nothing":            killedBroker,
		"a broker that is away":                            brokerAway,
		"a place that is made again has what is sent next": placeOfASinkMadeAgain,
		"a message that is too large":                      tooLarge,
		"no context and no message":                        noContext,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, o)
		})
	}
}

// relay sends messages like package outbox: the messages of one key one after the other, in order,
// each again until the sink takes it, and different keys concurrently. When ctx is done it ends at
// once, whatever is under way. It calls taken for each message that the sink has taken.
func relay(ctx context.Context, sink outbox.Sink, messages []*outbox.Message, taken func(*outbox.Message)) error {
	left := map[string][]*outbox.Message{}
	for _, m := range messages {
		left[m.Key()] = append(left[m.Key()], m)
	}
	failed := 0
	for len(left) > 0 {
		var batch []*outbox.Message
		for _, lane := range left {
			batch = append(batch, lane[0])
		}
		var refused error
		for i, err := range sendAll(ctx, sink, batch) {
			m := batch[i]
			switch {
			case err == nil:
				if taken != nil {
					taken(m)
				}
				if left[m.Key()] = left[m.Key()][1:]; len(left[m.Key()]) == 0 {
					delete(left, m.Key())
				}
			case calling.DispositionOf(err) != nil:
				refused = errors.Join(refused, err)
			default:
				failed++
			}
		}
		if refused != nil || ctx.Err() != nil {
			return errors.Join(refused, ctx.Err())
		}
		if failed > 0 {
			failed = 0
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

// sendAll sends messages by both methods of a sink.
func sendAll(ctx context.Context, sink outbox.Sink, messages []*outbox.Message) []error {
	if all, is := sink.(outbox.BatchSink); is && len(messages) > 1 {
		return all.SendAll(ctx, messages)
	}
	answers := make([]error, len(messages))
	var wait sync.WaitGroup
	for i, m := range messages {
		wait.Go(func() { answers[i] = sink.Send(ctx, m) })
	}
	wait.Wait()
	return answers
}

func relayAll(t testing.TB, sink outbox.Sink, messages []*outbox.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.WaitLimit)
	defer cancel()
	require.NoError(t, relay(ctx, sink, messages, nil))
}

func forget(t testing.TB, b SinkBroker) {
	if window, is := b.(SinkWithWindow); is {
		window.Forget(t)
	}
}

// requireArrived requires that the broker has all messages, each with its content, once or at least
// once; and the messages of each key in order, by their first arrivals.
func requireArrived(t testing.TB, o SinkOptions, b SinkBroker, messages []*outbox.Message) {
	t.Helper()
	want, first, seen := map[string][]string{}, map[string][]string{}, map[string]Message{}
	content := map[string]*outbox.Message{}
	for _, m := range messages {
		want[m.Key()] = append(want[m.Key()], m.ID.String())
		content[m.ID.String()] = m
	}
	for _, a := range b.Arrived(t) {
		m := content[a.ID]
		require.NotNil(t, m, "the broker has a message that was not sent: %+v", a)
		require.Equal(t, m.Key(), a.Key)
		require.JSONEq(t, string(m.Data), a.Data)
		for name, value := range m.Headers() {
			require.Equal(t, value, a.Headers[name], "header %s", name)
		}
		if before, is := seen[a.ID]; is {
			require.False(t, o.Once, "the broker has a message twice: %+v", a)
			require.Equal(t, before, a, "a message that is sent again is another")
			continue
		}
		seen[a.ID] = a
		first[a.Key] = append(first[a.Key], a.ID)
	}
	require.Equal(t, want, first)
}

func arrivesWhole(t *testing.T, o SinkOptions) {
	b := o.Share(t)
	store := newStore()
	store.write(t, keys(10), 0, 10)
	all := store.messages(t)

	relayAll(t, b.Sink(t), all)

	requireArrived(t, o, b, all)
	require.Len(t, b.Arrived(t), 100, "no send failed, so each was sent once")
}

func keysOfAnyText(t *testing.T, o SinkOptions) {
	b := o.Share(t)
	store := newStore()
	store.write(t, Keys, 0, 2)
	all := store.messages(t)

	relayAll(t, b.Sink(t), all)

	requireArrived(t, o, b, all)
}

func sentAgain(t *testing.T, o SinkOptions) {
	b := o.Share(t)
	store := newStore()
	store.write(t, keys(5), 0, 5)
	all := store.messages(t)
	old := b.Sink(t)
	relayAll(t, old, all)
	forget(t, b)

	relayAll(t, old, all)
	requireArrived(t, o, b, all)
	relayAll(t, b.Sink(t), all)

	requireArrived(t, o, b, all)
	if o.Once {
		require.Len(t, b.Arrived(t), len(all))
	}
}

// A process that was stopped for long goes on where it was, after another has taken over its work.
func staleSink(t *testing.T, o SinkOptions) {
	if !o.Once {
		t.Skip("the broker takes what is sent: a receiver deduplicates")
	}
	b := o.Share(t)
	store := newStore()
	store.write(t, keys(3), 0, 6)
	all := store.messages(t)
	stale := b.Sink(t)
	relayAll(t, stale, all[:6])
	relayAll(t, b.Sink(t), all)
	forget(t, b)

	relayAll(t, stale, all[6:]) // from its checkpoint

	requireArrived(t, o, b, all)
	store.write(t, keys(3), 6, 7)
	relayAll(t, stale, store.messages(t)[len(all):])
	requireArrived(t, o, b, store.messages(t))
}

func sideBySide(t *testing.T, o SinkOptions) {
	b := o.Share(t)
	store := newStore()
	store.write(t, keys(4), 0, 25)
	all := store.messages(t)

	var sinks sync.WaitGroup
	for range 3 {
		sink := b.Sink(t)
		sinks.Go(func() { relayAll(t, sink, all) })
	}
	sinks.Wait()

	requireArrived(t, o, b, all)
}

// Each process ends at a different message, and the next begins with messages that the broker
// already has.
func crashes(t *testing.T, o SinkOptions) {
	b := o.Share(t)
	store := newStore()
	store.write(t, keys(4), 0, 25)
	all := store.messages(t)

	from := 0
	for run := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		var sent atomic.Int64
		last := int64(5 + 3*run)
		sink := &telling{b.Sink(t), func(*outbox.Message) {
			if sent.Add(1) == last {
				cancel()
			}
		}}
		require.Error(t, relay(ctx, sink, all[from:], nil))
		cancel()
		forget(t, b)
		from = min(4*run, 12) // the checkpoint: everything before it was sent
	}
	relayAll(t, b.Sink(t), all)

	requireArrived(t, o, b, all)
}

// A telling sink calls a function as soon as its sink has taken a message, before the relay learns
// of it.
type telling struct {
	outbox.Sink

	tell func(*outbox.Message)
}

var errCrash = errors.New("the process ended before it had the answer")

func (s *telling) Send(ctx context.Context, m *outbox.Message) error {
	if err := s.Sink.Send(ctx, m); err != nil {
		return err
	}
	s.tell(m)
	if ctx.Err() != nil {
		return errCrash
	}
	return nil
}

func killedBroker(t *testing.T, o SinkOptions) {
	b := o.Start(t)
	store := newStore()
	store.write(t, keys(4), 0, 50)
	all := store.messages(t)
	var taken atomic.Int64
	ctx, cancel := context.WithTimeout(context.Background(), 2*testkit.WaitLimit)
	defer cancel()
	ended := make(chan error, 1)
	sink := b.Sink(t)
	go func() { ended <- relay(ctx, sink, all, func(*outbox.Message) { taken.Add(1) }) }()

	for round := range 2 {
		least := int64(40 + 60*round)
		testkit.Await(t, "the sink has taken more", func() (bool, any) { return taken.Load() >= least, taken.Load() })
		b.Kill(t)
		b.Start(t)
	}

	require.NoError(t, testkit.Receive(t, "the end of the relay", ended))
	requireArrived(t, o, b, all)
}

// While the broker is away, a sink returns an error after which the message is sent again, and
// returns it in time.
func brokerAway(t *testing.T, o SinkOptions) {
	b := o.Start(t)
	store := newStore()
	store.write(t, keys(3), 0, 2)
	all := store.messages(t)
	sink := b.Sink(t)
	relayAll(t, sink, all[:3])
	b.Kill(t)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	answers := make(chan []error, 1)
	go func() { answers <- sendAll(ctx, sink, all[3:]) }()
	for _, err := range testkit.Receive(t, "an answer of the sink", answers) {
		require.Error(t, err)
		require.Nil(t, calling.DispositionOf(err), "%v", err)
	}

	b.Start(t)
	relayAll(t, sink, all[3:])
	requireArrived(t, o, b, all)
}

// A running sink goes on when its place is deleted and made again, once for all messages under way.
func placeOfASinkMadeAgain(t *testing.T, o SinkOptions) {
	b := o.Share(t)
	store := newStore()
	sink := b.Sink(t)
	sent := 0
	for round := range 3 {
		store.write(t, keys(10), round, round+1)
		all := store.messages(t)
		relayAll(t, sink, all[sent:])
		requireArrived(t, o, b, all[sent:])
		sent = len(all)
		b.Remake(t)
	}
}

func tooLarge(t *testing.T, o SinkOptions) {
	if o.TooLarge == 0 {
		t.Skip("the broker takes all that a store has")
	}
	b := o.Share(t)
	store := newStore()
	_, err := store.Write(t.Context(), Outgoing.Stream("large"), messagestore.AnyVersion, paid{Text: strings.Repeat("x", o.TooLarge)})
	require.NoError(t, err)
	large := store.messages(t)[0]
	store.write(t, []string{"small"}, 0, 3)

	sink := b.Sink(t)
	err = sink.Send(t.Context(), large)

	require.True(t, calling.DispositionOf(err).Asks(calling.Refuse), "%v", err)
	require.Less(t, len(err.Error()), 1000)
	relayAll(t, sink, store.messages(t)[1:])
	requireArrived(t, o, b, store.messages(t)[1:])
}

func noContext(t *testing.T, o SinkOptions) {
	b := o.Share(t)
	sink := b.Sink(t)
	store := newStore()
	store.write(t, []string{"k"}, 0, 1)
	m := store.messages(t)[0]

	for text, err := range map[string]error{
		"invalid context: must not be nil": sink.Send(nil, m), //nolint:staticcheck // on purpose
		"invalid message: must not be nil": errors.Join(sink.Send(t.Context(), nil), sink.Send(t.Context(), &outbox.Message{})),
	} {
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, text)
	}
	if all, is := sink.(outbox.BatchSink); is {
		for _, ctx := range []context.Context{t.Context(), nil} {
			answers := all.SendAll(ctx, []*outbox.Message{nil, {}})
			require.Len(t, answers, 2)
			for _, err := range answers {
				require.ErrorIs(t, err, messagestore.ErrInvalid)
			}
		}
		require.Empty(t, all.SendAll(t.Context(), nil))
	}
	require.Empty(t, b.Arrived(t))
}

// shuffled returns messages in another order, the same in each run.
func shuffled[T any](all []T, seed uint64) []T {
	r := rand.New(rand.NewPCG(seed, 1))
	other := append([]T(nil), all...)
	r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
	return other
}

func id(i int) string { return fmt.Sprint("order-", i) }
