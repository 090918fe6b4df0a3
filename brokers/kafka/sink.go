package kafkabroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// maxTopic is the most characters of a topic's name.
const maxTopic = 249

// SinkConfig configures a sink. nil means the defaults.
type SinkConfig struct {
	// Timeout bounds one attempt to send a message: 1 ms to 1 h. The client may still send it
	// afterwards, in the right order.
	//
	// Defaults to 10 s.
	Timeout time.Duration
}

// A Sink produces messages. It is safe for concurrent use. The caller closes the client.
type Sink struct {
	client *kgo.Client
	config SinkConfig

	mu   sync.Mutex
	made map[string]int // how often a topic was found to be made again

	produced atomic.Int64
}

var _ outbox.BatchSink = (*Sink)(nil)

// NewSink returns a sink over client. The client must produce idempotently, which is its default:
// the order of a key depends on that. A message is taken when all in-sync replicas have it. The
// package comment has the promises.
//
// If a message is larger than the client's or the topic's bound, or Kafka does not accept the
// topic's name, it is refused, by handler.Refuse. After any other error it is sent again: the topic
// does not exist, no broker, no answer.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid]. NewSink
// calls no server.
func NewSink(client *kgo.Client, config *SinkConfig) (*Sink, error) {
	s := &Sink{client: client, made: map[string]int{}}
	if config != nil {
		s.config = *config
	}
	s.config.Timeout = cmp.Or(s.config.Timeout, 10*time.Second)
	var all []error
	if client == nil {
		all = append(all, messagestore.NewInvalidError("client", nil, "must not be nil"))
	} else if off, _ := client.OptValue(kgo.DisableIdempotentWrite).(bool); off {
		all = append(all, messagestore.NewInvalidError("client", "DisableIdempotentWrite", "must produce idempotently"))
	}
	if d := s.config.Timeout; d < time.Millisecond || d > time.Hour {
		all = append(all, messagestore.NewInvalidError("Timeout", d, "must be between 1ms and 1h0m0s"))
	}
	if err := errors.Join(all...); err != nil {
		return nil, fmt.Errorf("invalid sink: %w", err)
	}
	return s, nil
}

// SinkStats are a sink's counts since [NewSink].
type SinkStats struct {
	Produced int64 // messages that all in-sync replicas have
}

// Stats returns the current counts.
func (s *Sink) Stats() SinkStats { return SinkStats{s.produced.Load()} }

// SendAll produces the messages concurrently.
func (s *Sink) SendAll(ctx context.Context, messages []*outbox.Message) []error {
	answers := make([]error, len(messages))
	var all sync.WaitGroup
	for i, m := range messages {
		all.Go(func() { answers[i] = calling.Call(func() error { return s.Send(ctx, m) }) })
	}
	all.Wait()
	return answers
}

// Send produces m.
func (s *Sink) Send(ctx context.Context, m *outbox.Message) error {
	switch {
	case ctx == nil:
		return fmt.Errorf("produce: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	case m == nil || m.Message == nil:
		return fmt.Errorf("produce: %w", messagestore.NewInvalidError("message", nil, "must not be nil"))
	}
	topic := Topic(m.Topic)
	if rule := topicRule(topic); rule != "" {
		return fmt.Errorf("produce: %w", handler.Refuse(messagestore.NewInvalidError("topic", topic, rule)))
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	record := &kgo.Record{Topic: topic, Key: []byte(m.Key()), Value: m.Body().Data}
	headers := m.Headers()
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(headers[name])})
	}
	made := s.times(topic)
	answer := make(chan error, 1)
	s.client.Produce(ctx, record, func(_ *kgo.Record, err error) { answer <- err })
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done(): // the client keeps a record that a broker may already have, in front of later records
		err = ctx.Err()
	}
	if errors.Is(err, kerr.UnknownTopicID) {
		s.anew(topic, made)
	}
	if err != nil {
		return fmt.Errorf("produce to %s: %w", topic, refusal(err))
	}
	s.produced.Add(1)
	return nil
}

func (s *Sink) times(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made[topic]
}

// anew makes the client forget a topic that was deleted and made again, because it still produces
// to the old one. Only the first of the messages that were under way together does so; otherwise
// the others would fail again.
func (s *Sink) anew(topic string, made int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[topic] == made {
		s.made[topic]++
		s.client.PurgeTopicsFromProducing(topic)
	}
}

// Topic returns the name in Kafka of a message's topic, with dots instead of colons.
func Topic(topic string) string { return strings.ReplaceAll(topic, ":", ".") }

// topicRule returns the rule that a topic's name breaks, or "".
func topicRule(topic string) string {
	switch {
	case topic == "" || len(topic) > maxTopic:
		return fmt.Sprintf("must be 1 to %d characters", maxTopic)
	case topic == "." || topic == "..":
		return "must be a name that Kafka takes"
	case strings.IndexFunc(topic, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-", c)
	}) >= 0:
		return "must have only ASCII letters, digits, dots, - and _"
	}
	return ""
}

// refusal returns err as a refusal if the message will never be taken.
func refusal(err error) error {
	for _, never := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidTopicException, kerr.InvalidRecord} {
		if errors.Is(err, never) {
			return handler.Refuse(err)
		}
	}
	return err
}
