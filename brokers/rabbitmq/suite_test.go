package rabbitbroker_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/brokers/internal/brokertest"
	rabbitbroker "github.com/dibs-go/dibs/brokers/rabbitmq"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/outbox"
)

func TestMain(m *testing.M) {
	testkit.ManyAtOnce()
	os.Exit(brokertest.Main(m, func(ctx context.Context, address string, config brokertest.ReceiverConfig) error {
		url, queue, _ := strings.Cut(address, " ")
		r, err := newReceiver(func(context.Context) (*amqp.Connection, error) { return amqp.Dial(url) }, queue, config)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}))
}

func TestASinkKeepsItsPromises(t *testing.T) {
	t.Parallel()
	const most = 100_000
	shared := startServer(t, most)
	brokertest.Sinks(t, brokertest.SinkOptions{
		TooLarge: 500_000,
		Start:    func(t testing.TB) brokertest.SinkBroker { return startServer(t, most).broker(t) },
		Share:    func(t testing.TB) brokertest.SinkBroker { return shared.broker(t) },
	})
	for name, test := range map[string]func(*testing.T, *server){
		"a message that no queue takes is returned":        returned,
		"an exchange that is missing is tried again":       missingExchange,
		"after a nack nothing of its key passes a message": nacked,
		"many messages are in flight":                      inFlight,
		"a blocked broker gets no messages":                blocked,
		"a message that is too large fails alone":          tooLargeAmongOthers,
		"a lost connection is dialed again":                redialed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, shared)
		})
	}
}

func TestAReceiverKeepsItsPromises(t *testing.T) {
	t.Parallel()
	const most = 4 << 20
	shared := startServer(t, most)
	brokertest.Receivers(t, brokertest.ReceiverOptions{
		Ordered: true,
		Start:   func(t testing.TB) brokertest.ReceiverBroker { return startServer(t, most).broker(t) },
		Share:   func(t testing.TB) brokertest.ReceiverBroker { return shared.broker(t) },
	})
	for name, test := range map[string]func(*testing.T, *server){
		"what was in hand comes again over another connection": comesAgainInOrder,
		"a queue that is missing is waited for":                missingQueue,
		"a function cannot acknowledge":                        cannotAcknowledge,
		"the prefetch bounds what a receiver has":              prefetched,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, shared)
		})
	}
}

// A broker has an exchange and a queue for one test.
type broker struct {
	*server
	exchange, queue string
}

var brokers atomic.Int64

func (s *server) broker(t testing.TB) *broker { return s.brokerWith(t, nil) }

// brokerWith returns a broker whose queue has arguments.
func (s *server) brokerWith(t testing.TB, arguments amqp.Table) *broker {
	n := brokers.Add(1)
	b := &broker{s, fmt.Sprint("exchange-", n), fmt.Sprint("queue-", n)}
	b.declare(t, arguments)
	return b
}

func (b *broker) declare(t testing.TB, arguments amqp.Table) {
	channel := b.channel(t)
	require.NoError(t, channel.ExchangeDeclare(b.exchange, "direct", true, false, false, false, nil))
	_, err := channel.QueueDeclare(b.queue, true, false, false, false, arguments)
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind(b.queue, string(brokertest.Outgoing), b.exchange, false, nil))
}

func (b *broker) Remake(t testing.TB) {
	channel := b.channel(t)
	_, err := channel.QueueDelete(b.queue, false, false, false)
	require.NoError(t, err)
	require.NoError(t, channel.ExchangeDelete(b.exchange, false, false))
	b.declare(t, nil)
}

func (b *broker) Address() string { return b.url() + " " + b.queue }

func (b *broker) Sink(t testing.TB) outbox.Sink { return b.sink(t) }

func (b *broker) sink(t testing.TB) *rabbitbroker.Sink {
	sink := testkit.Must(rabbitbroker.NewSink(b.dial, &rabbitbroker.SinkConfig{Exchange: b.exchange, Timeout: 5 * time.Second}))
	t.Cleanup(sink.Close)
	return sink
}

// Arrived reads the queue, which gets its messages back.
func (b *broker) Arrived(t testing.TB) (all []brokertest.Message) {
	channel := b.channel(t)
	defer channel.Close()
	for n := b.messages(t, b.queue); len(all) < n; {
		m, is, err := channel.Get(b.queue, false)
		require.NoError(t, err)
		if !is { // those of a reader before are on their way back
			continue
		}
		a := brokertest.Message{Data: string(m.Body), Headers: map[string]string{}}
		for name, value := range m.Headers {
			a.Headers[name], _ = value.(string)
		}
		require.Equal(t, m.MessageId, a.Headers[outbox.HeaderID])
		require.Equal(t, amqp.Persistent, m.DeliveryMode)
		a.ID, a.Key = m.MessageId, brokertest.KeyOf(t, a.Headers)
		all = append(all, a)
	}
	return all
}

func (b *broker) Publish(t testing.TB, messages ...brokertest.Message) {
	channel := b.channel(t)
	var last *amqp.DeferredConfirmation
	for _, m := range messages {
		headers := amqp.Table{outbox.HeaderStream: string(brokertest.Outgoing.Stream(m.Key))}
		if m.ID != "" {
			headers[outbox.HeaderID] = m.ID
		}
		var err error
		last, err = channel.PublishWithDeferredConfirm(b.exchange, string(brokertest.Outgoing), true, false,
			amqp.Publishing{Headers: headers, DeliveryMode: amqp.Persistent, Body: []byte(m.Data)})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), testkit.WaitLimit)
		acked, err := last.WaitContext(ctx)
		cancel()
		require.NoError(t, err)
		require.True(t, acked)
	}
}

func (b *broker) Unsettled(t testing.TB) int { return b.messages(t, b.queue) }

func (b *broker) Receiver(t testing.TB, config brokertest.ReceiverConfig) brokertest.Receiver {
	r, err := newReceiver(b.dial, b.queue, config)
	require.NoError(t, err)
	return r
}

type suiteReceiver struct{ *rabbitbroker.Receiver }

func (r suiteReceiver) Stats() brokertest.ReceiverStats {
	return brokertest.ReceiverStats(r.Receiver.Stats())
}

func newReceiver(dial func(context.Context) (*amqp.Connection, error), queue string, config brokertest.ReceiverConfig) (suiteReceiver, error) {
	r, err := rabbitbroker.NewReceiver(dial, queue, func(ctx context.Context, m amqp.Delivery) error {
		r, err := rabbitbroker.Request(m, "")
		return config.Receive(ctx, r, err)
	}, func(ctx context.Context, m amqp.Delivery, reason error) error {
		r, _ := rabbitbroker.Request(m, "")
		return config.Park(ctx, r, reason)
	}, &rabbitbroker.ReceiverConfig{
		Concurrency: config.Concurrency, Attempts: config.Attempts, MaxDelay: config.MaxDelay, Grace: config.Grace, Logger: config.Logger,
	})
	return suiteReceiver{r}, err
}
