package redisbroker

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// FieldData is the field with a message's data, in addition to [outbox.Message.Headers].
const FieldData = "data"

// FieldGlobalPosition is the field with a message's global position. It grows from message to
// message of a key.
const FieldGlobalPosition = "dibs-global-position"

// MaxStreamBytes bounds the name of a stream. Only a relay's Topic can make it longer: a category
// always fits.
const MaxStreamBytes = 2048

const maxPrefix = 255

//go:embed append.lua
var appendLua string

var appendScript = redis.NewScript(appendLua)

// A ForeignMessageError says that the last message of a key has the same global position as the
// message to send, and another id: it is from another database, or from a time that the database
// has lost. The message is parked.
type ForeignMessageError struct {
	Stream string
	Key    string
	ID     string // of the last message
}

// Error names the stream and the ids.
func (e *ForeignMessageError) Error() string {
	return fmt.Sprintf("stream %s has message %s at the global position of the message that is sent", e.Stream, e.ID)
}

// Unwrap returns a disposition that parks the message.
func (*ForeignMessageError) Unwrap() error { return calling.Parked }

// SinkConfig configures a sink. nil means the defaults.
type SinkConfig struct {
	// Prefix is a text of up to 255 bytes at the beginning of all streams' names, such as "bank:".
	//
	// Defaults to no prefix.
	Prefix string

	// Timeout bounds one attempt to send messages: 1 ms to 1 h.
	//
	// Defaults to 5 s.
	Timeout time.Duration
}

// A Sink adds messages to streams. It is safe for concurrent use. The caller closes the client.
type Sink struct {
	client redis.UniversalClient
	config SinkConfig

	added, present atomic.Int64
}

var _ outbox.BatchSink = (*Sink)(nil)

// NewSink returns a sink over client: a [*redis.Client] or a [*redis.ClusterClient] with the option
// ContextTimeoutEnabled, without which a call would outlast its context. The package comment has
// the promises.
//
// If the name of a message's stream is longer than [MaxStreamBytes], or the message is larger than
// the server's proto-max-bulk-len, 512 MiB by default, it is refused, by handler.Refuse. If another
// message has its position, it is parked ([*ForeignMessageError]). After any other error it is sent
// again: no connection, no answer, no memory, the key is not a stream.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid]. NewSink
// calls no server.
func NewSink(client redis.UniversalClient, config *SinkConfig) (*Sink, error) {
	s := &Sink{client: client}
	if config != nil {
		s.config = *config
	}
	s.config.Timeout = cmp.Or(s.config.Timeout, 5*time.Second)
	var all []error
	if rule := clientRule(client); rule != "" {
		all = append(all, messagestore.NewInvalidError("client", fmt.Sprintf("%T", client), rule))
	}
	if n := len(s.config.Prefix); n > maxPrefix {
		all = append(all, messagestore.NewInvalidError("Prefix", s.config.Prefix, fmt.Sprintf("must be at most %d bytes, and is %d", maxPrefix, n)))
	}
	if d := s.config.Timeout; d < time.Millisecond || d > time.Hour {
		all = append(all, messagestore.NewInvalidError("Timeout", d, "must be between 1ms and 1h0m0s"))
	}
	if err := errors.Join(all...); err != nil {
		return nil, fmt.Errorf("invalid sink: %w", err)
	}
	return s, nil
}

// clientRule returns the rule that a client breaks, or "".
func clientRule(client redis.UniversalClient) string {
	heeds := false
	switch c := client.(type) {
	case *redis.Client:
		heeds = c != nil && c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		heeds = c != nil && c.Options().ContextTimeoutEnabled
	}
	if !heeds {
		return "must be a client or cluster client of go-redis with ContextTimeoutEnabled"
	}
	return ""
}

// SinkStats are a sink's counts since [NewSink].
type SinkStats struct {
	Added   int64 // messages that were added to a stream
	Present int64 // messages that a stream already had
}

// Stats returns the current counts.
func (s *Sink) Stats() SinkStats { return SinkStats{s.added.Load(), s.present.Load()} }

// Send adds m to its stream, unless the stream already had it.
func (s *Sink) Send(ctx context.Context, m *outbox.Message) error {
	return s.SendAll(ctx, []*outbox.Message{m})[0]
}

// SendAll adds the messages, in one round trip.
func (s *Sink) SendAll(ctx context.Context, messages []*outbox.Message) []error {
	answers := make([]error, len(messages))
	if ctx == nil {
		for i := range answers {
			answers[i] = fmt.Errorf("send: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
		}
		return answers
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	s.send(ctx, messages, answers, func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd {
		return appendScript.EvalSha(ctx, p, keys, args...)
	})
	unknown := func(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }
	if slices.ContainsFunc(answers, unknown) { // the server has restarted, and does not know the script
		s.send(ctx, messages, answers, func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd {
			return appendScript.Eval(ctx, p, keys, args...)
		})
	}
	for i, err := range answers {
		if err != nil && messages[i] != nil && messages[i].Message != nil {
			answers[i] = fmt.Errorf("send to %s: %w", s.streamOf(messages[i]), err)
		}
	}
	return answers
}

// send sets the answers of the messages that have no answer yet, or failed because the server did
// not know the script.
func (s *Sink) send(ctx context.Context, messages []*outbox.Message, answers []error, call func(redis.Pipeliner, []string, []any) *redis.Cmd) {
	calls := make([]*redis.Cmd, len(messages))
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each call has its error
		for i, m := range messages {
			if answers[i] != nil && !redis.HasErrorPrefix(answers[i], "NOSCRIPT") {
				continue
			}
			switch {
			case m == nil || m.Message == nil:
				answers[i] = fmt.Errorf("send: %w", messagestore.NewInvalidError("message", nil, "must not be nil"))
				continue
			case len(s.streamOf(m)) > MaxStreamBytes:
				answers[i] = handler.Refuse(messagestore.NewInvalidError("stream", s.streamOf(m), fmt.Sprintf("must be at most %d bytes", MaxStreamBytes)))
				continue
			}
			stream := s.streamOf(m)
			calls[i] = call(p, []string{stream, positionsOf(stream)}, arguments(m))
		}
		return nil
	})
	for i, c := range calls {
		if c != nil {
			answers[i] = s.answer(c, messages[i])
		}
	}
}

// answer returns the error of a script's call.
func (s *Sink) answer(c *redis.Cmd, m *outbox.Message) error {
	entry, err := c.Text()
	switch {
	case err != nil && strings.Contains(err.Error(), "invalid bulk length"):
		return handler.Refuse(err)
	case err != nil:
		return err
	case entry == "":
		s.present.Add(1)
	case entry[0] == '!':
		return &ForeignMessageError{Stream: s.streamOf(m), Key: m.Key(), ID: entry[1:]}
	default:
		s.added.Add(1)
	}
	return nil
}

func (s *Sink) streamOf(m *outbox.Message) string { return s.config.Prefix + m.Topic }

// positionsOf returns the name of the hash with the positions of a stream's keys. In a cluster it
// is on the stream's node, which the part of a name in braces determines, or else the whole name.
func positionsOf(stream string) string {
	if open := strings.IndexByte(stream, '{'); open >= 0 && strings.IndexByte(stream[open:], '}') > 1 {
		return stream + ":dibs-sent"
	}
	if strings.IndexByte(stream, '}') >= 0 || stream == "" {
		return stream + ":dibs-sent" // no name in braces can stand for it, so this is for a single server
	}
	return "{" + stream + "}:dibs-sent"
}

// arguments returns the arguments of the script for m.
func arguments(m *outbox.Message) []any {
	headers := m.Headers()
	position := strconv.FormatInt(int64(m.GlobalPosition), 10)
	category := m.Stream.Category()
	args := []any{string(category) + "-" + m.Key(), position, m.ID.String(), FieldGlobalPosition, position}
	for name, value := range headers {
		args = append(args, name, value)
	}
	return append(args, FieldData, []byte(m.Body().Data))
}
