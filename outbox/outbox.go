package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/known"
	"github.com/dibs-go/dibs/internal/panics"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	// MaxRetryAfter is the longest pause that a sink may ask for by handler.RetryAfter.
	MaxRetryAfter = time.Hour

	// maxBackoff bounds the pauses between the attempts to send a message.
	maxBackoff = 30 * time.Second
)

// A Sink takes messages. Send is called from up to [Config.Concurrency] goroutines, never at the same
// time for two messages of one key. It returns nil when the sink has the message for good. The
// package comment tells how errors are treated. The relay does not close its sink.
//
// The context is cancelled when the relay is told to stop and the messages in flight have not been taken
// for [Config.Grace].
type Sink interface {
	Send(ctx context.Context, m *Message) error
}

// A BatchSink takes several messages at a time. While one call of Send or SendAll goes on, the messages
// that come wait, and go together in the next: one alone by Send, at most [Config.Concurrency] by
// SendAll. No call has two messages of one key, and one call is made at a time.
//
// SendAll returns an error, or nil, for each message, in their order. With any other number of answers it is not
// known which message was taken: all are sent again.
type BatchSink interface {
	Sink
	SendAll(ctx context.Context, messages []*Message) []error
}

// Config changes how a relay works. Nil means all defaults. Fields that [consumer.Config] has, too, are
// as there. [New] refuses values that are out of bounds.
type Config struct {
	// Topic names where in the sink a message goes, such as a subject or a topic of a broker: see
	// [Message].Topic. It may be called several times for a message, and from several goroutines.
	//
	// Defaults to the category of the message's stream.
	Topic func(m *messagestore.Message) string

	// Types are the message types to send, each with all names that it had before. A message of a type
	// that is neither here nor in Ignore fails: it is logged and retried, and messages of its key wait, until
	// a relay knows the type. So a type that was renamed, or that a newer version of the service writes, is
	// not passed over by accident.
	//
	// Defaults to all that are not in Ignore.
	Types []string

	// Ignore are the message types that the relay passes over.
	//
	// Defaults to none.
	Ignore []string

	// IgnoreUnknown has the relay read only messages of Types, at most [messagestore.MaxFilterTypes], and
	// pass over all others for good: for a relay of another service's category. A type that is added later is
	// sent from where the relay is by then, not from the start.
	//
	// Defaults to false.
	IgnoreUnknown bool

	// Correlation sends only messages with a correlation stream of this category.
	//
	// Defaults to all messages.
	Correlation messagestore.Category

	// Concurrency is how many messages may be in flight at a time, each of another key: 1 to 1024. With
	// 1 the whole category is sent in order, and one of several replicas sends.
	//
	// Defaults to 64.
	Concurrency int

	// Start is where a relay begins that has no checkpoint yet.
	//
	// Defaults to [consumer.FromStart], with a warning that names the number of messages.
	Start consumer.Start

	// Lease is how long a replica may be silent before the others take its work over: 1 s to 1 h.
	//
	// Defaults to 10 s.
	Lease time.Duration

	// PollInterval is the longest wait for a message that another process wrote: 1 ms to 1 h.
	//
	// Defaults to 100 ms.
	PollInterval time.Duration

	// CheckpointMessages is the number of sent messages after which the relay writes a checkpoint: 1 to
	// 1,000,000. After a crash at most so many, and the messages of one read, are sent again.
	//
	// Defaults to 1000.
	CheckpointMessages int

	// CheckpointInterval is the longest time between a sent message and the checkpoint that covers
	// it: 1 ms to 1 h.
	//
	// Defaults to 1 s.
	CheckpointInterval time.Duration

	// RedriveInterval is the longest time until the relay finds that an operator has asked for a redrive, or
	// dropped a parked message: 1 ms to 1 h.
	//
	// Defaults to 5 s.
	RedriveInterval time.Duration

	// Grace is how long the messages in flight may take after the relay is told to stop: 1 ms to 1 h.
	//
	// Defaults to 10 s.
	Grace time.Duration

	// Logger receives the same events as a consumer's: names, numbers and errors, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Relay sends the messages of a category to a sink. Its methods are safe for concurrent use, but it
// runs once at a time. There is nothing to close.
type Relay struct {
	consumer *consumer.Consumer
	sink     Sink
	send     func(ctx context.Context, m *Message) error
	topic    func(m *messagestore.Message) string

	types, ignore map[string]bool
	calls         atomic.Int64
	ignored       atomic.Int64
}

// errUnknownType is the failure of a message that the relay neither sends nor passes over.
var errUnknownType = errors.New("unknown message type: it is neither in Types nor in Ignore, and the relay does not ignore it (IgnoreUnknown)")

// New returns a relay that sends the messages of category of store to sink. The name is its identity, as
// [consumer.New] has it: relays and other consumers of one category have different names.
//
// The error has all mistakes in the arguments together: errors that match [messagestore.ErrInvalid]. New
// calls no store and sends nothing.
func New(store consumer.Store, category messagestore.Category, name string, sink Sink, config *Config) (*Relay, error) {
	var c Config
	if config != nil {
		c = *config
	}
	r := &Relay{sink: sink, topic: c.Topic}
	wrong := mistakes(store, sink)
	r.send = r.sendAlone
	if batches, is := sink.(BatchSink); is {
		r.send = (&gathering{sink: batches, calls: &r.calls}).send
	}
	wrong = append(wrong, r.setTypes(&c)...)
	var err error
	r.consumer, err = consumer.New(store, category, name, known.Handler{Known: c.Types, Func: r.handle}, &consumer.Config{
		OnlyKnown: c.IgnoreUnknown && len(c.Types) > 0, Correlation: c.Correlation, Concurrency: cmp.Or(c.Concurrency, 64), Start: c.Start, Lease: c.Lease,
		PollInterval: c.PollInterval, CheckpointMessages: c.CheckpointMessages, CheckpointInterval: c.CheckpointInterval, RedriveInterval: c.RedriveInterval,
		Grace: c.Grace, Logger: c.Logger,
		Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: maxBackoff}, Then: consumer.ParkInOrder},
	})
	if err != nil {
		wrong = append(wrong, err)
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("invalid relay: %w", errors.Join(wrong...))
	}
	return r, nil
}

// setTypes keeps the types to send and to pass over, and returns the mistakes in them.
func (r *Relay) setTypes(c *Config) (all []error) {
	c.Types = slices.Clone(c.Types)
	r.types, r.ignore = map[string]bool{}, map[string]bool{}
	wrong := func(field string, value any, rule string) {
		all = append(all, messagestore.NewInvalidError(field, value, rule))
	}
	for _, list := range []struct {
		field string
		names []string
		set   map[string]bool
	}{{"types", c.Types, r.types}, {"ignore", c.Ignore, r.ignore}} {
		for _, name := range list.names {
			if err := messagestore.ValidateType(name); err != nil {
				all = append(all, fmt.Errorf("%s: %w", list.field, err))
			}
			list.set[name] = true
		}
	}
	for name := range r.ignore {
		if r.types[name] {
			wrong("ignore", name, "the type is in Types, too")
		}
	}
	switch {
	case c.IgnoreUnknown && len(c.Types) == 0:
		wrong("ignore unknown", true, "no type is known: name those to send in Types")
	case c.IgnoreUnknown && len(c.Ignore) > 0:
		wrong("ignore", len(c.Ignore), "it has no meaning with IgnoreUnknown, which passes over all that is not in Types")
	}
	return all
}

// mistakes returns the mistakes in the sink.
func mistakes(store consumer.Store, sink Sink) (all []error) {
	if v := reflect.ValueOf(sink); sink == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		all = append(all, messagestore.NewInvalidError("sink", nil, "there is none"))
	}
	if into, is := sink.(*storeSink); is && into != nil {
		if own, is := store.(*messagestore.Store); is && own != nil && own == into.store {
			all = append(all, messagestore.NewInvalidError("sink", nil, "it is the store that the relay reads"))
		}
	}
	return all
}

// Run sends messages until ctx is done. Then it takes no more, waits up to [Config.Grace] for those in
// flight, writes a checkpoint and returns nil. It returns another error, or returns earlier, only
// because of an error that stopped it, none of them the sink's: see [consumer.Consumer.Run].
func (r *Relay) Run(ctx context.Context) error { return r.consumer.Run(ctx) }

// CatchUp sends messages until none is left, and returns nil: see [consumer.Consumer.CatchUp]. As long
// as the sink takes a message neither now nor never, CatchUp does not end; the caller bounds it by ctx.
func (r *Relay) CatchUp(ctx context.Context) error { return r.consumer.CatchUp(ctx) }

// Consumer returns the consumer that the relay is, for packages that observe consumers. A caller does
// not run it.
func (r *Relay) Consumer() *consumer.Consumer { return r.consumer }

// Stats are a relay's counts since [New]. Handled counts the messages that the sink has taken, and the
// Ignored ones.
type Stats struct {
	consumer.Stats

	Calls   int64 // of Send and SendAll
	Ignored int64 // messages of a type in [Config].Ignore
}

// Stats returns the counts of this moment.
func (r *Relay) Stats() Stats { return Stats{r.consumer.Stats(), r.calls.Load(), r.ignored.Load()} }

// handle sends a message, as the handler of the consumer.
func (r *Relay) handle(ctx context.Context, m *messagestore.Message) error {
	switch {
	case r.ignore[m.Type]:
		r.ignored.Add(1)
		return nil
	case len(r.types) > 0 && !r.types[m.Type]:
		return fmt.Errorf("send %s: %w", m, errUnknownType)
	}
	out := &Message{Message: m, Topic: string(m.Stream.Category())}
	if r.topic != nil {
		out.Topic = r.topic(m)
	}
	return disposed(r.send(ctx, out))
}

func (r *Relay) sendAlone(ctx context.Context, m *Message) error {
	r.calls.Add(1)
	return panics.Call(func() error { return r.sink.Send(ctx, m) })
}

// disposed returns the error by which the consumer does with a message what the sink's error asks for. A pause is at most
// [MaxRetryAfter]; one of 0 is the relay's own, so that a sink is never called without a pause.
func disposed(err error) error {
	found := disposition.Of(err)
	switch asked := found.Asks(disposition.Retry); {
	case err == nil:
		return nil
	case found == nil, asked && found.After <= 0:
		return &unsentError{err}
	case asked:
		return handler.RetryAfter(min(found.After, MaxRetryAfter), err)
	}
	return err
}

// An unsentError hides the kind of a sink's error: a consumer would stop because of a closed pool or a
// missing right, and these are the sink's. The stack of a panic it shows.
type unsentError struct{ err error }

// Unwrap returns the panic of the sink, without the kind of its value.
func (e *unsentError) Unwrap() error {
	if p := panics.Of(e.err); p != nil {
		return &panics.Error{Value: p.Error(), Stack: p.Stack}
	}
	return nil
}

func (e *unsentError) Error() string { return e.err.Error() }
