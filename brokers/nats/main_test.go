package natsbroker_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
)

const outgoing messagestore.Category = "payments:outgoing"

type Paid struct {
	Amount int    `json:"amount"`
	Text   string `json:"text,omitempty"`
}

func (Paid) MessageType() string { return "Paid" }

func newStore() *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) }

// write adds messages with the amounts from..to-1 to the stream of a key.
func write(t require.TestingT, store *messagestore.Store, key string, from, to int) {
	for i := from; i < to; i++ {
		_, err := store.Write(context.Background(), outgoing.Stream(key), messagestore.AnyVersion, Paid{Amount: i})
		require.NoError(t, err)
	}
}

func fill(t require.TestingT, store *messagestore.Store, keys, from, to int) {
	for i := from; i < to; i++ {
		for k := range keys {
			write(t, store, fmt.Sprint("k", k), i, i+1)
		}
	}
}

// A broker is a server with JetStream on disk, which can be stopped and started again.
type broker struct {
	t       testing.TB
	options server.Options
	server  *server.Server
}

func startBroker(t testing.TB) *broker {
	b := &broker{t: t, options: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
	}}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	options := b.options
	s, err := server.NewServer(&options)
	require.NoError(b.t, err)
	s.Start()
	require.True(b.t, s.ReadyForConnections(testkit.WaitLimit))
	b.server = s
	b.options.Port = options.Port // the same one again
}

func (b *broker) stop() {
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

// connect returns JetStream over a connection of its own.
func (b *broker) connect() jetstream.JetStream {
	conn, err := nats.Connect(b.server.ClientURL(), nats.Timeout(testkit.WaitLimit), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	require.NoError(b.t, err)
	b.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(testkit.WaitLimit))
	require.NoError(b.t, err)
	return js
}

// stream makes the stream of the outbox; its server forgets ids after 100 ms.
func (b *broker) stream(js jetstream.JetStream, change func(*jetstream.StreamConfig)) jetstream.Stream {
	config := jetstream.StreamConfig{
		Name: "OUT", Subjects: []string{string(outgoing) + ".*"}, Storage: jetstream.FileStorage, Duplicates: 100 * time.Millisecond,
	}
	if change != nil {
		change(&config)
	}
	stream, err := js.CreateStream(b.t.Context(), config)
	require.NoError(b.t, err)
	return stream
}

// remembers has the server know ids for longer than a test takes.
func remembers(c *jetstream.StreamConfig) { c.Duplicates = time.Hour }

// forget waits until the server has forgotten the ids of all messages: until it takes a message
// twice whose id came after them. It is removed.
func forget(t testing.TB, js jetstream.JetStream) {
	stream, err := js.Stream(t.Context(), "OUT")
	require.NoError(t, err)
	id := uuid.NewString()
	take := func() bool {
		ack, err := js.Publish(t.Context(), string(outgoing)+".last", nil, jetstream.WithMsgID(id))
		require.NoError(t, err)
		if !ack.Duplicate {
			require.NoError(t, stream.DeleteMsg(t.Context(), ack.Sequence))
		}
		return !ack.Duplicate
	}
	require.True(t, take())
	testkit.AwaitTrue(t, "the server forgets an id", take)
}

func relayOf(store *messagestore.Store, sink outbox.Sink, name string, config *outbox.Config) *outbox.Relay {
	var c outbox.Config
	if config != nil {
		c = *config
	}
	c.Logger = logger.Silent()
	return testkit.Must(outbox.New(store, outgoing, name, sink, &c))
}

func catchUp(t testing.TB, relay *outbox.Relay) {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	require.NoError(t, relay.CatchUp(ctx))
}

// running runs something until the returned function is called.
func running(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := testkit.Receive(t, "the end of a run", ended); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// arrived returns the amounts of each subject, in order, as a consumer that acknowledges gets them.
func arrived(t testing.TB, js jetstream.JetStream) map[string][]string {
	stream, err := js.Stream(t.Context(), "OUT")
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	c, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	all := map[string][]string{}
	for left := info.State.Msgs; left > 0; left-- {
		m, err := c.Next(jetstream.FetchMaxWait(testkit.WaitLimit))
		require.NoError(t, err)
		all[m.Subject()] = append(all[m.Subject()], m.Headers().Get(outbox.HeaderStream)+"@"+m.Headers().Get(outbox.HeaderPosition))
	}
	return all
}

// requireOnce requires that the stream has each message of the outbox once, and each key's messages
// in order.
func requireOnce(t testing.TB, store *messagestore.Store, js jetstream.JetStream, without ...string) {
	t.Helper()
	left := map[string]bool{}
	for _, name := range without {
		left[name] = true
	}
	want := map[string][]string{}
	for _, m := range messages(t, store) {
		out := &outbox.Message{Message: m}
		name := out.Headers()[outbox.HeaderStream] + "@" + strconv.FormatInt(int64(m.Position), 10)
		if !left[name] {
			subject := string(outgoing) + "." + natsbroker.Escape(out.Key())
			want[subject] = append(want[subject], name)
		}
	}
	require.Equal(t, want, arrived(t, js))
}

// messages returns the messages of the outbox.
func messages(t testing.TB, store *messagestore.Store) (all []*messagestore.Message) {
	t.Helper()
	for m, err := range store.ReadCategory(t.Context(), outgoing, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}
