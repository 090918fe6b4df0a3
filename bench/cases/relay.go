package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	watermillmessage "github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// The category and the sizes of the cases of relays, which send what was written to a sink.
const (
	outgoing messagestore.Category = "payments:outgoing"

	relayFlight = 64 // how many requests are in flight at a time
	relayEach   = 3  // messages of each key
	deadKey     = 77 // of which the receiver refuses the first message
)

// The names of contenders.
const (
	bareHTTP  = "HTTP client"
	oneDead   = "Dibs, one key dead"
	forwarded = "Watermill's forwarder"
)

// Relay returns the cases of sending written messages.
func Relay() []measure.Case {
	return []measure.Case{
		{
			Name:  "relay/http",
			Shows: "Send a backlog of 10,000 keys by HTTP, 64 requests in flight; the client alone posts the same bodies, in no order",
			Contenders: []measure.Contender{
				{Name: dibs, Run: relayHTTP(false)}, {Name: oneDead, Run: relayHTTP(true)}, {Name: bareHTTP, Run: postAll},
			},
			Goals: []measure.Goal{
				{Metric: measure.Rate, Of: dibs, To: bareHTTP, AtLeast: 0.7},
				{Metric: measure.Rate, Of: oneDead, To: dibs, AtLeast: 0.95},
			},
		},
		{
			Name:  "relay/jetstream",
			Shows: "Send a backlog of 10,000 keys to JetStream on disk, in order",
			Contenders: []measure.Contender{
				{Name: dibs, Run: relayJetStream}, {Name: forwarded, Run: forward},
			},
			Goals: []measure.Goal{{Metric: measure.Rate, Of: dibs, To: forwarded, AtLeast: 3}},
		},
	}
}

func relayKeys(cell *measure.Cell) int { return size(cell, 100, 10_000, 10_000) }

func outgoingKey(key int) messagestore.StreamName { return outgoing.Stream(fmt.Sprint("k", key)) }

// relayed is a message's content.
func relayed(key int) messagestore.Envelope { return message(string(outgoingKey(key)), 1) }

// openOutbox opens a store with the messages of all keys: first the first message of each key, then
// the second, and so on.
func openOutbox(ctx context.Context, cell *measure.Cell) (*dibsStore, int64, error) {
	s, err := openQueueStore(ctx, cell)
	if err != nil {
		return nil, 0, err
	}
	keys := relayKeys(cell)
	for range relayEach {
		for first := 0; first < keys; first += messagestore.MaxWriteStreams {
			var writes []messagestore.StreamWrite
			for key := first; key < min(first+messagestore.MaxWriteStreams, keys); key++ {
				writes = append(writes, messagestore.To(outgoingKey(key), messagestore.AnyVersion, relayed(key)))
			}
			if _, err := s.WriteStreams(ctx, writes...); err != nil {
				return nil, 0, err
			}
		}
	}
	return s, int64(keys * relayEach), nil
}

// relay sends all messages; if a key is dead, all but the messages of that key.
func relay(ctx context.Context, cell *measure.Cell, s *dibsStore, sink outbox.Sink, want int64) error {
	r, err := outbox.New(s.Store, outgoing, "relay", sink, &outbox.Config{Concurrency: relayFlight, Logger: logger.Silent()})
	if err != nil {
		return err
	}
	err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
		err := r.CatchUp(ctx)
		return r.Stats().Sent, err
	})
	return errors.Join(err, cell.Check("messages sent", r.Stats().Sent, want))
}

// A receiver answers requests, and checks the order of each stream's messages.
type receiver struct {
	*httptest.Server

	mu   sync.Mutex
	next map[string]int // by stream
	n    int64
}

// receiveHTTP starts a receiver, until the cell is over. It refuses all messages of a key, if it is
// to.
func receiveHTTP(cell *measure.Cell, refuses bool) *receiver {
	r := &receiver{next: map[string]int{}}
	dead := string(outgoingKey(deadKey))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		_, err := io.Copy(io.Discard, request.Body)
		stream := request.Header.Get(outbox.HeaderStream)
		switch {
		case err != nil:
			w.WriteHeader(http.StatusInternalServerError)
		case refuses && stream == dead || !r.take(stream, request.Header.Get(outbox.HeaderPosition)):
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	cell.Cleanup(func(context.Context) error {
		r.Close()
		return nil
	})
	return r
}

// take counts a message, and reports whether it is the next of its stream. One of no stream always
// is.
func (r *receiver) take(stream, position string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stream != "" && position != fmt.Sprint(r.next[stream]) {
		return false
	}
	r.next[stream]++
	r.n++
	return true
}

func (r *receiver) received() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

func relayHTTP(dead bool) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		s, n, err := openOutbox(ctx, cell)
		if err != nil {
			return err
		}
		to := receiveHTTP(cell, dead)
		sink, err := outbox.HTTP(to.URL, nil)
		if err != nil {
			return err
		}
		defer sink.Close()
		if dead {
			n -= relayEach
		}
		err = relay(ctx, cell, s, sink, n)
		return errors.Join(err, cell.Check("messages in order", to.received(), n))
	}
}

// postAll posts the bodies of as many messages.
func postAll(ctx context.Context, cell *measure.Cell) error {
	to := receiveHTTP(cell, false)
	keys := relayKeys(cell)
	bodies := make([]string, keys*relayEach)
	for i := range bodies {
		body, err := json.Marshal(relayed(i % keys).Body)
		if err != nil {
			return err
		}
		bodies[i] = string(body)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: relayFlight, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	err := cell.Once(ctx, func(context.Context) (int64, error) {
		return int64(len(bodies)), atOnce(relayFlight, len(bodies), func(i int) error { return post(client, to.URL, bodies[i]) })
	})
	return errors.Join(err, cell.Check("messages received", to.received(), int64(len(bodies))))
}

func post(client *http.Client, url, body string) error {
	answer, err := client.Post(url, "application/json", strings.NewReader(body)) //nolint:noctx // the cell waits for all
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(answer.Status))
	}
	return errors.Join(err, answer.Body.Close())
}

// openJetStream starts a server with its files on disk and a stream of all that is outgoing, until
// the cell is over.
func openJetStream(ctx context.Context, cell *measure.Cell) (url string, stream jetstream.Stream, js jetstream.JetStream, err error) {
	dir, err := os.MkdirTemp("", "dibs-bench-nats-")
	if err != nil {
		return "", nil, nil, err
	}
	cell.Cleanup(func(context.Context) error { return os.RemoveAll(dir) })
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return "", nil, nil, err
	}
	s.Start()
	cell.Cleanup(func(context.Context) error {
		s.Shutdown()
		s.WaitForShutdown()
		return nil
	})
	if !s.ReadyForConnections(mostWaited) {
		return "", nil, nil, errors.New("nats-server does not start")
	}
	conn, err := nats.Connect(s.ClientURL())
	if err != nil {
		return "", nil, nil, err
	}
	cell.Cleanup(func(context.Context) error {
		conn.Close()
		return nil
	})
	if js, err = jetstream.New(conn); err == nil {
		stream, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "OUT", Subjects: []string{string(outgoing) + ".>"}, Storage: jetstream.FileStorage})
	}
	return s.ClientURL(), stream, js, err
}

func messagesOf(ctx context.Context, stream jetstream.Stream) (int64, error) {
	info, err := stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int64(info.State.Msgs), nil //nolint:gosec // they are some thousands
}

func relayJetStream(ctx context.Context, cell *measure.Cell) error {
	s, n, err := openOutbox(ctx, cell)
	if err != nil {
		return err
	}
	_, stream, js, err := openJetStream(ctx, cell)
	if err != nil {
		return err
	}
	sink, err := natsbroker.NewSink(js, nil)
	if err != nil {
		return err
	}
	if err := relay(ctx, cell, s, sink, n); err != nil {
		return err
	}
	got, err := messagesOf(ctx, stream)
	return errors.Join(err, cell.Check("messages in the stream", got, n))
}

// forward has the forwarder of Watermill read a topic in SQL and publish to JetStream.
func forward(ctx context.Context, cell *measure.Cell) (err error) {
	url, err := database(ctx, cell, server.Empty)
	if err != nil {
		return err
	}
	from := &topic{}
	if err := from.open(ctx, url); err != nil {
		return err
	}
	cell.Cleanup(func(context.Context) error { return from.db.Close() })
	n, err := from.fillForwarder(relayKeys(cell))
	if err != nil {
		return err
	}
	subscriber, err := watermillsql.NewSubscriber(from.db, watermillsql.SubscriberConfig{
		PollInterval: 10 * time.Millisecond, SchemaAdapter: topicSchema(), OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	natsURL, stream, _, err := openJetStream(ctx, cell)
	if err != nil {
		return err
	}
	publisher, err := watermillnats.NewPublisher(watermillnats.PublisherConfig{URL: natsURL, JetStream: watermillnats.JetStreamConfig{TrackMsgId: true}}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	f, err := forwarder.NewForwarder(subscriber, publisher, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: topicName})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
		go func() { ended <- f.Run(ctx) }()
		return n, until(ctx, "all are in the stream", func() (bool, any, error) {
			got, err := messagesOf(ctx, stream)
			return got >= n, got, err
		})
	})
	err = errors.Join(err, f.Close(), <-ended, publisher.Close())
	got, failed := messagesOf(ctx, stream)
	return errors.Join(err, failed, cell.Check("messages in the stream", got, n))
}

// fillForwarder publishes as many messages as an outbox has.
func (t *topic) fillForwarder(keys int) (n int64, err error) {
	to := forwarder.NewPublisher(t.publisher, forwarder.PublisherConfig{ForwarderTopic: topicName})
	for range relayEach {
		for key := range keys {
			body, err := json.Marshal(relayed(key).Body)
			if err != nil {
				return 0, err
			}
			if err := to.Publish(fmt.Sprintf("%s.k%d", outgoing, key), watermillmessage.NewMessage(newID().String(), body)); err != nil {
				return 0, err
			}
			n++
		}
	}
	return n, nil
}
