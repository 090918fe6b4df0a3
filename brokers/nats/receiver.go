package natsbroker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/panics"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

const (
	// fetchWait is how long a request for a message waits at the server.
	fetchWait = 5 * time.Second

	// ackTimeout bounds the wait for the server to confirm an acknowledgement.
	ackTimeout = 5 * time.Second

	// leastDelay is the pause before a message is delivered again after its first failure.
	leastDelay = 100 * time.Millisecond

	// maxReason bounds the text of an error that is sent to the server.
	maxReason = 256
)

// ReceiverConfig changes how a receiver works. Nil means all defaults.
type ReceiverConfig struct {
	// Concurrency is how many messages are passed to the function at a time: 1 to 1024. Only with 1 do the
	// messages come in their order, and a message that is delivered again comes later also then, unless
	// the consumer's MaxAckPending is 1.
	//
	// Defaults to 1.
	Concurrency int

	// MaxDelay bounds the pause before a message is delivered again, but not one of handler.RetryAfter. The pause begins
	// with 100 ms, and grows with each delivery: 100 ms to 24 h.
	//
	// Defaults to 1 min.
	MaxDelay time.Duration

	// OnPark records a message for which the function has returned handler.Park or handler.Refuse, before the server is
	// told not to deliver it again. After an error of OnPark, whatever its disposition, the message is delivered again.
	//
	// Defaults to an error in the log. A stream of the limits policy still has the message.
	OnPark func(ctx context.Context, m jetstream.Msg, err error) error

	// Grace is how long the messages in work may take after the receiver is told to stop: 1 ms to 1 h.
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
	consumer jetstream.Consumer
	f        func(ctx context.Context, m jetstream.Msg) error
	config   ReceiverConfig

	running                         atomic.Bool
	acked, delayed, parked, skipped atomic.Int64
}

// ErrRunning is returned by a Run while another goes on.
var ErrRunning = errors.New("the receiver is running")

// NewReceiver returns a receiver that passes each message of c to f, and acknowledges it after f has returned nil. It
// waits until the server has confirmed that. If the confirmation is lost, the message may come again.
//
// After an error of f the message is delivered again, after a pause, unless the error carries a disposition. With
// handler.Park and handler.Refuse it is not delivered again: see [ReceiverConfig.OnPark]. With handler.RetryAfter it is
// delivered again after that time, and with handler.Skip it is logged, counted and acknowledged. A panic of f is
// an error. While f takes longer than half of the consumer's AckWait the server is told that the message is in work.
//
// The consumer is a pull consumer with explicit acknowledgements. A message is asked for only when f is free.
//
// The error has all mistakes in the arguments together: errors that match [messagestore.ErrInvalid]. NewReceiver calls no server.
func NewReceiver(c jetstream.Consumer, f func(ctx context.Context, m jetstream.Msg) error, config *ReceiverConfig) (*Receiver, error) {
	r := &Receiver{consumer: c, f: f}
	if config != nil {
		r.config = *config
	}
	r.config.Concurrency = cmp.Or(r.config.Concurrency, 1)
	r.config.MaxDelay = cmp.Or(r.config.MaxDelay, time.Minute)
	r.config.Grace = cmp.Or(r.config.Grace, 10*time.Second)
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("invalid receiver: %w", err)
	}
	return r, nil
}

func (r *Receiver) check() error {
	var all []error
	add := func(field string, value any, rule string) {
		all = append(all, messagestore.NewInvalidError(field, value, rule))
	}
	if isNil(r.consumer) {
		add("consumer", nil, "there is none")
	} else if info := r.consumer.CachedInfo(); info != nil && info.Config.AckPolicy != jetstream.AckExplicitPolicy {
		add("consumer", info.Name, "its acknowledgements are not explicit")
	}
	if r.f == nil {
		add("function", nil, "it is nil")
	}
	if n := r.config.Concurrency; n < 1 || n > 1024 {
		add("Concurrency", n, "it is between 1 and 1024")
	}
	if d := r.config.MaxDelay; d < leastDelay || d > 24*time.Hour {
		add("MaxDelay", d, "it is between 100ms and 24h0m0s")
	}
	if d := r.config.Grace; d < time.Millisecond || d > time.Hour {
		add("Grace", d, "it is between 1ms and 1h0m0s")
	}
	return errors.Join(all...)
}

// ReceiverStats are a receiver's counts since [NewReceiver].
type ReceiverStats struct {
	Acked   int64 // messages whose acknowledgement the server confirmed
	Delayed int64 // failures after which a message is delivered again
	Parked  int64 // messages that are not delivered again
	Skipped int64 // messages that were passed over, and whose acknowledgement the server confirmed
}

// Stats returns the counts of this moment.
func (r *Receiver) Stats() ReceiverStats {
	return ReceiverStats{r.acked.Load(), r.delayed.Load(), r.parked.Load(), r.skipped.Load()}
}

// Run receives messages until ctx is done. Then it takes no more, waits up to [ReceiverConfig.Grace] for those in
// work, cancels their context and returns nil. It returns an error only if the consumer or its stream was deleted, the
// connection was closed, or the receiver runs already ([ErrRunning]). It waits for a server that is away.
func (r *Receiver) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer r.running.Store(false)

	fetching, stop := context.WithCancel(ctx)
	defer stop()
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	context.AfterFunc(fetching, func() {
		_ = backoff.Wait(working, r.config.Grace)
		cancel()
	})

	failures := make([]error, r.config.Concurrency)
	var workers sync.WaitGroup
	for i := range failures {
		workers.Go(func() {
			failures[i] = r.work(fetching, working)
			stop() // the others
		})
	}
	workers.Wait()
	for _, err := range failures {
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
	return nil
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
			r.config.Logger.Warn().Str("error", text.Log(err)).Msg("no message could be asked for")
			_ = backoff.Wait(fetching, backoff.After(failed, leastDelay, 5*time.Second))
		}
	}
	return nil
}

// receive passes a message to the function, and tells the server what came of it.
func (r *Receiver) receive(ctx context.Context, m jetstream.Msg) {
	err := r.call(ctx, m)
	found := disposition.Of(err)
	switch {
	case err == nil:
		r.ack(ctx, m, &r.acked)
	case found.Asks(disposition.Skip):
		r.config.Logger.Warn().Str("subject", m.Subject()).Str("reason", text.Log(err)).Msg("message skipped")
		r.ack(ctx, m, &r.skipped)
	case found.Asks(disposition.Park), found.Asks(disposition.Refuse):
		r.park(ctx, m, err)
	case found.Asks(disposition.Retry):
		r.delay(m, err, found.After)
	case ctx.Err() != nil: // the receiver stops: another one has the message at once
		_ = m.Nak()
	default:
		r.delay(m, err, backoff.After(deliveries(m), leastDelay, r.config.MaxDelay))
	}
}

// ack acknowledges a message, and counts it when the server has confirmed that.
func (r *Receiver) ack(ctx context.Context, m jetstream.Msg, count *atomic.Int64) {
	confirm, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
	defer cancel()
	if err := m.DoubleAck(confirm); err != nil {
		r.config.Logger.Warn().Str("subject", m.Subject()).Str("error", text.Log(err)).Msg("an acknowledgement was not confirmed: the message may come again")
		return
	}
	count.Add(1)
}

// park has a message not delivered again, when it is recorded.
func (r *Receiver) park(ctx context.Context, m jetstream.Msg, err error) {
	if r.config.OnPark == nil {
		r.config.Logger.Error().Str("subject", m.Subject()).Str("error", text.Log(err)).Msg("message parked: it is not delivered again")
	} else if failure := r.record(ctx, m, err); failure != nil {
		r.delay(m, fmt.Errorf("record a parked message: %w", failure), backoff.After(deliveries(m), leastDelay, r.config.MaxDelay))
		return
	}
	if failure := m.TermWithReason(reason(err)); failure != nil {
		r.config.Logger.Warn().Str("subject", m.Subject()).Str("error", text.Log(failure)).Msg("the server was not told to deliver a message no more: it may come again")
		return
	}
	r.parked.Add(1)
}

// deliveries returns how often a message was delivered.
func deliveries(m jetstream.Msg) int {
	data, err := m.Metadata()
	if err != nil {
		return 1
	}
	return int(min(data.NumDelivered, math.MaxInt32))
}

// delay has a message delivered again after a pause.
func (r *Receiver) delay(m jetstream.Msg, err error, pause time.Duration) {
	r.delayed.Add(1)
	event := r.config.Logger.Warn().Str("subject", m.Subject()).Int("deliveries", deliveries(m)).Dur("pause", pause)
	if stack := panics.Stack(err); stack != "" {
		event = event.Str(logger.Stack, stack)
	}
	event.Str("error", text.Log(err)).Msg("message failed: it is delivered again")
	if failure := m.NakWithDelay(pause); failure != nil { // AckWait does the same
		r.config.Logger.Warn().Str("subject", m.Subject()).Str("error", text.Log(failure)).Msg("the server was not told of a failure")
	}
}

func (r *Receiver) record(ctx context.Context, m jetstream.Msg, err error) error {
	return r.guarded(m, func() error { return r.config.OnPark(ctx, m, err) })
}

// call calls the function.
func (r *Receiver) call(ctx context.Context, m jetstream.Msg) error {
	return r.guarded(m, func() error { return r.f(ctx, m) })
}

// guarded calls f, and tells the server while it goes on.
func (r *Receiver) guarded(m jetstream.Msg, f func() error) error {
	done := panics.Go(f)
	every := time.NewTicker(r.half())
	defer every.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-every.C:
			_ = m.InProgress()
		}
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

// reason returns the text of an error for the server, in one line.
func reason(err error) string {
	text := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(err.Error(), "?"))
	for len(text) > maxReason {
		_, last := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-last]
	}
	return text
}

// Request returns m as a request for an inbox. Its ID is the header Nats-Msg-Id, or dibs-id. Its source is the
// text that is given, or, if that is empty, the subject without its last token, which is the key's.
//
// A message that no inbox takes is refused, by handler.Refuse, with an error that matches
// [messagestore.ErrInvalid]: it has no ID, or its data are no JSON, or too large.
func Request(m jetstream.Msg, source string) (inbox.Request, error) {
	refuse := func(err error) (inbox.Request, error) {
		return inbox.Request{}, fmt.Errorf("message of subject %s: %w", m.Subject(), handler.Refuse(err))
	}
	id := cmp.Or(m.Headers().Get(jetstream.MsgIDHeader), m.Headers().Get(outbox.HeaderID))
	if rule := keys.Rule(id); rule != "" {
		return refuse(keys.Invalid("header "+jetstream.MsgIDHeader, id, rule))
	}
	if source == "" {
		source = m.Subject()
		if i := strings.LastIndexByte(source, '.'); i >= 0 {
			source = source[:i]
		}
	}
	data := m.Data()
	switch {
	case len(source) > inbox.MaxSourceBytes:
		return refuse(messagestore.NewInvalidError("source", source, fmt.Sprintf("at most %d bytes", inbox.MaxSourceBytes)))
	case !utf8.ValidString(source) || strings.ContainsRune(source, 0):
		return refuse(messagestore.NewInvalidError("source", source, "not valid UTF-8, or with a character U+0000"))
	case len(data) > messagestore.MaxMessageBytes:
		return refuse(messagestore.NewInvalidError("data", data, fmt.Sprintf("too long: at most %d bytes", messagestore.MaxMessageBytes)))
	case !utf8.Valid(data):
		return refuse(messagestore.NewInvalidError("data", data, "not valid UTF-8"))
	}
	if len(data) > 0 {
		if _, err := keys.Canonical(json.RawMessage(data)); err != nil {
			return refuse(messagestore.NewInvalidError("data", data, fmt.Sprintf("it is no JSON: %v", err)))
		}
	}
	return inbox.Request{ID: id, Source: source, Data: json.RawMessage(data)}, nil
}
