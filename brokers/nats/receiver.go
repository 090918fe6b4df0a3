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
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// The limits of a receiver.
const (
	// fetchWait is how long a request for a message waits in the server.
	fetchWait = 5 * time.Second

	// maxReason bounds the text of an error that is sent to the server.
	maxReason = 256
)

// ReceiverConfig configures a receiver. nil means the defaults.
type ReceiverConfig struct {
	// Concurrency is how many messages the function handles at a time: 1 to 1024. Messages come in
	// order only with 1; and even then a redelivered message comes later, unless the consumer's
	// MaxAckPending is 1.
	//
	// Defaults to 1.
	Concurrency int

	// MaxDelay bounds the pause before a message is delivered again: 100 ms to 24 h. The pause
	// begins with 100 ms and grows with each delivery. It does not bound handler.RetryAfter.
	//
	// Defaults to 1 min.
	MaxDelay time.Duration

	// Attempts is the number of deliveries, counted by the server, after which a failing message is
	// parked: 1 to 1,000,000. The consumer's MaxDeliver must be higher, or -1: if the server stops
	// delivering a message, it is recorded nowhere.
	//
	// Defaults to 0: no bound.
	Attempts int

	// Grace is how long messages in flight may take after ctx of Run is done: 1 ms to 1 h.
	//
	// Defaults to 10 s.
	Grace time.Duration

	// Logger receives an error for each message that is parked, and a warning for each failure.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Receiver passes the messages of a JetStream consumer to a function. Its methods are safe for
// concurrent use, but only one Run at a time is allowed. There is nothing to close.
type Receiver struct {
	engine   *receiving.Receiver[jetstream.Msg]
	consumer jetstream.Consumer
}

// ErrRunning is returned by Run when the receiver is already running.
var ErrRunning = receiving.ErrRunning

// NewReceiver returns a receiver that passes each message of c to f, and acknowledges it after f
// has returned nil. The receiver waits until the server has confirmed that. If the confirmation is
// lost, the message may come again.
//
// If f returns an error without a disposition, the message is delivered again after a pause. With
// handler.RetryAfter it is delivered again after that time; with handler.Skip it is logged, counted
// and acknowledged. With handler.Park or handler.Refuse, or after [ReceiverConfig.Attempts], it is
// parked: park records it, for example by [inbox.Inbox.Refuse], and then the server stops
// delivering it. If park returns any error, the message is delivered again. A panic of f or park
// counts as an error. While f or park takes longer than half of the consumer's AckWait, the
// receiver tells the server that the message is in progress.
//
// The consumer must be a pull consumer with explicit acknowledgements. The receiver requests a
// message only when f is free.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid].
// NewReceiver calls no server.
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
		return []error{messagestore.NewInvalidError("consumer", nil, "must not be nil")}
	}
	if info := c.CachedInfo(); info != nil && info.Config.AckPolicy != jetstream.AckExplicitPolicy {
		return []error{messagestore.NewInvalidError("consumer", info.Name, "must have explicit acknowledgements")}
	}
	return nil
}

// ReceiverStats are a receiver's counts since [NewReceiver].
type ReceiverStats struct {
	Acked   int64 // messages acknowledged, and confirmed by the server
	Delayed int64 // failures after which a message is delivered again
	Parked  int64 // messages that are recorded and not delivered again
	Skipped int64 // messages skipped, acknowledged, and confirmed by the server
}

// Stats returns the current counts.
func (r *Receiver) Stats() ReceiverStats { return ReceiverStats(r.engine.Stats()) }

// Run receives messages until ctx is done. Then it takes no more, waits up to
// [ReceiverConfig.Grace] for the messages in flight, cancels their context and returns nil. It
// returns an error only if the consumer or its stream was deleted, the connection was closed, or
// the receiver runs already ([ErrRunning]). It waits while the server is away.
func (r *Receiver) Run(ctx context.Context) error {
	return r.engine.Run(ctx, func(fetching, working context.Context, stop context.CancelFunc) error {
		failures := make([]error, r.engine.Concurrency)
		var workers sync.WaitGroup
		for i := range failures {
			workers.Go(func() {
				failures[i] = calling.Call(func() error { return r.work(fetching, working) })
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

// receive passes a message to the function, and tells the server the outcome.
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

// A delivery is a message, for package receiving.
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
// source is the given text or, if that is empty, the subject without its last token, which is the
// key.
//
// If no inbox can take the message, because it has no ID, or its data are not JSON or too large,
// the error is a refusal, by handler.Refuse, and matches [messagestore.ErrInvalid]. The request
// then has what the message has, for [inbox.Inbox.Refuse].
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
