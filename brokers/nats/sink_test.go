package natsbroker_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

func TestAStreamHasEachMessageOnceAndInOrder(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	stream := b.stream(js, nil)
	store := newStore()
	fill(t, store, 10, 0, 10)
	sink := testkit.Must(natsbroker.NewSink(js, nil))

	catchUp(t, relayOf(store, sink, "tonats", nil))

	requireOnce(t, store, js)
	require.Equal(t, natsbroker.SinkStats{Published: 100}, sink.Stats())
	m, err := stream.GetLastMsgForSubject(t.Context(), "payments:outgoing.k3")
	require.NoError(t, err)
	all := messages(t, store)
	last := all[len(all)-1]
	for _, m := range all {
		if m.Stream == "payments:outgoing-k3" {
			last = m
		}
	}
	require.JSONEq(t, string(last.Data), string(m.Data))
	require.Equal(t, last.ID.String(), m.Header.Get(jetstream.MsgIDHeader))
	require.Equal(t, fmt.Sprint(last.GlobalPosition), m.Header.Get(natsbroker.HeaderGlobalPosition))
	for name, value := range (&outbox.Message{Message: last}).Headers() {
		require.Equal(t, value, m.Header.Get(name), name)
	}
}

// The stale sink remembers a sequence from before another one went on.
func TestAStaleSinkIsRefusedByTheServer(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, nil)
	store := newStore()
	fill(t, store, 3, 0, 2)
	stale := testkit.Must(natsbroker.NewSink(js, nil))
	catchUp(t, relayOf(store, stale, "stale", nil))
	fill(t, store, 3, 2, 6)
	catchUp(t, relayOf(store, testkit.Must(natsbroker.NewSink(b.connect(), nil)), "other", nil))
	forget(t, js)

	catchUp(t, relayOf(store, stale, "stale", nil))

	requireOnce(t, store, js)
	require.Equal(t, natsbroker.SinkStats{Published: 6, Present: 12, Conflicts: 3}, stale.Stats())
	fill(t, store, 3, 6, 7)
	catchUp(t, relayOf(store, stale, "stale", nil))
	requireOnce(t, store, js)
}

// If the stream lacks a message of the stale sink, the message is published behind the messages
// that the stream has.
func TestAConflictBehindALowerMessageIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, nil)
	store := newStore()
	write(t, store, "k", 0, 3)
	all := messages(t, store)
	one, two := testkit.Must(natsbroker.NewSink(js, nil)), testkit.Must(natsbroker.NewSink(js, nil))
	message := func(i int) *outbox.Message { return &outbox.Message{Message: all[i], Topic: string(outgoing)} }

	require.NoError(t, one.Send(t.Context(), message(0)))
	require.NoError(t, two.Send(t.Context(), message(1)))
	require.NoError(t, one.Send(t.Context(), message(2)))

	require.EqualValues(t, 1, one.Stats().Conflicts)
	require.EqualValues(t, 2, one.Stats().Published)
	requireOnce(t, store, js)
}

// A batch is published without waiting between messages. If the server refuses a message because
// its subject has moved on, the sink looks again, and each message has its own answer.
func TestABatchIsPublishedOnceThoughItsSubjectsHaveGoneOn(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, nil)
	store := newStore()
	fill(t, store, 20, 0, 3)
	var rounds [3][]*outbox.Message
	for i, m := range messages(t, store) {
		rounds[i/20] = append(rounds[i/20], &outbox.Message{Message: m, Topic: string(outgoing)})
	}
	one, two := testkit.Must(natsbroker.NewSink(js, nil)), testkit.Must(natsbroker.NewSink(b.connect(), nil))
	send := func(sink *natsbroker.Sink, batch []*outbox.Message) {
		for _, err := range sink.SendAll(t.Context(), batch) {
			require.NoError(t, err)
		}
	}
	send(one, rounds[0])
	send(two, rounds[0][:1]) // it knows the stream now, and guesses that the other subjects have nothing
	forget(t, js)
	send(two, rounds[0])
	send(two, rounds[1])
	forget(t, js)
	send(one, append(rounds[1][:10:10], rounds[2][10:]...))
	send(two, rounds[2][:10])

	requireOnce(t, store, js)
	require.Equal(t, natsbroker.SinkStats{Published: 30, Present: 10, Conflicts: 20}, one.Stats())
	require.Equal(t, natsbroker.SinkStats{Published: 30, Present: 21}, two.Stats())

	long := &outbox.Message{Message: rounds[2][0].Message, Topic: strings.Repeat("x", 3000)}
	answers := one.SendAll(t.Context(), []*outbox.Message{rounds[2][1], long, nil, rounds[2][2]})
	require.NoError(t, answers[0])
	require.True(t, refuses(answers[1]))
	require.ErrorIs(t, answers[2], messagestore.ErrInvalid)
	require.NoError(t, answers[3])
	requireOnce(t, store, js)
}

// Streams of one cardinal id are sent beside each other, so each has a subject of its own: behind a
// message of a higher position the sink would take a lower one for sent.
func TestStreamsOfOneCardinalIDHaveSubjectsOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, nil)
	store := newStore()
	for range 5 {
		for _, name := range []messagestore.StreamName{"payments:outgoing-7", "payments:outgoing-7+a", "payments:outgoing-7+b"} {
			_, err := store.Write(t.Context(), name, messagestore.AnyVersion, Paid{})
			require.NoError(t, err)
		}
	}
	catchUp(t, relayOf(store, testkit.Must(natsbroker.NewSink(js, nil)), "one", nil))
	forget(t, js)

	catchUp(t, relayOf(store, testkit.Must(natsbroker.NewSink(js, nil)), "two", nil))

	requireOnce(t, store, js)
}

func TestHostileKeysAndTopicsStayInTheirTokens(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, func(c *jetstream.StreamConfig) { c.Subjects = []string{"all.*.*"} })
	store := newStore()
	texts := []string{"a.b", "*", ">", "a b", "%", "%2E", "ä€😀", "$JS", "-", "+", "a+b", "..", ".", "_", "a:b", strings.Repeat("ü", 100), "\"'\\"}
	var identifiers []string // as they are in the names of streams
	for _, text := range texts {
		write(t, store, text, 0, 2)
		identifiers = append(identifiers, outgoing.Stream(text).ID())
	}
	topics := append([]string{"", "\x00\r\n\t", "\xff", "PUB x"}, texts...)
	var next atomic.Int64
	sink := testkit.Must(natsbroker.NewSink(js, &natsbroker.SinkConfig{Prefix: "all", Stream: "OUT"}))
	relay := relayOf(store, sink, "tonats", &outbox.Config{Topic: func(m *messagestore.Message) string {
		return topics[int(next.Add(1))%len(topics)]
	}})

	catchUp(t, relay)

	require.EqualValues(t, 2*len(texts), sink.Stats().Published)
	require.Zero(t, relay.Stats().Dead)
	total := 0
	for subject, messages := range arrived(t, js) {
		tokens := strings.Split(subject, ".")
		require.Len(t, tokens, 3, subject)
		topic, err := natsbroker.Unescape(tokens[1])
		require.NoError(t, err)
		require.Contains(t, topics, topic)
		key, err := natsbroker.Unescape(tokens[2])
		require.NoError(t, err)
		require.Contains(t, identifiers, key)
		total += len(messages)
	}
	require.Equal(t, 2*len(texts), total)
}

func FuzzEscape(f *testing.F) {
	for _, seed := range []string{"", "a", ".", "*", ">", " ", "%", "%41", "ä", "\x00\xff"} {
		f.Add(seed, "b")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		token := natsbroker.Escape(a)
		require.NotEmpty(t, token)
		require.Negative(t, strings.IndexFunc(token, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(".*>$", c) }))
		back, err := natsbroker.Unescape(token)
		require.NoError(t, err)
		require.Equal(t, a, back)
		require.Equal(t, a == b, token == natsbroker.Escape(b))
		if back, err := natsbroker.Unescape(a); err == nil {
			require.Equal(t, a, natsbroker.Escape(back))
		} else {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
		}
	})
}

// refuses reports whether an error is a refusal: its message is dead.
func refuses(err error) bool { return calling.DispositionOf(err).Asks(calling.Refuse) }

func TestAMessageThatIsTooLargeIsDeadAndThoseBehindItWait(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*broker, *jetstream.StreamConfig){
		"the server": func(b *broker, _ *jetstream.StreamConfig) { b.options.MaxPayload = 2000 },
		"the stream": func(_ *broker, c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			var config jetstream.StreamConfig
			change(b, &config)
			b.stop()
			b.start()
			js := b.connect()
			b.stream(js, func(c *jetstream.StreamConfig) { c.MaxMsgSize = config.MaxMsgSize })
			store := newStore()
			write(t, store, "large", 0, 2)
			_, err := store.Write(t.Context(), outgoing.Stream("large"), messagestore.AnyVersion, Paid{Text: strings.Repeat("x", 4000)})
			require.NoError(t, err)
			write(t, store, "large", 3, 5)
			write(t, store, "small", 0, 5)
			relay := relayOf(store, testkit.Must(natsbroker.NewSink(js, nil)), "tonats", nil)

			catchUp(t, relay)

			require.EqualValues(t, 1, relay.Stats().Dead)
			requireOnce(t, store, js, "payments:outgoing-large@2", "payments:outgoing-large@3", "payments:outgoing-large@4")
		})
	}
}

func TestASubjectThatIsTooLongParks(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	sink := testkit.Must(natsbroker.NewSink(b.connect(), nil))
	m := &outbox.Message{Message: &messagestore.Message{Stream: "payments:outgoing-7", ID: uuid.New()}, Topic: strings.Repeat("x", 3000)}

	err := sink.Send(t.Context(), m)

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.True(t, refuses(err))
	require.Less(t, len(err.Error()), 400)
}

// A foreign message is noticed before anything is published.
func TestAForeignLastMessageParks(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	stream := b.stream(js, nil)
	store := newStore()
	write(t, store, "k", 0, 1)
	all := messages(t, store)
	m := &outbox.Message{Message: all[0], Topic: string(outgoing)}
	for name, header := range map[string]nats.Header{
		"none":             {},
		"no number":        {natsbroker.HeaderGlobalPosition: {"x"}, outbox.HeaderStream: {"payments:outgoing-k"}},
		"another category": {natsbroker.HeaderGlobalPosition: {"0"}, outbox.HeaderStream: {"payments:incoming-k"}},
		"another message at the position": {
			natsbroker.HeaderGlobalPosition: {fmt.Sprint(m.GlobalPosition)}, outbox.HeaderStream: {"payments:outgoing-k"}, outbox.HeaderID: {uuid.NewString()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, stream.Purge(t.Context()))
			ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "payments:outgoing.k", Header: header})
			require.NoError(t, err)

			err = testkit.Must(natsbroker.NewSink(js, nil)).Send(t.Context(), m)

			var foreign *natsbroker.ForeignMessageError
			require.ErrorAs(t, err, &foreign)
			require.Equal(t, ack.Sequence, foreign.Sequence)
			require.True(t, calling.DispositionOf(err).Asks(calling.Park))
		})
	}
}

// Where the last message was removed, as in a work queue, the server knows the id for a while.
func TestAnIDIsKnownWhereTheMessageIsNoMore(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	stream := b.stream(js, func(c *jetstream.StreamConfig) {
		c.Retention, c.Duplicates = jetstream.WorkQueuePolicy, time.Hour
	})
	c, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	store := newStore()
	write(t, store, "k", 0, 1)
	catchUp(t, relayOf(store, testkit.Must(natsbroker.NewSink(js, nil)), "one", nil))
	m, err := c.Next(jetstream.FetchMaxWait(testkit.WaitLimit))
	require.NoError(t, err)
	require.NoError(t, m.DoubleAck(t.Context()))
	again := testkit.Must(natsbroker.NewSink(js, nil))

	catchUp(t, relayOf(store, again, "two", nil))

	require.Equal(t, natsbroker.SinkStats{Present: 1}, again.Stats())
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Msgs)
}

// After a purge and the time of the ids, a relay of another name fills the stream again, also from
// a sink that remembers.
func TestAPurgedStreamIsFilledAgain(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	stream := b.stream(js, nil)
	store := newStore()
	fill(t, store, 3, 0, 3)
	sink := testkit.Must(natsbroker.NewSink(js, nil))
	catchUp(t, relayOf(store, sink, "one", nil))
	forget(t, js)
	require.NoError(t, stream.Purge(t.Context()))

	catchUp(t, relayOf(store, sink, "two", nil))

	requireOnce(t, store, js)
}

func TestWhatMayPassIsTriedAgainAndHoldsNoSecret(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	store := newStore()
	write(t, store, "k", 0, 1)
	all := messages(t, store)
	m := &outbox.Message{Message: all[0], Topic: string(outgoing)}
	js := b.connect()

	t.Run("no stream", func(t *testing.T) {
		err := testkit.Must(natsbroker.NewSink(js, nil)).Send(t.Context(), m)
		require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
		require.Nil(t, calling.DispositionOf(err))
	})
	b.stream(js, nil)
	t.Run("another stream", func(t *testing.T) {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}})
		require.NoError(t, err)
		err = testkit.Must(natsbroker.NewSink(js, &natsbroker.SinkConfig{Stream: "OTHER"})).Send(t.Context(), m)
		require.Error(t, err)
		require.Nil(t, calling.DispositionOf(err))
	})
	t.Run("no server", func(t *testing.T) {
		conn, err := nats.Connect("nats://me:hunter2@127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
		require.NoError(t, err)
		defer conn.Close()
		away, err := jetstream.New(conn)
		require.NoError(t, err)
		err = testkit.Must(natsbroker.NewSink(away, &natsbroker.SinkConfig{Timeout: 50 * time.Millisecond})).Send(t.Context(), m)
		require.Error(t, err)
		require.Nil(t, calling.DispositionOf(err))
		require.NotContains(t, err.Error(), "hunter2")
		conn.Close()
		err = testkit.Must(natsbroker.NewSink(away, nil)).Send(t.Context(), m)
		require.ErrorIs(t, err, nats.ErrConnectionClosed)
		require.Nil(t, calling.DispositionOf(err))
	})
}

func TestMistakesOfASinkAreToldTogether(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	_, err := natsbroker.NewSink(js, &natsbroker.SinkConfig{Prefix: "a.b-c", Stream: "OUT", Timeout: time.Second, Remember: 1})
	require.NoError(t, err)
	for field, config := range map[string]natsbroker.SinkConfig{
		"Prefix": {Prefix: "a..b"}, "Stream": {Stream: "a.b"}, "Timeout": {Timeout: -1}, "Remember": {Remember: 1<<20 + 1},
	} {
		_, err := natsbroker.NewSink(js, &config)
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, field, invalid.Field)
	}
	for _, prefix := range []string{".", "a.", ".a", "*", "a.>", "a b", "ä", "$JS", "a\n", strings.Repeat("x", 256)} {
		_, err := natsbroker.NewSink(js, &natsbroker.SinkConfig{Prefix: prefix})
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", prefix)
	}
	sink, err := natsbroker.NewSink(nil, &natsbroker.SinkConfig{Prefix: "*", Timeout: 1})
	require.Nil(t, sink)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "JetStream")
	require.ErrorContains(t, err, "Prefix")
	require.ErrorContains(t, err, "Timeout")
}
