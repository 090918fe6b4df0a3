package consumer

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Config changes how a [Consumer] works. Nil means all defaults. [New] refuses
// values that are out of bounds.
type Config struct {
	// OnlyKnown has the consumer read only messages of types that its handler knows, according to
	// the handler's method Types() []string: for a handler.Mux these are the types of its
	// functions, with all earlier names of these types. Other messages are neither read nor
	// counted, and are never delivered later. So if a later version of the handler knows a new
	// type, the consumer reads that type from its current position on, and not from the start. A
	// replica that does not know a type skips it.
	//
	// Defaults to all types. A mux returns an error for a type that it does not know.
	OnlyKnown bool

	// Correlation reads only messages with a correlation stream of this category.
	//
	// Defaults to all messages.
	Correlation messagestore.Category

	// Lease is how long a replica may be silent before the others take over its work: 1 s to 1 h.
	// While there are others, a replica writes at least once in every third of the lease.
	//
	// Defaults to 10 s.
	Lease time.Duration

	// Concurrency is how many messages may be in flight at a time: 1 to 1024. Two messages with the
	// same cardinal id are never in flight together.
	//
	// With 1, one of several replicas handles messages, and the others stand by. With more,
	// they share the category.
	//
	// Defaults to 1, which handles the category in order.
	Concurrency int

	// BatchSize is how many messages one read asks for: 1 to [messagestore.MaxReadMessages]. If
	// messages are large, it asks for fewer: one read is about 4 MiB of data. The consumer holds at
	// most two batches, and reads the second while the first is handled.
	//
	// Defaults to 1000.
	BatchSize int

	// PollInterval is the longest time until a message that another process wrote is noticed: 1 ms
	// to 1 h. A message written through the same store wakes the consumer at once, and so does a
	// notification of the store's driver about another process. All waiting consumers of a store
	// share one poll.
	//
	// Defaults to 100 ms.
	PollInterval time.Duration

	// CheckpointMessages is the number of finished messages after which the consumer
	// writes a checkpoint: 1 to 1,000,000. It also writes one when it becomes idle and
	// when it stops. After a crash, at most CheckpointMessages plus BatchSize messages
	// are redelivered: a lower number redelivers fewer and writes more often.
	//
	// Defaults to 1000.
	CheckpointMessages int

	// CheckpointInterval is the longest time between a finished message and the
	// checkpoint that covers it: 1 ms to 1 h.
	//
	// Defaults to 1 s.
	CheckpointInterval time.Duration

	// RedriveInterval is the longest time until the consumer finds a parked message to redrive, or
	// a message to park, as requested through package operate: 1 ms to 1 h. It looks at this
	// interval, and when it starts.
	//
	// Defaults to 5 s.
	RedriveInterval time.Duration

	// Grace is how long the handlers of messages in flight may go on after the consumer begins to
	// stop: 1 ms to 1 h. Then their context is cancelled, and they have 1 s more to return.
	//
	// Defaults to 10 s.
	Grace time.Duration

	// Errors decides about a message when its handler fails.
	//
	// Defaults to retries for five minutes, and then a stop.
	Errors ErrorPolicy

	// Start is where a consumer without a checkpoint begins: see [FromStart], [FromEnd] and [From].
	// If several replicas start at the same time, one of them decides for all. A consumer that has
	// a checkpoint goes on from there, and ignores Start.
	//
	// Defaults to FromStart, with a warning that names the number of messages.
	Start Start

	// Logger receives the start, the stop, every failure, every parked message, and a handler that
	// does not return for a minute. It also receives the beginning and the end of an outage of the
	// store, which are logged once for all consumers of a store. Its entries have names and
	// numbers, the text of errors and the stack of a panic, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	// [logger.Silent] is silent.
	Logger logger.Logger
}

// An ErrorPolicy decides about a message when its handler fails. The zero value is the default:
// retry for five minutes, then stop.
//
// A failure is not retried if a retry cannot help. Data that cannot be decoded lead to Then at
// once. A message of a type without a function is retried, since a newer replica may know the type.
//
// If the message is not the cause, the consumer stops at once, even if Then is ParkMessage. The
// causes are a missing right (SQLSTATE 42501, or [messagestore.ErrNotPermitted]), a closed store
// ([messagestore.ErrClosed]), a schema that is missing or does not fit, an unsafe server, and a
// reserver of another consumer or store. The types of these errors decide; no method of a handler's
// error does.
//
// If the consumer's store does not answer, no failure is blamed on the message, wherever it
// happened. The failure is not counted, logged or stored. The message is delivered again within a
// second of the outage's end, and the time of the policy starts again. An outage ends CatchUp.
//
// The handler's error can decide differently for its message, by a disposition: handler.Park,
// RetryAfter, Skip or Refuse. Package handler has a table of their effects.
type ErrorPolicy struct {
	Retry Retry
	Then  FailureAction // Defaults to StopConsumer.
}

// Retry says how long a message is delivered again after its handler failed. The pause before the
// first retry is about 100 ms. It doubles from one retry to the next, up to MaxBackoff, and each
// pause is shortened by a random part of up to a half, so that messages that failed together are
// not retried together. Failures are logged and counted from the first on.
type Retry struct {
	// For is the time from the first failure to the last retry, up to 24 h, or [NoRetry], or
	// [Forever]. When a consumer is started again, the time starts again.
	//
	// Defaults to 5 min.
	For time.Duration

	// MaxBackoff bounds the pause between two retries: 1 ms to 24 h.
	//
	// Defaults to 10 s.
	MaxBackoff time.Duration
}

const (
	// NoRetry as [Retry].For delivers a message once.
	NoRetry time.Duration = -1

	// Forever as [Retry].For retries until the handler returns nil.
	Forever time.Duration = math.MaxInt64
)

// A FailureAction is the action taken when a message's retries are over.
type FailureAction int

const (
	// StopConsumer ends Run and CatchUp with a [*MessageError]. The checkpoint stays
	// before the message.
	StopConsumer FailureAction = iota

	// ParkMessage makes the message a dead item in the queue of the consumer's parked messages,
	// with the error, and moves on. Package operate opens that queue: it lists, redrives and drops
	// the messages.
	//
	// A parked message gives up its place: later messages of its stream are handled before it. If a
	// handler recognizes old messages by their position, because it is not above the highest one it
	// has seen, it ignores a redriven message. Such a handler needs StopConsumer instead, or must
	// write under an id derived from the message's, as reservation.DeriveID makes one. If later
	// messages of a key must wait for a dead one, and others must not, use a queue over the
	// category: see Hold of package queue.
	ParkMessage
)

// String returns the action's name.
func (a FailureAction) String() string {
	switch a {
	case StopConsumer:
		return "stop"
	case ParkMessage:
		return "park"
	}
	return fmt.Sprintf("action %d", int(a))
}

func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	d.Lease = cmp.Or(d.Lease, 10*time.Second)
	d.Concurrency = cmp.Or(d.Concurrency, 1)
	d.BatchSize = cmp.Or(d.BatchSize, 1000)
	d.PollInterval = cmp.Or(d.PollInterval, 100*time.Millisecond)
	d.CheckpointMessages = cmp.Or(d.CheckpointMessages, 1000)
	d.CheckpointInterval = cmp.Or(d.CheckpointInterval, time.Second)
	d.RedriveInterval = cmp.Or(d.RedriveInterval, 5*time.Second)
	d.Grace = cmp.Or(d.Grace, 10*time.Second)
	d.Errors.Retry.For = cmp.Or(d.Errors.Retry.For, 5*time.Minute)
	d.Errors.Retry.MaxBackoff = cmp.Or(d.Errors.Retry.MaxBackoff, 10*time.Second)
	return d
}

// mistakes returns an error for each field that is out of bounds, and for the handler's types.
func (c *Config) mistakes(known []string) (all []error) {
	if c.OnlyKnown && len(known) == 0 {
		all = append(all, invalid("only known", true, "must not be set unless the handler tells the types that it knows: it has no method Types() []string, as a handler.Mux has, or the method names none"))
	}
	if err := c.filter(known).Validate(); err != nil {
		all = append(all, err)
	}
	for _, n := range []struct {
		field        string
		value, least int
		most         int
	}{
		{"concurrency", c.Concurrency, 1, 1024},
		{"batch size", c.BatchSize, 1, messagestore.MaxReadMessages},
		{"checkpoint messages", c.CheckpointMessages, 1, 1_000_000},
	} {
		if n.value < n.least || n.value > n.most {
			all = append(all, invalid(n.field, n.value, fmt.Sprintf("must be between %d and %d", n.least, n.most)))
		}
	}
	for _, d := range []struct {
		field       string
		value       time.Duration
		least, most time.Duration
	}{
		{"lease", c.Lease, time.Second, checkpoint.MaxLease},
		{"poll interval", c.PollInterval, time.Millisecond, time.Hour},
		{"checkpoint interval", c.CheckpointInterval, time.Millisecond, time.Hour},
		{"redrive interval", c.RedriveInterval, time.Millisecond, time.Hour},
		{"grace", c.Grace, time.Millisecond, time.Hour},
		{"maximum back-off", c.Errors.Retry.MaxBackoff, time.Millisecond, 24 * time.Hour},
	} {
		if d.value < d.least || d.value > d.most {
			all = append(all, invalid(d.field, d.value, fmt.Sprintf("must be between %v and %v", d.least, d.most)))
		}
	}
	if d := c.Errors.Retry.For; d != NoRetry && d != Forever && (d < 0 || d > 24*time.Hour) {
		all = append(all, invalid("retry for", d, "must be between 0s and 24h0m0s, or NoRetry, or Forever"))
	}
	if err := c.Start.mistake(); err != nil {
		all = append(all, err)
	}
	if a := c.Errors.Then; a < StopConsumer || a > ParkMessage {
		all = append(all, invalid("errors then", int(a), "must be StopConsumer or ParkMessage"))
	}
	return all
}

// filter returns the filter by which the consumer reads its category. It does not include a
// member's slots.
func (c *Config) filter(known []string) messagestore.Filter {
	return messagestore.Filter{Types: known, Correlation: c.Correlation}
}

// minRetryBackoff is about the pause before a message's first retry.
const minRetryBackoff = 100 * time.Millisecond

// pause returns how long to wait before the next retry of a message that has been failing
// since a time, and false if its retries are over. The last retry is at the end of For.
func (r *Retry) pause(failures int, since, now time.Time) (time.Duration, bool) {
	if r.For == NoRetry {
		return 0, false
	}
	left := r.For - now.Sub(since)
	if left <= 0 {
		return 0, false
	}
	return min(outage.Pause(failures, min(minRetryBackoff, r.MaxBackoff), r.MaxBackoff), left), true
}

// soon is how long before the end of a message's retries a warning says that the consumer will
// stop.
const soon = time.Minute

// endsSoon reports whether, after the next wait, less than a minute is left for retries.
func (r *Retry) endsSoon(wait time.Duration, since, now time.Time) bool {
	return r.For != Forever && now.Add(wait+soon).After(since.Add(r.For))
}

func invalid(field string, value any, rule string) error {
	return messagestore.NewInvalidError(field, value, rule)
}
