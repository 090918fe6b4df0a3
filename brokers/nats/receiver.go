package natsbroker

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs/brokers/internal/receiving"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

const (
	// fetchWait is how long a request for a message waits at the server.
	fetchWait = 5 * time.Second

	// maxReason bounds the text of an error that is sent to the server.
	maxReason = 256
)

// ReceiverConfig changes how a receiver works. Nil means all defaults.
type ReceiverConfig struct {
	// Concurrency is how many messages are passed to the function at a time: 1 to 1024. Only with 1
	// do the messages come in their order, and a message that is delivered again comes later also
	// then, unless the consumer's MaxAckPending is 1.
	//
	// Defaults to 1.
	Concurrency int

	// MaxDelay bounds the pause before a message is delivered again, but not one of
	// handler.RetryAfter. The pause begins with 100 ms, and grows with each delivery: 100 ms to 24
	// h.
	//
	// Defaults to 1 min.
	MaxDelay time.Duration

	// Attempts is the number of deliveries, as the server counts them, after which a message whose
	// function fails is parked: 1 to 1,000,000. The consumer's MaxDeliver is higher, or -1: a
	// message that the server delivers no more is recorded nowhere.
	//
	// Defaults to no bound.
	Attempts int

	// Grace is how long the messages in work may take after the receiver is told to stop: 1 ms to 1
	// h.
	//
	// Defaults to 10 s.
	Grace time.Duration

	// Logger receives an error for each message that is parked, and a warning for each failure.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Receiver passes the messages of a JetStream consumer to a function. Its methods are safe for
// concurrent use, but it runs once at a time. There is nothing to close.
type Receiver struct {
	engine   *receiving.Receiver[jetstream.Msg]
	consumer jetstream.Consumer
}

// ErrRunning is returned by a Run while another goes on.
var ErrRunning = receiving.ErrRunning

// NewReceiver returns a receiver that passes each message of c to f, and acknowledges it after f
// has returned nil. It waits until the server has confirmed that. If the confirmation is lost, the
// message may come again.
//
// After an error of f the message is delivered again, after a pause, unless the error carries a
// disposition. With handler.RetryAfter it is delivered again after that time, and with handler.Skip
// it is logged, counted and acknowledged. With handler.Park and handler.Refuse, and after
// [ReceiverConfig.Attempts], it is parked: park records it, such as by [inbox.Inbox.Refuse], and
// then the server is told not to deliver it again. After an error of park, whatever its
// disposition, it is delivered again. A panic of f or park is an error. While either takes longer
// than half of the consumer's AckWait the server is told that the message is in work.
//
// The consumer is a pull consumer with explicit acknowledgements. A message is asked for only when
// f is free.
//
// The error has all mistakes in the arguments together: errors that match
// [messagestore.ErrInvalid]. NewReceiver calls no server.
func NewReceiver(
	c jetstream.Consumer, f func(ctx context.Context, m jetstream.Msg) error,
	park func(ctx context.Context, m jetstream.Msg, reason error) error, config *ReceiverConfig,
) (*Receiver, error) {
	if config == nil {
		config = &ReceiverConfig{}
	}
	engine, err := receiving.New(f, park, receiving.Config(*config), mistakes(c)...)
	if err != nil {
		return nil, err
	}
	return &Receiver{engine, c}, nil
}

func mistakes(c jetstream.Consumer) []error {
	if isNil(c) {
		return []error{messagestore.NewInvalidError("consumer", nil, "there is none")}
	}
	if info := c.CachedInfo(); info != nil && info.Config.AckPolicy != jetstream.AckExplicitPolicy {
		return []error{messagestore.NewInvalidError("consumer", info.Name, "its acknowledgements are not explicit")}
	}
	return nil
}

// ReceiverStats are a receiver's counts since [NewReceiver].
type ReceiverStats struct {
	Acked   int64 // messages whose acknowledgement the server confirmed
	Delayed int64 // failures after which a message is delivered again
	Parked  int64 // messages that are recorded and not delivered again
	Skipped int64 // messages that were passed over, and whose acknowledgement the server confirmed
}

// Stats returns the counts of this moment.
func (r *Receiver) Stats() ReceiverStats { return ReceiverStats(r.engine.Stats()) }

// Run receives messages until ctx is done. Then it takes no more, waits up to
// [ReceiverConfig.Grace] for those in work, cancels their context and returns nil. It returns an
// error only if the consumer or its stream was deleted, the connection was closed, or the receiver
// runs already ([ErrRunning]). It waits for a server that is away.
func (r *Receiver) Run(ctx context.Context) error {
	return r.engine.Run(ctx, func(fetching, working context.Context, stop context.CancelFunc) error {
		failures := make([]error, r.engine.Concurrency)
		var workers sync.WaitGroup
		for i := range failures {
			workers.Go(func() {
				failures[i] = failure.Call(func() error { return r.work(fetching, working) })
				stop() // the others
			})
		}
		workers.Wait()
		return cmp.Or(failures...)
	})
}

// work receives one message after the other.
func (r *Receiver) work(fetching, working context.Context) error {
	failed := 0
	for fetching.Err() == nil {
		wait, cancel := context.WithTimeout(fetching, fetchWait)
		m, err := r.consumer.Next(jetstream.FetchContext(wait))
		cancel()
		switch {
		case m != nil:
			failed = 0
			r.receive(working, m)
		case fetching.Err() != nil, errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages), errors.Is(err, context.DeadlineExceeded):
			failed = 0
		case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, nats.ErrConnectionClosed):
			return err
		default:
			failed++
			r.engine.Unasked(fetching, failed, err)
		}
	}
	return nil
}

// receive passes a message to the function, and tells the server what came of it.
func (r *Receiver) receive(ctx context.Context, m jetstream.Msg) {
	d := delivery{m}
	again, ended := r.engine.Handle(ctx, d, d.Times(), r.half())
	if ended {
		return
	}
	back := func() error { return m.NakWithDelay(again) } // AckWait does the same
	if again == 0 {
		back = m.Nak
	}
	if err := back(); err != nil {
		r.engine.Logger.Warn().Str("from", m.Subject()).Str("error", text.Log(err)).Msg("the server was not told of a failure")
	}
}

// half returns half of the time after which the server delivers a message again.
func (r *Receiver) half() time.Duration {
	wait := 30 * time.Second // of a server
	if info := r.consumer.CachedInfo(); info != nil {
		wait = cmp.Or(info.Config.AckWait, wait)
		for _, d := range info.Config.BackOff {
			wait = min(wait, d)
		}
	}
	return max(wait/2, time.Millisecond)
}

// A delivery is a message as the engine of all receivers has it.
type delivery struct{ jetstream.Msg }

func (d delivery) Message() jetstream.Msg { return d.Msg }
func (d delivery) Place() string          { return d.Subject() }

func (d delivery) Times() int {
	data, err := d.Metadata()
	if err != nil {
		return 1
	}
	return int(min(data.NumDelivered, math.MaxInt32))
}

func (d delivery) Ack(ctx context.Context) error { return d.DoubleAck(ctx) }

func (d delivery) Parked(_ context.Context, why error) error { return d.TermWithReason(reason(why)) }

func (d delivery) Extend() { _ = d.InProgress() }

// reason returns the text of an error for the server, in one line.
func reason(err error) string {
	s := text.Log(err)
	for len(s) > maxReason {
		_, last := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-last]
	}
	return s
}

// Request returns m as a request for an inbox. Its ID is the header Nats-Msg-Id, or dibs-id. Its
// source is the text that is given, or, if that is empty, the subject without its last token, which
// is the key's.
//
// A message that no inbox takes is refused, by handler.Refuse, with an error that matches
// [messagestore.ErrInvalid]: it has no ID, or its data are no JSON, or too large. The request is then what there is
// of it, for [inbox.Inbox.Refuse].
func Request(m jetstream.Msg, source string) (inbox.Request, error) {
	if source == "" {
		source = m.Subject()
		if i := strings.LastIndexByte(source, '.'); i >= 0 {
			source = source[:i]
		}
	}
	id := cmp.Or(m.Headers().Get(jetstream.MsgIDHeader), m.Headers().Get(outbox.HeaderID))
	return receiving.Request(id, "header "+jetstream.MsgIDHeader, source, m.Data())
}
