package rabbitbroker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/brokers/internal/brokertest"
	rabbitbroker "github.com/dibs-go/dibs/brokers/rabbitmq"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
)

const topic = string(brokertest.Outgoing)

func message(topic, key string, position int64) *outbox.Message {
	return &outbox.Message{Topic: topic, Message: &messagestore.Message{
		ID: uuid.New(), Stream: brokertest.Outgoing.Stream(key), Position: messagestore.Version(position), Type: "Paid", Data: []byte("1"),
	}}
}

type paid struct {
	Amount int `json:"amount"`
}

func (paid) MessageType() string { return "Paid" }

// sendAll sends messages side by side.
func sendAll(t testing.TB, sink outbox.Sink, messages []*outbox.Message) []error {
	answers := make([]error, len(messages))
	var all sync.WaitGroup
	for i, m := range messages {
		all.Go(func() { answers[i] = sink.Send(t.Context(), m) })
	}
	all.Wait()
	return answers
}

// Each third of the messages that are in flight together is returned, and no other.
func returned(t *testing.T, s *server) {
	b := s.broker(t)
	sink := b.sink(t)
	var all []*outbox.Message
	for i := range 99 {
		to := topic
		if i%3 == 0 {
			to = "nowhere"
		}
		all = append(all, message(to, fmt.Sprint("k", i), 0))
	}

	for i, err := range sendAll(t, sink, all) {
		if i%3 != 0 {
			require.NoError(t, err)
			continue
		}
		var back *rabbitbroker.ReturnedError
		require.ErrorAs(t, err, &back)
		require.Equal(t, rabbitbroker.ReturnedError{Exchange: b.exchange, RoutingKey: "nowhere", Code: amqp.NoRoute, Reason: "NO_ROUTE"}, *back)
		require.ErrorContains(t, err, "returned the message with routing key nowhere: 312 NO_ROUTE")
		require.Nil(t, calling.DispositionOf(err), "it is sent again")
	}

	require.Equal(t, rabbitbroker.SinkStats{Published: 66}, sink.Stats())
	require.Len(t, b.Arrived(t), 66)
	require.NoError(t, b.channel(t).QueueBind(b.queue, "nowhere", b.exchange, false, nil))
	require.NoError(t, sink.Send(t.Context(), all[0]), "now there is a queue")
}

func missingExchange(t *testing.T, s *server) {
	sink := testkit.Must(rabbitbroker.NewSink(s.dial, &rabbitbroker.SinkConfig{Exchange: "missing"}))
	defer sink.Close()

	err := sink.Send(t.Context(), message(topic, "k", 0))

	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, amqp.NotFound, refused.Code)
	require.Nil(t, calling.DispositionOf(err))
	channel := s.channel(t)
	require.NoError(t, channel.ExchangeDeclare("missing", "fanout", false, true, false, false, nil))
	require.Error(t, sink.Send(t.Context(), message(topic, "k", 0)), "it routes nowhere")
	require.NoError(t, channel.ExchangeDelete("missing", false, false))
}

func nacked(t *testing.T, s *server) {
	b := s.brokerWith(t, amqp.Table{"x-max-length": 2, "x-overflow": "reject-publish"})
	b.Publish(t, brokertest.Message{ID: "other 1"}, brokertest.Message{ID: "other 2"})
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for i := range 6 {
		_, err := store.Write(t.Context(), brokertest.Outgoing.Stream("k"), messagestore.AnyVersion, paid{i})
		require.NoError(t, err)
	}
	var refused atomic.Int64
	relay := testkit.Must(outbox.New(store, brokertest.Outgoing, "torabbit", watching{b.sink(t), func(err error) {
		if err != nil && strings.Contains(err.Error(), "nack") {
			refused.Add(1)
		}
	}}, &outbox.Config{Logger: logger.Silent()}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	testkit.Await(t, "the queue has refused a message three times", func() (bool, any) { return refused.Load() >= 3, refused.Load() })
	require.Zero(t, relay.Stats().Sent)

	messages, err := b.channel(t).Consume(b.queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	var positions []string
	for len(positions) < 6 {
		m := testkit.Receive(t, "a message", messages)
		if position, is := m.Headers[outbox.HeaderPosition].(string); is {
			positions = append(positions, position)
		}
	}
	cancel()
	require.NoError(t, testkit.Receive(t, "the end of the relay", ended))
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, positions)
}

// A watching sink tells each answer.
type watching struct {
	outbox.Sink

	tell func(error)
}

func (s watching) Send(ctx context.Context, m *outbox.Message) error {
	err := s.Sink.Send(ctx, m)
	s.tell(err)
	return err
}

// A line is a connection on which a test can hold back answers, and add some.
type line struct {
	net.Conn // to the client

	mu sync.Mutex // held: no answer gets through
	to net.Conn   // the client's other end
}

// dialLine connects to a server over a line.
func (s *server) dialLine(opened func(*line)) func(context.Context) (*amqp.Connection, error) {
	return func(context.Context) (*amqp.Connection, error) {
		return amqp.DialConfig(s.url(), amqp.Config{Dial: func(network, address string) (net.Conn, error) {
			server, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
			if err != nil {
				return nil, err
			}
			ours, to := net.Pipe()
			l := &line{Conn: ours, to: to}
			copies := func(from, to net.Conn, lock sync.Locker) {
				buffer := make([]byte, 64<<10)
				for {
					n, err := from.Read(buffer)
					if lock != nil {
						lock.Lock()
					}
					if err == nil {
						_, err = to.Write(buffer[:n])
					}
					if lock != nil {
						lock.Unlock()
					}
					if err != nil {
						_, _ = from.Close(), to.Close()
						return
					}
				}
			}
			go copies(server, to, &l.mu)
			go copies(to, server, nil)
			opened(l)
			return l, nil
		}})
	}
}

// say has the client read a method without a channel, between the methods that the server sends.
func (l *line) say(t testing.TB, class, method uint16, text string) {
	t.Helper()
	arguments := []byte{}
	if text != "" {
		arguments = append([]byte{byte(len(text))}, text...)
	}
	frame := []byte{1, 0, 0}
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(arguments))) //nolint:gosec // it is short
	frame = binary.BigEndian.AppendUint16(frame, class)
	frame = binary.BigEndian.AppendUint16(frame, method)
	frame = append(append(frame, arguments...), 0xCE)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.to.Write(frame)
	require.NoError(t, err)
}

// The server has 64 messages of one channel before the sink gets its first answer.
func inFlight(t *testing.T, s *server) {
	b := s.broker(t)
	lines := make(chan *line, 1)
	sink := testkit.Must(rabbitbroker.NewSink(s.dialLine(func(l *line) { lines <- l }), &rabbitbroker.SinkConfig{Exchange: b.exchange, Timeout: testkit.WaitLimit}))
	defer sink.Close()
	require.NoError(t, sink.Send(t.Context(), message(topic, "first", 0)))
	l := <-lines
	var all []*outbox.Message
	for i := range 64 {
		all = append(all, message(topic, fmt.Sprint("k", i), 0))
	}
	l.mu.Lock()
	answers := make(chan []error, 1)
	go func() { answers <- sendAll(t, sink, all) }()

	testkit.AwaitEqual(t, "messages at the server", 65, func() int { return b.messages(t, b.queue) })
	require.EqualValues(t, 1, sink.Stats().Published, "none is taken before it is confirmed")
	l.mu.Unlock()

	require.NoError(t, errors.Join(testkit.Receive(t, "the answers", answers)...))
	require.EqualValues(t, 65, sink.Stats().Published)
}

func blocked(t *testing.T, s *server) {
	b := s.broker(t)
	lines := make(chan *line, 1)
	sink := testkit.Must(rabbitbroker.NewSink(s.dialLine(func(l *line) { lines <- l }), &rabbitbroker.SinkConfig{Exchange: b.exchange, Timeout: testkit.WaitLimit}))
	defer sink.Close()
	require.NoError(t, sink.Send(t.Context(), message(topic, "first", 0)))
	l := <-lines

	l.say(t, 10, 60, "low on memory")
	testkit.Await(t, "the sink knows", func() (bool, any) {
		err := sink.Send(t.Context(), message(topic, "k", 0))
		return err != nil && strings.Contains(err.Error(), "the broker takes no messages: low on memory") && calling.DispositionOf(err) == nil, err
	})
	before := b.messages(t, b.queue)
	require.Error(t, sink.Send(t.Context(), message(topic, "k", 0)))
	require.Equal(t, before, b.messages(t, b.queue))
	l.say(t, 10, 61, "")

	testkit.Await(t, "the sink goes on", func() (bool, any) {
		err := sink.Send(t.Context(), message(topic, "k", 0))
		return err == nil, err
	})
}

// The broker ends the channel because of the message: the others are sent again.
func tooLargeAmongOthers(t *testing.T, s *server) {
	b := s.broker(t)
	sink := b.sink(t)
	for range 20 {
		var all []*outbox.Message
		for i := range 16 {
			all = append(all, message(topic, fmt.Sprint("k", i), 0))
		}
		all[7].Data = []byte(`"` + strings.Repeat("x", 200_000) + `"`)
		refused := 0
		for i, err := range sendAll(t, sink, all) {
			if i != 7 {
				require.Nil(t, calling.DispositionOf(err), "%v", err)
			} else if calling.DispositionOf(err).Asks(calling.Refuse) {
				refused++
			}
		}
		require.Equal(t, 1, refused)
	}
}

func redialed(t *testing.T, s *server) {
	b := s.broker(t)
	var dials atomic.Int64
	conns := make(chan *amqp.Connection, 10)
	sink := testkit.Must(rabbitbroker.NewSink(func(ctx context.Context) (*amqp.Connection, error) {
		if dials.Add(1) == 2 {
			return nil, errors.New("not yet")
		}
		conn, err := s.dial(ctx)
		conns <- conn
		return conn, err
	}, &rabbitbroker.SinkConfig{Exchange: b.exchange}))
	require.NoError(t, sink.Send(t.Context(), message(topic, "k", 0)))
	require.NoError(t, (<-conns).Close())

	require.ErrorContains(t, sink.Send(t.Context(), message(topic, "k", 1)), "dial: not yet")
	require.NoError(t, sink.Send(t.Context(), message(topic, "k", 1)))
	require.NoError(t, sink.Send(t.Context(), message(topic, "k", 2)))

	require.EqualValues(t, 3, dials.Load())
	last := <-conns
	sink.Close()
	require.True(t, last.IsClosed())
	require.ErrorIs(t, sink.Send(t.Context(), message(topic, "k", 3)), rabbitbroker.ErrSinkClosed)
	require.Len(t, b.Arrived(t), 3)
}

// While a function has a message, and others of its key wait, the connection is lost.
func comesAgainInOrder(t *testing.T, s *server) {
	b := s.broker(t)
	for i := range 5 {
		b.Publish(t, brokertest.Message{ID: fmt.Sprint("m", i), Key: "k", Data: "1"})
	}
	conns := make(chan *amqp.Connection, 10)
	begun, finish := make(chan struct{}, 10), make(chan struct{})
	var mu sync.Mutex
	var calls []string
	atOnce := 0
	r := testkit.Must(newReceiver(func(ctx context.Context) (*amqp.Connection, error) {
		conn, err := s.dial(ctx)
		conns <- conn
		return conn, err
	}, b.queue, brokertest.ReceiverConfig{Concurrency: 4, Logger: logger.Silent(), Receive: func(_ context.Context, r inbox.Request, _ error) error {
		mu.Lock()
		calls = append(calls, r.ID)
		atOnce++
		require.Equal(t, 1, atOnce, "one message of a key at a time")
		mu.Unlock()
		begun <- struct{}{}
		<-finish
		mu.Lock()
		defer mu.Unlock()
		atOnce--
		return nil
	}}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	testkit.Receive(t, "a call of the function", begun)

	require.NoError(t, (<-conns).Close())
	testkit.Receive(t, "another connection", conns)
	close(finish)

	testkit.AwaitEqual(t, "messages that are left", 0, func() int { return b.messages(t, b.queue) })
	cancel()
	require.NoError(t, testkit.Receive(t, "the end of the run", ended))
	require.Equal(t, []string{"m0", "m0", "m1", "m2", "m3", "m4"}, calls)
	require.EqualValues(t, 5, r.Stats().Acked, "the acknowledgement over the lost connection does not count")
}

func missingQueue(t *testing.T, s *server) {
	b := s.broker(t)
	var dials atomic.Int64
	got := make(chan string, 10)
	r := testkit.Must(newReceiver(func(ctx context.Context) (*amqp.Connection, error) {
		dials.Add(1)
		return s.dial(ctx)
	}, b.queue, brokertest.ReceiverConfig{Logger: logger.Silent(), Receive: func(_ context.Context, r inbox.Request, _ error) error {
		got <- r.ID
		return nil
	}}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	b.Publish(t, brokertest.Message{ID: "one", Data: "1"})
	require.Equal(t, "one", testkit.Receive(t, "a message", got))

	channel := b.channel(t)
	_, err := channel.QueueDelete(b.queue, false, false, false)
	require.NoError(t, err)
	testkit.Await(t, "the receiver asks for the queue", func() (bool, any) { return dials.Load() >= 3, dials.Load() })
	_, err = channel.QueueDeclare(b.queue, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind(b.queue, topic, b.exchange, false, nil))
	b.Publish(t, brokertest.Message{ID: "two", Data: "1"})

	require.Equal(t, "two", testkit.Receive(t, "a message", got))
	cancel()
	require.NoError(t, testkit.Receive(t, "the end of the run", ended))
}

func cannotAcknowledge(t *testing.T, s *server) {
	b := s.broker(t)
	b.Publish(t, brokertest.Message{ID: "one", Data: "1"})
	done := make(chan error, 1)
	park := func(context.Context, amqp.Delivery, error) error { return nil }
	r := testkit.Must(rabbitbroker.NewReceiver(b.dial, b.queue, func(_ context.Context, m amqp.Delivery) error {
		done <- m.Ack(false)
		return nil
	}, park, &rabbitbroker.ReceiverConfig{Logger: logger.Silent()}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()

	require.Error(t, testkit.Receive(t, "the answer of Ack", done))
	testkit.AwaitEqual(t, "acknowledged messages", 1, func() int64 { return r.Stats().Acked })
	cancel()
	require.NoError(t, testkit.Receive(t, "the end of the run", ended))
	require.Zero(t, b.messages(t, b.queue))
}

// Another receiver gets the messages beyond the prefetch of the first.
func prefetched(t *testing.T, s *server) {
	b := s.broker(t)
	for i := range 5 {
		b.Publish(t, brokertest.Message{ID: fmt.Sprint("m", i), Data: "1"})
	}
	park := func(context.Context, amqp.Delivery, error) error { return nil }
	begun, finish := make(chan struct{}, 10), make(chan struct{})
	first := testkit.Must(rabbitbroker.NewReceiver(b.dial, b.queue, func(context.Context, amqp.Delivery) error {
		begun <- struct{}{}
		<-finish
		return nil
	}, park, &rabbitbroker.ReceiverConfig{Prefetch: 2, Logger: logger.Silent()}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- first.Run(ctx) }()
	testkit.Receive(t, "a call of the function", begun)
	second := testkit.Must(rabbitbroker.NewReceiver(b.dial, b.queue, func(context.Context, amqp.Delivery) error { return nil }, park,
		&rabbitbroker.ReceiverConfig{Logger: logger.Silent()}))
	go func() { ended <- second.Run(ctx) }()

	testkit.AwaitEqual(t, "messages of the second receiver", 3, func() int64 { return second.Stats().Acked })
	require.Equal(t, 2, b.messages(t, b.queue))
	close(finish)
	testkit.AwaitEqual(t, "messages of the first receiver", 2, func() int64 { return first.Stats().Acked })
	cancel()
	require.NoError(t, errors.Join(testkit.Receive(t, "the end of a run", ended), testkit.Receive(t, "the end of a run", ended)))
}

// Concurrent calls of Send wait for the same dial, each as long as its context lasts.
func TestADialThatHangsHoldsNobody(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	hang := make(chan struct{})
	sink := testkit.Must(rabbitbroker.NewSink(func(context.Context) (*amqp.Connection, error) {
		dials.Add(1)
		<-hang
		return nil, errors.New("the host is gone")
	}, nil))
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan error, 10)
	for range 10 {
		go func() { answers <- sink.Send(ctx, message(topic, "k", 0)) }()
	}
	testkit.AwaitEqual(t, "dials", 1, dials.Load)
	cancel()
	for range 10 {
		require.ErrorIs(t, testkit.Receive(t, "an answer", answers), context.Canceled)
	}

	go func() { answers <- sink.Send(t.Context(), message(topic, "k", 0)) }()
	close(hang)
	err := testkit.Receive(t, "an answer", answers)
	require.ErrorContains(t, err, "the host is gone")
	require.Nil(t, calling.DispositionOf(err))

	sink.Close()
	sink.Close()
	require.ErrorIs(t, sink.Send(t.Context(), message(topic, "k", 0)), rabbitbroker.ErrSinkClosed)
}

func TestADialThatIsWrongIsAnError(t *testing.T) {
	t.Parallel()
	for text, dial := range map[string]func(context.Context) (*amqp.Connection, error){
		"dial returned no connection": func(context.Context) (*amqp.Connection, error) { return nil, nil },
		"at the disco":                func(context.Context) (*amqp.Connection, error) { panic("at the disco") },
	} {
		sink := testkit.Must(rabbitbroker.NewSink(dial, nil))
		require.ErrorContains(t, sink.Send(t.Context(), message(topic, "k", 0)), text)
		sink.Close()
	}
}

func TestATopicThatIsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	sink := testkit.Must(rabbitbroker.NewSink(func(context.Context) (*amqp.Connection, error) { return nil, errors.New("not called") }, nil))
	defer sink.Close()

	err := sink.Send(t.Context(), message(strings.Repeat("x", 256), "k", 0))

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.True(t, calling.DispositionOf(err).Asks(calling.Refuse))
}

func TestADeliveryAsARequest(t *testing.T) {
	t.Parallel()
	got, err := rabbitbroker.Request(amqp.Delivery{Headers: amqp.Table{"dibs-id": "order 17"}, MessageId: "other", RoutingKey: "payments", Body: []byte(`{"amount":1}`)}, "")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "order 17", Source: "payments", Data: []byte(`{"amount":1}`)}, got)
	got, err = rabbitbroker.Request(amqp.Delivery{MessageId: "order 17", RoutingKey: "payments", Body: []byte(`1`)}, "transfers")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "order 17", Source: "transfers", Data: []byte(`1`)}, got)

	for name, m := range map[string]amqp.Delivery{
		"no id":   {Body: []byte("1")},
		"no JSON": {MessageId: "a", Body: []byte("{")},
	} {
		got, err := rabbitbroker.Request(m, "transfers")
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.True(t, calling.DispositionOf(err).Asks(calling.Refuse), name)
		require.NotEmpty(t, got.Data, name)
	}
}

func TestMistakesAreToldTogether(t *testing.T) {
	t.Parallel()
	dial := func(context.Context) (*amqp.Connection, error) { return nil, errors.New("not called") }
	f := func(context.Context, amqp.Delivery) error { return nil }
	park := func(context.Context, amqp.Delivery, error) error { return nil }
	for field, err := range map[string]error{
		"Exchange":    fault(rabbitbroker.NewSink(dial, &rabbitbroker.SinkConfig{Exchange: strings.Repeat("x", 256)})),
		"Timeout":     fault(rabbitbroker.NewSink(dial, &rabbitbroker.SinkConfig{Timeout: 1})),
		"dial":        fault(rabbitbroker.NewSink(nil, nil)),
		"queue":       fault(rabbitbroker.NewReceiver(dial, "", f, park, nil)),
		"function":    fault(rabbitbroker.NewReceiver(dial, "q", nil, park, nil)),
		"park":        fault(rabbitbroker.NewReceiver(dial, "q", f, nil, nil)),
		"Prefetch":    fault(rabbitbroker.NewReceiver(dial, "q", f, park, &rabbitbroker.ReceiverConfig{Prefetch: 3, Concurrency: 4})),
		"Concurrency": fault(rabbitbroker.NewReceiver(dial, "q", f, park, &rabbitbroker.ReceiverConfig{Concurrency: 1025})),
	} {
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid, field)
		require.Equal(t, field, invalid.Field)
	}
	err := fault(rabbitbroker.NewReceiver(nil, "", nil, nil, &rabbitbroker.ReceiverConfig{Grace: -1, Prefetch: -1}))
	for _, field := range []string{"dial", "queue", "function", "park", "Grace", "Prefetch"} {
		require.ErrorContains(t, err, field)
	}
}

func fault[T any](_ T, err error) error { return err }
