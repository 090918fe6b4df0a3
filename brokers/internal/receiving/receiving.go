// Package receiving has the common part of all receivers. A [Receiver] has the settings, the start
// and the end of a run, the disposition of a function's error, the record of a parked message and
// the pauses before a message comes again. Some brokers redeliver a message only when the
// connection ends; for them a [Desk] keeps it meanwhile. The package of each broker has the rest.
package receiving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	// leastDelay is the pause before a message comes again after its first failure.
	leastDelay = 100 * time.Millisecond

	// maxUnasked is the longest pause after a broker did not answer.
	maxUnasked = 5 * time.Second

	// answerWithin bounds the wait for a broker to confirm an acknowledgement.
	answerWithin = 5 * time.Second

	maxAttempts = 1_000_000
)

// ErrRunning is returned when the receiver is already running.
var ErrRunning = errors.New("the receiver is running")

// A Config has the settings that all receivers have. The packages of the brokers document them.
type Config struct {
	Concurrency int
	MaxDelay    time.Duration
	Attempts    int
	Grace       time.Duration
	Logger      logger.Logger
}

// withDefaults returns c with the defaults for fields that are 0.
func (c Config) withDefaults() Config {
	if c.Concurrency == 0 {
		c.Concurrency = 1
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = time.Minute
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	return c
}

// check returns the mistakes in c.
func (c Config) check() (all []error) {
	add := func(field string, value any, rule string) {
		all = append(all, messagestore.NewInvalidError(field, value, rule))
	}
	if n := c.Concurrency; n < 1 || n > 1024 {
		add("Concurrency", n, "must be between 1 and 1024")
	}
	if d := c.MaxDelay; d < leastDelay || d > 24*time.Hour {
		add("MaxDelay", d, "must be between 100ms and 24h0m0s")
	}
	if n := c.Attempts; n < 0 || n > maxAttempts {
		add("Attempts", n, fmt.Sprintf("must be between 1 and %d, or 0 for no bound", maxAttempts))
	}
	if d := c.Grace; d < time.Millisecond || d > time.Hour {
		add("Grace", d, "must be between 1ms and 1h0m0s")
	}
	return all
}

// Stats count the outcomes of messages. The packages of the brokers document them.
type Stats struct {
	Acked, Delayed, Parked, Skipped int64
}

// A Receiver passes messages of a broker, of type M, to its caller's functions. It is safe for
// concurrent use.
type Receiver[M any] struct {
	Config

	f    func(ctx context.Context, m M) error
	park func(ctx context.Context, m M, reason error) error

	running                         atomic.Bool
	acked, delayed, parked, skipped atomic.Int64
}

// New returns a receiver. The error has all mistakes: in the arguments of New, and those that the
// caller has already found.
func New[M any](
	f func(ctx context.Context, m M) error, park func(ctx context.Context, m M, reason error) error, c Config, others ...error,
) (*Receiver[M], error) {
	r := &Receiver[M]{Config: c.withDefaults(), f: f, park: park}
	if f == nil {
		others = append(others, messagestore.NewInvalidError("function", nil, "must not be nil"))
	}
	if park == nil {
		others = append(others, messagestore.NewInvalidError("park", nil, "must not be nil"))
	}
	if err := errors.Join(append(others, r.check()...)...); err != nil {
		return nil, fmt.Errorf("invalid receiver: %w", err)
	}
	return r, nil
}

// Stats returns the current counts.
func (r *Receiver[M]) Stats() Stats {
	return Stats{r.acked.Load(), r.delayed.Load(), r.parked.Load(), r.skipped.Load()}
}

// Run calls run, unless the receiver runs already. The context fetching ends with ctx, or when stop
// is called; then run must fetch no more messages. The context working, for the caller's functions,
// ends a Grace later.
func (r *Receiver[M]) Run(ctx context.Context, run func(fetching, working context.Context, stop context.CancelFunc) error) error {
	if ctx == nil {
		return fmt.Errorf("receive: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	}
	if !r.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer r.running.Store(false)

	fetching, stop := context.WithCancel(ctx)
	defer stop()
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	context.AfterFunc(fetching, func() {
		_ = outage.Wait(working, r.Grace)
		cancel()
	})
	if err := run(fetching, working, stop); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	return nil
}

// Unasked logs that fetching messages failed, and waits, longer after each failure in a row. It
// logs the first failure, the second, the fourth, and so on.
func (r *Receiver[M]) Unasked(ctx context.Context, failed int, err error) {
	if failed&(failed-1) == 0 {
		r.Logger.Warn().Int("failures", failed).Str("error", text.Log(err)).Msg("no message could be asked for")
	}
	_ = outage.Wait(ctx, outage.Pause(failed, leastDelay, maxUnasked))
}

// A Delivery is a message that a broker has delivered.
type Delivery[M any] interface {
	// Message returns the message for the caller's functions.
	Message() M

	// Place returns the subject, stream, topic or queue of the message, for the log.
	Place() string

	// Times returns how often the message was delivered, including this time, as far as the broker
	// knows.
	Times() int

	// Ack tells the broker that the message is done, and returns when the broker has confirmed
	// that.
	Ack(ctx context.Context) error

	// Parked is Ack for a message that was recorded instead of handled.
	Parked(ctx context.Context, reason error) error

	// Extend tells the broker that the message is still in flight.
	Extend()
}

// Handle passes a delivery to the caller's function, the times-th time, and tells the broker the
// outcome. If ended is false, the message must come again after a pause; if the pause is 0, at
// once, because the receiver stops.
//
// While the function runs, Handle extends the delivery at the interval every, unless that is 0.
func (r *Receiver[M]) Handle(ctx context.Context, d Delivery[M], times int, every time.Duration) (again time.Duration, ended bool) {
	err := guarded(d.Extend, every, func() error { return r.f(ctx, d.Message()) })
	if err == nil {
		r.ack(ctx, d, d.Ack, &r.acked)
		return 0, true
	}
	found := calling.DispositionOf(err)
	switch {
	case found.Asks(calling.Skip):
		r.Logger.Warn().Str("from", d.Place()).Str("reason", text.Log(err)).Msg("message skipped")
		r.ack(ctx, d, d.Ack, &r.skipped)
		return 0, true
	case found.Asks(calling.Retry):
		return r.delay(d, times, err, found.After), false
	case found.Asks(calling.Park), found.Asks(calling.Refuse):
	case ctx.Err() != nil: // the receiver stops: another gets the message at once
		return 0, false
	case r.Attempts > 0 && times >= r.Attempts:
		err = fmt.Errorf("failed %d times: %w", times, err)
	default:
		return r.delay(d, times, err, outage.Pause(times, leastDelay, r.MaxDelay)), false
	}
	if failure := guarded(d.Extend, every, func() error { return r.park(ctx, d.Message(), err) }); failure != nil {
		if ctx.Err() != nil {
			return 0, false
		}
		return r.delay(d, times, fmt.Errorf("record a parked message: %w", failure), outage.Pause(times, leastDelay, r.MaxDelay)), false
	}
	r.Logger.Error().Str("from", d.Place()).Str("error", text.Log(err)).Msg("message parked: it does not come again")
	r.ack(ctx, d, func(ctx context.Context) error { return d.Parked(ctx, err) }, &r.parked)
	return 0, true
}

// ack acknowledges a message, and counts it when the broker has confirmed that.
func (r *Receiver[M]) ack(ctx context.Context, d Delivery[M], ack func(context.Context) error, count *atomic.Int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	if err := ack(ctx); err != nil {
		r.Logger.Warn().Str("from", d.Place()).Str("error", text.Log(err)).Msg("an acknowledgement was not confirmed: the message may come again")
		return
	}
	count.Add(1)
}

func (r *Receiver[M]) delay(d Delivery[M], times int, err error, pause time.Duration) time.Duration {
	r.delayed.Add(1)
	event := r.Logger.Warn().Str("from", d.Place()).Int("deliveries", times).Stringer("pause", pause.Round(time.Millisecond))
	if stack := calling.Stack(err); stack != "" {
		event = event.Str(logger.Stack, stack)
	}
	event.Str("error", text.Log(err)).Msg("message failed: it comes again")
	return pause
}

// guarded calls f, and calls extend at intervals while f runs.
func guarded(extend func(), every time.Duration, f func() error) error {
	done := calling.Go(f)
	if every <= 0 {
		return <-done
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			extend()
		}
	}
}

// Request returns a message as a request for an inbox. If no inbox can take it, the error is a
// refusal, by handler.Refuse, and matches [messagestore.ErrInvalid]; the request then has what the
// message has, for [inbox.Inbox.Refuse].
func Request(id, header, source string, data []byte) (inbox.Request, error) {
	request := inbox.Request{ID: id, Source: source, Data: json.RawMessage(data)}
	if err := fault(request, header); err != nil {
		return request, fmt.Errorf("message of %s: %w", text.Shorten(source), handler.Refuse(err))
	}
	return request, nil
}

func fault(r inbox.Request, header string) error {
	if rule := keys.Rule(r.ID); rule != "" {
		return keys.Invalid(header, r.ID, rule)
	}
	switch {
	case len(r.Source) > inbox.MaxSourceBytes:
		return messagestore.NewInvalidError("source", r.Source, fmt.Sprintf("must be at most %d bytes", inbox.MaxSourceBytes))
	case !utf8.ValidString(r.Source) || strings.ContainsRune(r.Source, 0):
		return messagestore.NewInvalidError("source", r.Source, "must be valid UTF-8 without U+0000")
	case len(r.Data) > messagestore.MaxMessageBytes:
		return messagestore.NewInvalidError("data", []byte(r.Data), fmt.Sprintf("must be at most %d bytes", messagestore.MaxMessageBytes))
	case !utf8.Valid(r.Data):
		return messagestore.NewInvalidError("data", []byte(r.Data), "must be valid UTF-8")
	}
	if len(r.Data) > 0 {
		if _, err := keys.Canonical(r.Data); err != nil {
			return messagestore.NewInvalidError("data", []byte(r.Data), fmt.Sprintf("must be JSON: %v", err))
		}
	}
	return nil
}

// Lane returns the key by which messages with a header dibs-stream are handled in order: the
// cardinal id of the stream. ok is false without the header.
func Lane(stream string) (key string, ok bool) {
	if stream == "" {
		return "", false
	}
	return messagestore.StreamName(stream).CardinalID(), true
}
