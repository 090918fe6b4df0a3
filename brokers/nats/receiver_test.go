package natsbroker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// consumerOf makes a consumer of the stream OUT.
func consumerOf(t testing.TB, js jetstream.JetStream, config jetstream.ConsumerConfig) jetstream.Consumer {
	config.Durable, config.AckPolicy = "in", jetstream.AckExplicitPolicy
	config.AckWait = cmp.Or(config.AckWait, time.Hour)
	c, err := js.CreateOrUpdateConsumer(t.Context(), "OUT", config)
	require.NoError(t, err)
	return c
}

// publish adds messages with ids to a stream that remembers them. A request that is sent while the
// server goes away gets no answer, and is sent again.
func publish(t testing.TB, js jetstream.JetStream, ids ...string) {
	for _, id := range ids {
		data := fmt.Appendf(nil, `{"amount":%d}`, len(id))
		testkit.Await(t, "the stream has "+id, func() (bool, any) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := js.Publish(ctx, string(outgoing)+".k", data, jetstream.WithMsgID(id))
			return err == nil, err
		})
	}
}

func untilAcked(t testing.TB, r *natsbroker.Receiver, messages int64) {
	t.Helper()
	testkit.Await(t, fmt.Sprint("acknowledged messages: ", messages), func() (bool, any) { return r.Stats().Acked == messages, r.Stats() })
}

func parkNone(context.Context, jetstream.Msg, error) error {
	return errors.New("nothing is to be parked")
}

func receiverOf(c jetstream.Consumer, f func(ctx context.Context, m jetstream.Msg) error, config *natsbroker.ReceiverConfig) *natsbroker.Receiver {
	var full natsbroker.ReceiverConfig
	if config != nil {
		full = *config
	}
	full.Logger = logger.Silent()
	return testkit.Must(natsbroker.NewReceiver(c, f, parkNone, &full))
}

// info returns the server's data about a consumer.
func info(t testing.TB, c jetstream.Consumer) *jetstream.ConsumerInfo {
	i, err := c.Info(t.Context())
	require.NoError(t, err)
	return i
}

func TestAMessageThatTakesLongIsNotDeliveredToAnother(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	publish(t, js, "slow")

	ackWait := 50 * time.Millisecond
	testkit.Await(t, "a message stays with its receiver on a machine that is in time", func() (bool, any) {
		ackWait *= 2
		c := consumerOf(t, js, jetstream.ConsumerConfig{AckWait: ackWait})
		var calls atomic.Int64
		r := receiverOf(c, func(context.Context, jetstream.Msg) error {
			calls.Add(1)
			<-time.After(4 * ackWait)
			return nil
		}, &natsbroker.ReceiverConfig{Concurrency: 2})
		stop := running(t, r.Run)
		testkit.Await(t, "the message is acknowledged", func() (bool, any) { return r.Stats().Acked > 0, r.Stats() })
		stop()
		redelivered := info(t, c).NumRedelivered
		require.NoError(t, js.DeleteConsumer(t.Context(), "OUT", "in"))
		return calls.Load() == 1 && redelivered == 0, fmt.Sprintf("within %v: %d calls", 4*ackWait, calls.Load())
	})
}

func TestARunEndsWithItsConsumerOrConnection(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.stream(b.connect(), remembers)
	nothing := func(context.Context, jetstream.Msg) error { return nil }

	js := b.connect()
	ended := make(chan error, 1)
	r := receiverOf(consumerOf(t, js, jetstream.ConsumerConfig{}), nothing, nil)
	go func() { ended <- r.Run(t.Context()) }()
	publish(t, js, "one")
	untilAcked(t, r, 1)
	require.NoError(t, js.DeleteConsumer(t.Context(), "OUT", "in"))
	require.ErrorIs(t, testkit.Receive(t, "the end of the run", ended), jetstream.ErrConsumerDeleted)

	r = receiverOf(consumerOf(t, js, jetstream.ConsumerConfig{}), nothing, nil)
	js.Conn().Close()
	require.ErrorIs(t, r.Run(t.Context()), nats.ErrConnectionClosed)
}

// A message is a message made by a test.
type message struct {
	jetstream.Msg
	subject string
	header  nats.Header
	data    []byte
}

func (m message) Subject() string      { return m.subject }
func (m message) Headers() nats.Header { return m.header }
func (m message) Data() []byte         { return m.data }

func TestWhatAUnitTakesOfAMessage(t *testing.T) {
	t.Parallel()
	of := func(id, subject, data string) message {
		header := nats.Header{}
		if id != "" {
			header.Set(jetstream.MsgIDHeader, id)
		}
		return message{subject: subject, header: header, data: []byte(data)}
	}
	got, err := natsbroker.Request(of("order 17+é", "bank.transfers.ann", `{"amount":1}`), "")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "order 17+é", Source: "bank.transfers", Data: json.RawMessage(`{"amount":1}`)}, got)

	got, err = natsbroker.Request(of("a", "alone", ""), "")
	require.NoError(t, err)
	require.Equal(t, "alone", got.Source)

	m := of("", "bank.transfers.ann", `1`)
	m.header.Set("dibs-id", "01a2")
	got, err = natsbroker.Request(m, "POST /transfers")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "01a2", Source: "POST /transfers", Data: json.RawMessage(`1`)}, got)

	for name, m := range map[string]message{
		"no id":               of("", "a.b", `{}`),
		"no header":           {subject: "a.b", data: []byte(`{}`)},
		"a blank id":          of(" \t", "a.b", `{}`),
		"an invisible id":     of("\u200b", "a.b", `{}`),
		"an id of bytes":      of("\xff", "a.b", `{}`),
		"no JSON":             of("a", "a.b", `{"amount":`),
		"two values":          of("a", "a.b", `{} {}`),
		"bytes":               of("a", "a.b", "\"\xff\""),
		"too large":           of("a", "a.b", `"`+strings.Repeat("x", messagestore.MaxMessageBytes)+`"`),
		"a long source":       of("a", strings.Repeat("x", 256)+".k", `{}`),
		"a source of bytes":   of("a", "\xff.k", `{}`),
		"a source with a NUL": of("a", "\x00.k", `{}`),
	} {
		_, err := natsbroker.Request(m, "")
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.True(t, refuses(err), name)
		require.Less(t, len(err.Error()), 1000, name)
	}
}

func TestMistakesOfAReceiverAreToldTogether(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	c := consumerOf(t, js, jetstream.ConsumerConfig{})
	f := func(context.Context, jetstream.Msg) error { return nil }
	_, err := natsbroker.NewReceiver(c, f, parkNone, nil)
	require.NoError(t, err)
	for field, config := range map[string]natsbroker.ReceiverConfig{
		"Concurrency": {Concurrency: 1025}, "MaxDelay": {MaxDelay: time.Millisecond}, "Grace": {Grace: -1}, "Attempts": {Attempts: -1},
	} {
		_, err := natsbroker.NewReceiver(c, f, parkNone, &config)
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, field, invalid.Field)
	}
	r, err := natsbroker.NewReceiver(nil, nil, nil, &natsbroker.ReceiverConfig{Concurrency: -1})
	require.Nil(t, r)
	require.ErrorContains(t, err, "invalid receiver: ")
	require.ErrorContains(t, err, "consumer")
	require.ErrorContains(t, err, "function")
	require.ErrorContains(t, err, "park")
	require.ErrorContains(t, err, "Concurrency")

	none, err := js.CreateOrUpdateConsumer(t.Context(), "OUT", jetstream.ConsumerConfig{Durable: "all", AckPolicy: jetstream.AckAllPolicy})
	require.NoError(t, err)
	_, err = natsbroker.NewReceiver(none, f, parkNone, nil)
	require.ErrorContains(t, err, "explicit")
}
