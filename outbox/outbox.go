package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// The limits of a relay.
const (
	// MaxRetryAfter is the longest pause that a sink may ask for by handler.RetryAfter.
	MaxRetryAfter = time.Hour

	// A message that has failed is sent again after minBackoff. The pause then doubles each time.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Minute

	// maxOutBackoff bounds the wait of a message that was sent while the sink was out.
	maxOutBackoff = 2 * time.Minute

	maxAttempts = 10_000
	longest     = 10 * 365 * 24 * time.Hour
)

// A Sink takes messages. Send is called from up to [Config.Concurrency] goroutines, but never at
// the same time for two messages of one key. It returns nil when the sink has the message for good.
// The package comment explains how errors are treated. The relay does not close its sink.
//
// The context ends [Config.Timeout] after the attempt began. While the relay stops, it also ends if
// the messages in flight have not been taken within [Config.Grace]. A Send that goes on for another
// Grace is abandoned: its message counts as failed and is sent again, other keys go on, and the
// call is counted and logged.
type Sink interface {
	Send(ctx context.Context, m *Message) error
}

// A BatchSink takes several messages at a time. While a call of Send or SendAll runs, messages that
// become ready wait, and go together in the next call: a single one by Send, several by SendAll.
// These are at most [Config.Concurrency] messages, with 4 MiB of data at most. A batch has at most
// one message per key. Only one call runs at a time, so it must honor its context: a call that
// hangs stops the relay.
//
// SendAll returns one error for each message, in their order, or nil if the sink has it. If it
// returns another number of answers, nobody knows which message was taken: all are sent again.
type BatchSink interface {
	Sink
	SendAll(ctx context.Context, messages []*Message) []error
}

// Config changes how a relay works. Nil means all defaults. [New] refuses values that are out of
// bounds.
type Config struct {
	// Topic names the place in the sink for a message, such as a subject or a topic of a broker:
	// see [Message].Topic. It may be called several times for a message, and from several
	// goroutines.
	//
	// Defaults to the category of the message's stream.
	Topic func(m *messagestore.Message) string

	// Types are the message types to send, each with all names that it had before. A message of a
	// type that is neither here nor in Ignore waits, with the messages behind it, until a relay
	// knows the type: it is tried again after a pause, without a failure, and logged each time. So
	// a type that was renamed, or that a newer version of the service writes, is not skipped by
	// accident.
	//
	// Defaults to all types that are not in Ignore.
	Types []string

	// Ignore are the message types that the relay skips.
	//
	// Defaults to none.
	Ignore []string

	// IgnoreUnknown makes the relay skip all messages of types not in Types, for good. Use it for a
	// relay of another service's category. If you add a type later, it is sent from the relay's
	// current place on, not from the start.
	//
	// Defaults to false.
	IgnoreUnknown bool

	// Correlation makes the relay skip messages without a correlation stream of this category.
	//
	// Defaults to all messages.
	Correlation messagestore.Category

	// Since makes the relay skip messages from before this time, by the store's clock. Use it for a
	// new relay of a category with a history, or to send a part of it again under another name.
	//
	// Defaults to the beginning.
	Since time.Time

	// Concurrency is how many messages a process has in flight at a time, each with a different
	// key: 1 to 1,000.
	//
	// Defaults to 64.
	Concurrency int

	// Prefetch is how many messages a process has reserved at most, including those in flight:
	// Concurrency to 1,000. If a process dies, at most this many messages are sent again. If
	// Prefetch exceeds Concurrency, consecutive messages of a key may be sent without a store call
	// in between. A process reserves as many messages as the sink took in the last 100 ms, and at
	// least Concurrency. So with a fast sink one call of the store reserves many messages, and a
	// process with a slow sink leaves the rest to others.
	//
	// Defaults to 1,000.
	Prefetch int

	// MaxAttempts and MaxAge say when a message is dead: after this many failed attempts, and not
	// before it is this old. They are 1 to 10,000, and 1 ms to ten years. The package comment
	// explains which attempts count.
	//
	// They default to 20 and 24 hours: 20 attempts take about an hour, and after that there is an
	// attempt every five to ten minutes until the age is reached.
	MaxAttempts int
	MaxAge      time.Duration

	// Timeout ends the context of an attempt, 10 ms to 24 hours. See [Sink].
	//
	// Defaults to a minute.
	Timeout time.Duration

	// Lease is how long the messages of a dead process are kept from others: 100 ms to 24 hours.
	//
	// Defaults to 10 s.
	Lease time.Duration

	// PollInterval is the longest time until a message that another process wrote is noticed: 10 ms
	// to 1 h.
	//
	// Defaults to 100 ms.
	PollInterval time.Duration

	// Grace is how long the messages in flight may take after the relay begins to stop, up to 24
	// hours.
	//
	// Defaults to 10 s.
	Grace time.Duration

	// Logger receives a warning for each failed attempt, an error for each dead message and when
	// the sink takes nothing, and the outages of the store. Its entries have names, numbers and
	// errors, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

func (c *Config) complete() (all []error) {
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	c.Prefetch = cmp.Or(c.Prefetch, queuing.MaxItems)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 20)
	c.MaxAge = cmp.Or(c.MaxAge, 24*time.Hour)
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.PollInterval = cmp.Or(c.PollInterval, 100*time.Millisecond)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	number := func(field string, n, most int) {
		if n < 1 || n > most {
			all = append(all, messagestore.NewInvalidError(field, n, fmt.Sprintf("must be between 1 and %d", most)))
		}
	}
	duration := func(field string, d, least, most time.Duration) {
		if d < least || d > most {
			all = append(all, messagestore.NewInvalidError(field, d, fmt.Sprintf("must be between %v and %v", least, most)))
		}
	}
	const day = 24 * time.Hour
	number("Concurrency", c.Concurrency, queuing.MaxItems)
	if c.Prefetch < min(c.Concurrency, queuing.MaxItems) || c.Prefetch > queuing.MaxItems {
		all = append(all, messagestore.NewInvalidError("Prefetch", c.Prefetch, fmt.Sprintf("must be between Concurrency and %d", queuing.MaxItems)))
	}
	number("MaxAttempts", c.MaxAttempts, maxAttempts)
	duration("MaxAge", c.MaxAge, time.Millisecond, longest)
	duration("Timeout", c.Timeout, 10*time.Millisecond, day)
	duration("Lease", c.Lease, 100*time.Millisecond, day)
	duration("PollInterval", c.PollInterval, 10*time.Millisecond, time.Hour)
	duration("Grace", c.Grace, 0, day)
	if c.Correlation != "" {
		if err := c.Correlation.Validate(); err != nil {
			all = append(all, fmt.Errorf("correlation: %w", err))
		}
	}
	return all
}

// maxFailures is the number of failures after which the queue itself makes a message dead: more
// than the attempts that fit into MaxAge. So a message that ends its process each time becomes dead
// in the end.
func (c *Config) maxFailures() int {
	const ofTheFirst = 16 // pauses, until they are the longest
	return int(min(int64(c.MaxAttempts)+int64(2*c.MaxAge/maxBackoff)+ofTheFirst, queuing.MaxFailures))
}

// A Relay sends the messages of a category to a sink. Its methods are safe for concurrent use, but
// only one Run or CatchUp may run at a time. There is nothing to close.
type Relay struct {
	queue  *queue.Queue
	source work.Source // the same queue, for its engine
	sink   Sink
	send   func(ctx context.Context, m *Message, check func() error) error
	config Config
	health health

	// Errors of messages that were tried behind others. They count as the result of the next
	// attempt, when the message's turn comes.
	mu    sync.Mutex
	ahead map[messagestore.GlobalPosition]error

	types, ignore              map[string]bool
	running                    atomic.Bool
	counts                     work.Counts
	calls, sent, ignored, gone atomic.Int64
}

// errUnknownType is the error for a message that the relay neither sends nor skips.
var errUnknownType = fmt.Errorf("%w: it is neither in Types nor in Ignore, and the relay does not ignore it (IgnoreUnknown)", handler.ErrUnknownType)

// New returns a relay that sends the messages of category of store to sink. The name is the name of
// the relay's queue: 1 to 255 bytes of visible text without white space, - and +, and different
// from all other queues of the store. Processes with one name are replicas.
//
// The error has all mistakes in the arguments together: errors that match
// [messagestore.ErrInvalid]. It matches [messagestore.ErrNotSupported] if the store's driver keeps
// no queues. New does not call the store and sends nothing.
func New(store *messagestore.Store, category messagestore.Category, name string, sink Sink, config *Config) (*Relay, error) {
	r := &Relay{sink: sink}
	if config != nil {
		r.config = *config
	}
	c := &r.config
	wrong := mistakes(store, name, sink)
	wrong = append(wrong, c.complete()...)
	wrong = append(wrong, r.setTypes()...)
	r.health.log, r.health.name = c.Logger, name
	r.send = r.sendAlone
	if batches, is := sink.(BatchSink); is {
		r.send = (&gathering{sink: batches, calls: &r.calls}).send
	}
	policy := queuing.Policy{MaxFailures: max(1, c.maxFailures()), Hold: true}
	var err error
	r.queue, err = queue.New(store, category, &queue.Config{Name: name, MaxFailures: policy.MaxFailures, WhenDead: queue.Hold, Logger: c.Logger})
	if err != nil {
		wrong = append(wrong, err)
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("invalid relay: %w", errors.Join(wrong...))
	}
	keeps, err := queuing.Of(store)
	if err != nil { // then there were mistakes
		return nil, fmt.Errorf("invalid relay: %w", err)
	}
	r.source = work.Source{
		Watch: store.Watch, Outage: outage.Of(store), Driver: keeps, Queue: queuing.Queue{Name: name, Category: category}, Policy: work.Always(policy), Logger: c.Logger,
	}
	return r, nil
}

// setTypes stores the types to send and to skip, and returns the mistakes in them.
func (r *Relay) setTypes() (all []error) {
	c := &r.config
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
			if rule := text.TypeRule(name); rule != "" {
				all = append(all, fmt.Errorf("%s: %w", list.field, messagestore.NewInvalidError("message type", name, rule)))
			}
			list.set[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.ignore)) {
		if r.types[name] {
			wrong("ignore", name, "must not be in Types too")
		}
	}
	switch {
	case c.IgnoreUnknown && len(c.Types) == 0:
		wrong("ignore unknown", true, "must not be set without Types: name the types to send there")
	case c.IgnoreUnknown && len(c.Ignore) > 0:
		wrong("ignore", len(c.Ignore), "must be empty with IgnoreUnknown, which passes over all types that are not in Types")
	}
	return all
}

// mistakes returns the mistakes in the name and the sink.
func mistakes(store *messagestore.Store, name string, sink Sink) (all []error) {
	if name == "" {
		all = append(all, messagestore.NewInvalidError("queue name", name, "must not be empty"))
	}
	if v := reflect.ValueOf(sink); sink == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		all = append(all, messagestore.NewInvalidError("sink", nil, "must not be nil"))
	}
	if into, is := sink.(*storeSink); is && into != nil && store != nil && store == into.store {
		all = append(all, messagestore.NewInvalidError("sink", nil, "must not be the store that the relay reads"))
	}
	return all
}

// Run sends messages until ctx is done. Then it takes no more, waits up to [Config.Grace] for those
// in flight, gives back the rest and returns nil. It returns another error, or returns earlier,
// only because of a lasting error of the store, or of a Send that does not end: see
// [queue.Queue.Work].
func (r *Relay) Run(ctx context.Context) error {
	if err := r.use(); err != nil {
		return err
	}
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("relay %s: %w", r.queue.Name(), queue.ErrWorking)
	}
	defer r.running.Store(false)
	c := &r.config
	err := work.Run(ctx, r.source, work.Config{
		MaxWorkers: c.Concurrency, Prefetch: c.Prefetch, Behind: c.Prefetch - c.Concurrency, Timeout: c.Timeout, Grace: c.Grace, Lease: c.Lease, PollInterval: c.PollInterval,
		Handle: r.handle, Finish: r.finish,
	}, &r.counts)
	if err != nil {
		return fmt.Errorf("relay %s: %w", r.queue.Name(), err)
	}
	return nil
}

func (r *Relay) use() error {
	if r == nil || r.queue == nil {
		return messagestore.NewInvalidError("relay", nil, "must be made by New")
	}
	return nil
}

// CatchUp sends messages until only dead ones and the messages behind them are left, and returns
// nil. It waits for a sink that neither takes a message nor refuses it for good: give ctx a
// deadline. When ctx ends, CatchUp returns ctx's error.
func (r *Relay) CatchUp(ctx context.Context) error {
	if err := r.use(); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	watched := calling.Go(func() error {
		defer stop()
		return r.awaitEmpty(running)
	})
	err := r.Run(running)
	stop()
	empty := <-watched
	switch {
	case err != nil || empty == nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return empty
}

// awaitEmpty waits until nothing is left to send, or ctx is done.
func (r *Relay) awaitEmpty(ctx context.Context) error {
	const least, most = 5 * time.Millisecond, time.Second
	pause, before := least, int64(-1)
	for ; outage.Wait(ctx, pause) == nil; pause = min(2*pause, most) {
		if now := r.counts.Completed.Load(); now != before { // it goes on
			pause, before = least, now
			continue
		}
		s, err := r.queue.Status(ctx)
		if err == nil && !s.Waiting && s.Out+s.Later == 0 {
			return nil
		}
	}
	return ctx.Err()
}

// Queue returns the relay's queue, for looking at its items and changing them: [queue.Queue.Retry]
// and [queue.Queue.Drop] work on the dead ones. Do not call its Work or Receive.
func (r *Relay) Queue() *queue.Queue { return r.queue }

// Stats are the counts of a relay in this process since [New].
type Stats struct {
	Sent      int64 // messages that the sink has taken
	Ignored   int64 // messages that the relay skipped: by Ignore, IgnoreUnknown, Correlation or Since
	Skipped   int64 // messages that the sink skipped by handler.Skip
	Failed    int64 // attempts that failed and count, and messages that were parked or refused
	Dead      int64 // messages that died here
	Abandoned int64 // attempts that did not end in time
	Calls     int64 // of Send and SendAll

	// Gone counts the answers 404 and 410, which say that the URL does not exist.
	Gone int64

	// OutSince is when the sink stopped taking messages, while it is out; zero otherwise.
	OutSince time.Time
}

// Stats returns the counts of this moment.
func (r *Relay) Stats() Stats {
	c := &r.counts
	return Stats{
		Sent: r.sent.Load(), Ignored: r.ignored.Load(),
		Skipped: c.Skipped.Load(), Failed: c.Failed.Load(), Dead: c.Buried.Load(), Abandoned: c.Abandoned.Load(),
		Calls: r.calls.Load(), Gone: r.gone.Load(), OutSince: r.health.outSince(),
	}
}

// passesOver reports whether the relay skips a message.
func (r *Relay) passesOver(m *messagestore.Message) bool {
	c := &r.config
	return r.ignore[m.Type] || c.IgnoreUnknown && !r.types[m.Type] || m.Time.Before(c.Since) ||
		c.Correlation != "" && m.Metadata.CorrelationStream.Category() != c.Correlation
}

// handle sends a message, as the handler of the queue, and then the messages behind it with the
// same key, as long as the sink takes them.
func (r *Relay) handle(ctx context.Context, d *work.Delivery) error {
	m := d.Item.Message
	err, was := r.wasTried(m)
	if !was || d.Item.Version > 0 { // it was given back since it was tried: by another process, or by an operator
		err = r.sendOne(ctx, d, m)
	}
	_, notBegun := err.(*work.NotBegunError) //nolint:errorlint // errors that a sink wraps are the sink's
	switch {
	case notBegun, calling.Is(err, errUnknownType):
		return err
	case err != nil:
		return r.disposed(ctx, d, err)
	}
	for m = d.Behind(ctx); m != nil; m = d.Behind(ctx) {
		if err := r.sendOne(ctx, d, m); err != nil {
			if _, notBegun := err.(*work.NotBegunError); !notBegun && ctx.Err() == nil { //nolint:errorlint // as above
				r.tried(m, err)
			}
			break
		}
		d.Did(m)
	}
	return nil
}

// maxTried bounds how many errors of messages behind others are kept: most of these messages come
// next.
const maxTried = 1000

func (r *Relay) tried(m *messagestore.Message, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ahead == nil || len(r.ahead) == maxTried {
		r.ahead = map[messagestore.GlobalPosition]error{}
	}
	r.ahead[m.GlobalPosition] = err
}

func (r *Relay) wasTried(m *messagestore.Message) (err error, was bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err, was = r.ahead[m.GlobalPosition]
	delete(r.ahead, m.GlobalPosition)
	return err, was
}

// sendOne sends a message, or skips it. The delivery is for this message or an earlier one of its
// stream.
func (r *Relay) sendOne(ctx context.Context, d *work.Delivery, m *messagestore.Message) error {
	switch {
	case r.passesOver(m):
		r.ignored.Add(1)
		return nil
	case len(r.types) > 0 && !r.types[m.Type]:
		return fmt.Errorf("send %s: %w", m, errUnknownType)
	}
	r.health.wait(ctx)
	if err := r.attempt(ctx, d, m); err != nil {
		return err
	}
	r.sent.Add(1)
	r.health.took()
	return nil
}

// attempt calls the sink in the goroutine of the worker, which has a grown stack from earlier
// calls.
func (r *Relay) attempt(ctx context.Context, d *work.Delivery, m *messagestore.Message) (err error) {
	check := func() error { return d.Check(ctx) }
	if err := check(); err != nil {
		return err
	}
	err = calling.ErrExited
	defer calling.Catch(&err)
	out := &Message{Message: m, Topic: string(m.Stream.Category())}
	if r.config.Topic != nil {
		out.Topic = r.config.Topic(m)
	}
	return r.send(ctx, out, check)
}

func (r *Relay) sendAlone(ctx context.Context, m *Message, _ func() error) error {
	r.calls.Add(1)
	return r.sink.Send(ctx, m)
}

// finish decides how a delivery ends. If a sink has ended its goroutine, handle has not seen an
// error.
func (r *Relay) finish(d *work.Delivery, err error, stopped bool) queuing.Finish {
	if p := calling.PanicOf(err); p != nil && p.Exited() && !stopped {
		err = r.disposed(context.Background(), d, err)
	}
	return work.FinishOf(d, err, stopped, minBackoff, maxBackoff)
}

// disposed returns the error that makes the queue treat a message as the sink's error asks. A pause
// is at most [MaxRetryAfter]; a pause of 0 means the relay's own, so that a sink is never called
// without a pause.
func (r *Relay) disposed(ctx context.Context, d *work.Delivery, err error) error {
	m, found := d.Item.Message, calling.DispositionOf(err)
	asked := found.Asks(calling.Retry)
	switch {
	case asked && found.After > 0:
		return handler.RetryAfter(min(found.After, MaxRetryAfter), err)
	case found != nil && !asked:
		return err
	case ctx.Err() == context.Canceled: // the relay stops, or has lost the message
		return fmt.Errorf("the attempt was interrupted: %w", ctx.Err())
	}
	if isGone(err) {
		r.gone.Add(1)
	}
	plain := &unsentError{err}
	counts, wait := r.health.failed(m, err)
	switch {
	case !counts:
		return handler.RetryAfter(wait, plain)
	case d.Item.Failures+1 >= r.config.MaxAttempts && time.Since(m.Time) >= r.config.MaxAge:
		return handler.Park(plain)
	}
	return plain
}

// An unsentError hides the kind of a sink's error, such as a disposition with which it panicked. It
// shows the stack of a panic.
type unsentError struct{ err error }

// Unwrap returns the panic of the sink, without the kind of its value.
func (e *unsentError) Unwrap() error {
	if p := calling.PanicOf(e.err); p != nil {
		return &calling.PanicError{Value: p.Error(), Stack: p.Stack}
	}
	return nil
}

func (e *unsentError) Error() string { return e.err.Error() }
