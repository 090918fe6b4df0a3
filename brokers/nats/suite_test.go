package natsbroker_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/brokers/internal/brokertest"
	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/outbox"
)

func TestMain(m *testing.M) {
	os.Exit(brokertest.Main(m, func(ctx context.Context, address string, config brokertest.ReceiverConfig) error {
		conn, err := nats.Connect(address)
		if err != nil {
			return err
		}
		js, err := jetstream.New(conn)
		if err != nil {
			return err
		}
		c, err := js.Consumer(ctx, "OUT", "in")
		if err != nil {
			return err
		}
		r, err := newReceiver(c, config)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}))
}

func TestASinkKeepsItsPromises(t *testing.T) {
	t.Parallel()
	brokertest.Sinks(t, brokertest.SinkOptions{Once: true, TooLarge: 500_000, Start: func(t testing.TB) brokertest.SinkBroker {
		b := startBroker(t)
		b.stop()
		b.options.MaxPayload = 100_000
		b.start()
		b.stream(b.connect(), nil)
		return &suiteBroker{b}
	}})
}

func TestAReceiverKeepsItsPromises(t *testing.T) {
	t.Parallel()
	brokertest.Receivers(t, brokertest.ReceiverOptions{Ends: true, Start: func(t testing.TB) brokertest.ReceiverBroker {
		b := startBroker(t)
		b.stop()
		b.options.MaxPayload = 4 << 20
		b.start()
		js := b.connect()
		b.stream(js, nil)
		consumerOf(t, js, jetstream.ConsumerConfig{AckWait: time.Second})
		return &suiteBroker{b}
	}})
}

// A suiteBroker is a server as the suites have it. Its keys are escaped.
type suiteBroker struct{ *broker }

func (b *suiteBroker) Kill(testing.TB)  { b.stop() }
func (b *suiteBroker) Start(testing.TB) { b.start() }
func (b *suiteBroker) Address() string  { return b.server.ClientURL() }

func (b *suiteBroker) Remake(t testing.TB) {
	js := b.connect()
	_, err := js.Consumer(t.Context(), "OUT", "in")
	received := err == nil
	// The server may still be deleting the old stream, and make the new one from its files.
	testkit.Await(t, "the stream is made again", func() (bool, any) {
		require.NoError(t, js.DeleteStream(t.Context(), "OUT"))
		b.stream(js, nil)
		info, err := testkit.Must(js.Stream(t.Context(), "OUT")).Info(t.Context())
		require.NoError(t, err)
		return info.State.Msgs == 0, info.State
	})
	if received {
		consumerOf(t, js, jetstream.ConsumerConfig{AckWait: time.Second})
	}
}

func (b *suiteBroker) Sink(testing.TB) outbox.Sink {
	return testkit.Must(natsbroker.NewSink(b.connect(), &natsbroker.SinkConfig{Timeout: time.Second}))
}

func (b *suiteBroker) Forget(t testing.TB) { forget(t, b.connect()) }

func (b *suiteBroker) Arrived(t testing.TB) (all []brokertest.Message) {
	stream, err := b.connect().Stream(t.Context(), "OUT")
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	c, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	for range info.State.Msgs {
		m, err := c.Next(jetstream.FetchMaxWait(testkit.WaitLimit))
		require.NoError(t, err)
		key, err := natsbroker.Unescape(m.Subject()[strings.LastIndexByte(m.Subject(), '.')+1:])
		require.NoError(t, err)
		a := brokertest.Message{ID: m.Headers().Get(jetstream.MsgIDHeader), Key: key, Data: string(m.Data()), Headers: map[string]string{}}
		for name, values := range m.Headers() {
			a.Headers[name] = values[0]
		}
		all = append(all, a)
	}
	return all
}

// Publish publishes copies too: the server's own deduplication is by Nats-Msg-Id, which these do
// not have. A request that is sent while the server goes away gets no answer, and is sent again.
func (b *suiteBroker) Publish(t testing.TB, messages ...brokertest.Message) {
	js := b.connect()
	for _, m := range messages {
		header := nats.Header{jetstream.MsgIDHeader: {uuid.NewString()}}
		if m.ID != "" {
			header.Set(outbox.HeaderID, m.ID)
		}
		testkit.Await(t, "the stream has "+m.ID, func() (bool, any) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := js.PublishMsg(ctx, &nats.Msg{Subject: string(outgoing) + "." + natsbroker.Escape(m.Key), Data: []byte(m.Data), Header: header})
			return err == nil, err
		})
	}
}

func (b *suiteBroker) Unsettled(t testing.TB) (messages int) {
	js := b.connect()
	defer js.Conn().Close()
	testkit.Await(t, "the server knows its consumer", func() (bool, any) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c, err := js.Consumer(ctx, "OUT", "in")
		if err != nil {
			return false, err
		}
		info := c.CachedInfo()
		messages = info.NumAckPending + int(info.NumPending)
		return true, nil
	})
	return messages
}

func (b *suiteBroker) Receiver(t testing.TB, config brokertest.ReceiverConfig) brokertest.Receiver {
	c, err := b.connect().Consumer(t.Context(), "OUT", "in")
	require.NoError(t, err)
	r, err := newReceiver(c, config)
	require.NoError(t, err)
	return r
}

type suiteReceiver struct{ *natsbroker.Receiver }

func (r suiteReceiver) Stats() brokertest.ReceiverStats {
	return brokertest.ReceiverStats(r.Receiver.Stats())
}

func newReceiver(c jetstream.Consumer, config brokertest.ReceiverConfig) (suiteReceiver, error) {
	request := func(m jetstream.Msg) (inbox.Request, error) {
		m = ownID{m}
		return natsbroker.Request(m, "")
	}
	r, err := natsbroker.NewReceiver(c, func(ctx context.Context, m jetstream.Msg) error {
		r, err := request(m)
		return config.Receive(ctx, r, err)
	}, func(ctx context.Context, m jetstream.Msg, reason error) error {
		r, _ := request(m)
		return config.Park(ctx, r, reason)
	}, &natsbroker.ReceiverConfig{
		Concurrency: config.Concurrency, Attempts: config.Attempts, MaxDelay: config.MaxDelay, Grace: config.Grace, Logger: config.Logger,
	})
	return suiteReceiver{r}, err
}

// An ownID is a message without the id by which the server deduplicates: the copies of a test have
// different ones.
type ownID struct{ jetstream.Msg }

func (m ownID) Headers() nats.Header {
	header := nats.Header{}
	for name, values := range m.Msg.Headers() {
		if name != jetstream.MsgIDHeader {
			header[name] = values
		}
	}
	return header
}
