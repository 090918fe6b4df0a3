package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
)

func TestMain(m *testing.M) {
	if place := os.Getenv(placeVariable); place != "" {
		if err := relayToJournal(os.Getenv(kindVariable), place, os.Getenv(journalVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

const outgoing messagestore.Category = "payments:outgoing"

type Paid struct {
	Amount int `json:"amount"`
}

func (Paid) MessageType() string { return "Paid" }

func newStore() *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) }

// write adds messages with the amounts from..to-1 to the stream of a key.
func write(t require.TestingT, store *messagestore.Store, key string, from, to int) {
	for i := from; i < to; i++ {
		_, err := store.Write(context.Background(), outgoing.Stream(key), messagestore.AnyVersion, Paid{i})
		require.NoError(t, err)
	}
}

// An arrival is a message as a receiver got it.
type arrival struct {
	id       uuid.UUID
	stream   messagestore.StreamName
	position messagestore.Version
	data     string
}

var (
	errAway    = errors.New("the receiver is away")
	errRefused = handler.Refuse(errors.New("the receiver refuses the message"))
)

// A receiver is a sink that notes each message that it takes. Its answers are those of the function, nil
// for all.
type receiver struct {
	answer func(m *outbox.Message) error
	delay  time.Duration

	mu       sync.Mutex
	arrivals []arrival
	tries    []arrival
	inFlight map[string]int // by key
	together int            // the most messages at a time
	overlaps int            // of two messages of one key
}

func (r *receiver) begin(messages ...*outbox.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inFlight == nil {
		r.inFlight = map[string]int{}
	}
	total := 0
	for _, m := range messages {
		r.tries = append(r.tries, arrivalOf(m))
		if r.inFlight[m.Key()]++; r.inFlight[m.Key()] > 1 {
			r.overlaps++
		}
	}
	for _, n := range r.inFlight {
		total += n
	}
	r.together = max(r.together, total)
}

func arrivalOf(m *outbox.Message) arrival {
	return arrival{m.ID, m.Stream, m.Position, string(m.Data)}
}

func (r *receiver) end(m *outbox.Message) (err error) {
	if r.answer != nil {
		err = r.answer(m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight[m.Key()]--
	if err == nil {
		r.arrivals = append(r.arrivals, arrivalOf(m))
	}
	return err
}

func (r *receiver) Send(ctx context.Context, m *outbox.Message) error {
	r.begin(m)
	r.wait(ctx)
	return r.end(m)
}

func (r *receiver) wait(ctx context.Context) {
	if r.delay > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(r.delay):
		}
	}
}

func (r *receiver) all() []arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]arrival(nil), r.arrivals...)
}

func (r *receiver) tried() []arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]arrival(nil), r.tries...)
}

// A batchReceiver takes several messages at a time.
type batchReceiver struct {
	receiver

	batches [][]string // the keys
}

func (r *batchReceiver) SendAll(ctx context.Context, messages []*outbox.Message) []error {
	r.begin(messages...)
	keys := []string{}
	for _, m := range messages {
		keys = append(keys, m.Key())
	}
	r.mu.Lock()
	r.batches = append(r.batches, keys)
	r.mu.Unlock()
	r.wait(ctx)
	answers := make([]error, len(messages))
	for i, m := range messages {
		answers[i] = r.end(m)
	}
	return answers
}

func relayOf(store *messagestore.Store, sink outbox.Sink, config *outbox.Config) *outbox.Relay {
	var c outbox.Config
	if config != nil {
		c = *config
	}
	if c.Logger.IsZero() {
		c.Logger = logger.Silent()
	}
	return testkit.Must(outbox.New(store, outgoing, "tobank", sink, &c))
}

// running runs a relay until the returned function is called.
func running(t testing.TB, relay *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	return func() {
		cancel()
		if err := testkit.Receive(t, "the end of a relay", ended); err != nil {
			t.Error(err)
		}
	}
}

// stored returns the messages of the outbox, by key, in order.
func stored(t require.TestingT, store *messagestore.Store) map[string][]arrival {
	all := map[string][]arrival{}
	q := messagestore.CategoryQuery{Category: outgoing, Limit: 1000}
	for more := true; more; {
		page, err := store.ReadCategoryPage(context.Background(), q)
		require.NoError(t, err)
		for _, m := range page.Messages {
			key := m.Stream.ID()
			all[key] = append(all[key], arrivalOf(&outbox.Message{Message: m}))
		}
		q.From, more = page.Next, page.More
	}
	return all
}

// requireOrder requires that each message of the outbox arrived but those that are missing by their ids,
// with its own content; that nothing else did; and that the first arrivals of each key are in order.
func requireOrder(t require.TestingT, store *messagestore.Store, arrivals []arrival, missing map[uuid.UUID]bool) {
	first := map[string][]arrival{}
	seen := map[uuid.UUID]arrival{}
	for _, a := range arrivals {
		if before, is := seen[a.id]; is {
			require.Equal(t, before, a, "a message that is sent again is another")
			continue
		}
		seen[a.id] = a
		key := a.stream.ID()
		first[key] = append(first[key], a)
	}
	for key, all := range stored(t, store) {
		var want []arrival
		for _, a := range all {
			if !missing[a.id] {
				want = append(want, a)
			}
		}
		require.Equal(t, want, first[key], "key %s", key)
		delete(first, key)
	}
	require.Empty(t, first, "messages that are not in the outbox were sent")
}

func keys(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("k", i))
	}
	return all
}
