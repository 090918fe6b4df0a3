package rabbitbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// ErrSinkClosed is returned by Send after [Sink.Close].
var ErrSinkClosed = errors.New("the sink is closed")

var errNack = errors.New("the broker did not take the message (nack): a queue is full, or could not store it")

// A ReturnedError says that the broker has returned a message, because its exchange does not route
// it to any queue. The message is sent again.
type ReturnedError struct {
	Exchange   string
	RoutingKey string
	Code       uint16 // the broker's, such as 312
	Reason     string // the broker's, such as NO_ROUTE
}

// Error names the exchange and the routing key.
func (e *ReturnedError) Error() string {
	return fmt.Sprintf("exchange %q returned the message with routing key %s: %d %s", e.Exchange, e.RoutingKey, e.Code, e.Reason)
}

// SinkConfig configures a sink. nil means the defaults.
type SinkConfig struct {
	// Exchange is the exchange for all messages: up to 255 bytes.
	//
	// Defaults to the default exchange of RabbitMQ, which routes to the queue named by the routing
	// key.
	Exchange string

	// Timeout bounds one attempt to send a message: 1 ms to 1 h. The broker may have taken the
	// message even if it was not confirmed by then.
	//
	// Defaults to 10 s.
	Timeout time.Duration
}

// A Sink publishes messages over one channel of one connection, several at a time; the broker
// confirms each. It is safe for concurrent use. [Sink.Close] closes the connection.
type Sink struct {
	dial   func(ctx context.Context) (*amqp.Connection, error)
	config SinkConfig

	mu        sync.Mutex
	publisher *publisher      // the last one, which may have ended
	opening   *opening        // the attempt that is under way
	closing   context.Context //nolint:containedctx // of the sink's life
	close     context.CancelFunc

	published atomic.Int64
}

// An opening is an attempt to make a publisher; all calls of Send wait for it.
type opening struct {
	done chan struct{}
	err  error // set before done is closed
}

var _ outbox.Sink = (*Sink)(nil)

// NewSink returns a sink that publishes over connections from dial. The first Send calls dial, and
// so does a Send after a connection has ended; dial's context ends after 30 s, or with
// [Sink.Close]. The sink owns the connection, which must not recover itself ([amqp.Config]). The
// package comment has the promises.
//
// If a message's topic is longer than 255 bytes, or the message is larger than the broker's
// max_message_size, it is refused, by handler.Refuse. After any other error it is sent again: the
// message was returned ([*ReturnedError]) or not taken (nack), the exchange does not exist, no
// connection, no confirmation.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid]. NewSink
// calls no broker.
func NewSink(dial func(ctx context.Context) (*amqp.Connection, error), config *SinkConfig) (*Sink, error) {
	s := &Sink{dial: dial}
	if config != nil {
		s.config = *config
	}
	s.config.Timeout = cmp.Or(s.config.Timeout, 10*time.Second)
	var all []error
	if dial == nil {
		all = append(all, messagestore.NewInvalidError("dial", nil, "must not be nil"))
	}
	if n := len(s.config.Exchange); n > maxShortString {
		all = append(all, messagestore.NewInvalidError("Exchange", s.config.Exchange, fmt.Sprintf("must be at most %d bytes, and is %d", maxShortString, n)))
	}
	if d := s.config.Timeout; d < time.Millisecond || d > time.Hour {
		all = append(all, messagestore.NewInvalidError("Timeout", d, "must be between 1ms and 1h0m0s"))
	}
	if err := errors.Join(all...); err != nil {
		return nil, fmt.Errorf("invalid sink: %w", err)
	}
	s.closing, s.close = context.WithCancel(context.Background())
	return s, nil
}

// SinkStats are a sink's counts since [NewSink].
type SinkStats struct {
	Published int64 // messages that the broker has confirmed
}

// Stats returns the current counts.
func (s *Sink) Stats() SinkStats { return SinkStats{s.published.Load()} }

// Close closes the connection, within 5 s. A Send under way, and every later one, returns an error.
func (s *Sink) Close() {
	s.close()
	s.mu.Lock()
	p := s.publisher
	s.mu.Unlock()
	if p != nil {
		closeConnection(p.conn)
	}
}

// Send publishes m, and returns nil when the broker has confirmed it.
func (s *Sink) Send(ctx context.Context, m *outbox.Message) error {
	switch {
	case ctx == nil:
		return fmt.Errorf("publish: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	case m == nil || m.Message == nil:
		return fmt.Errorf("publish: %w", messagestore.NewInvalidError("message", nil, "must not be nil"))
	case len(m.Topic) > maxShortString:
		return fmt.Errorf("publish: %w", handler.Refuse(messagestore.NewInvalidError("topic", m.Topic, fmt.Sprintf("must be at most %d bytes, as a routing key is", maxShortString))))
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	p, err := s.current(ctx)
	if err == nil {
		err = p.publish(ctx, s.publishing(m))
	}
	if err != nil {
		return fmt.Errorf("publish to exchange %q with routing key %s: %w", s.config.Exchange, m.Topic, err)
	}
	s.published.Add(1)
	return nil
}

// current returns the publisher, and opens one if necessary.
func (s *Sink) current(ctx context.Context) (*publisher, error) {
	for {
		s.mu.Lock()
		if s.closing.Err() != nil {
			s.mu.Unlock()
			return nil, ErrSinkClosed
		}
		if s.publisher != nil && !s.publisher.channel.IsClosed() {
			defer s.mu.Unlock()
			return s.publisher, nil
		}
		if s.opening == nil {
			s.opening = &opening{done: make(chan struct{})}
			go s.open(s.opening)
		}
		under := s.opening
		s.mu.Unlock()
		select {
		case <-under.done:
			if under.err != nil {
				return nil, under.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Sink) open(o *opening) {
	var p *publisher
	err := calling.Call(func() (err error) {
		p, err = openPublisher(s.closing, s.dial)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.publisher
	s.opening, o.err = nil, err
	switch {
	case err != nil:
	case s.closing.Err() != nil:
		before = p
	default:
		s.publisher = p
	}
	if before != nil && err == nil {
		go closeConnection(before.conn) // its channel, or the sink, has ended
	}
	close(o.done)
}

func (s *Sink) publishing(m *outbox.Message) *publishing {
	headers := amqp.Table{}
	for name, value := range m.Headers() {
		headers[name] = value
	}
	return &publishing{
		exchange: s.config.Exchange, key: m.Topic, written: make(chan error, 1),
		message: amqp.Publishing{
			Headers: headers, ContentType: "application/json", DeliveryMode: amqp.Persistent,
			MessageId: m.ID.String(), Timestamp: m.Time, Body: m.Body().Data,
		},
	}
}

// A publishing is a message on its way to the broker.
type publishing struct {
	exchange, key string
	message       amqp.Publishing

	written      chan error // receives nil when the message has a confirmation
	confirmation *amqp.DeferredConfirmation
	returned     *ReturnedError // guarded by the publisher's mu
}

// A publisher is a channel in confirm mode, until it ends.
type publisher struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	write   chan *publishing
	look    chan chan struct{} // an answer follows when all returns before it are known
	ended   chan struct{}      // closed when the channel has ended
	err     error              // why it has ended; set before ended is closed

	mu       sync.Mutex
	inFlight map[string][]*publishing // by message id
	blocked  string                   // why the broker does not accept messages now
}

func openPublisher(ctx context.Context, dial func(ctx context.Context) (*amqp.Connection, error)) (*publisher, error) {
	conn, err := dialed(ctx, dial)
	if err != nil {
		return nil, err
	}
	p := &publisher{conn: conn, write: make(chan *publishing), look: make(chan chan struct{}), ended: make(chan struct{}), inFlight: map[string][]*publishing{}}
	err = within(conn, func() (err error) {
		if p.channel, err = conn.Channel(); err != nil {
			return err
		}
		return p.channel.Confirm(false)
	})
	if err != nil {
		closeConnection(conn)
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	go p.watch(
		p.channel.NotifyReturn(make(chan amqp.Return, 64)), p.channel.NotifyClose(make(chan *amqp.Error, 1)), conn.NotifyBlocked(make(chan amqp.Blocking, 1)),
	)
	go p.writeAll()
	return p, nil
}

// watch records everything except confirmations that the broker sends, until the channel ends.
func (p *publisher) watch(returns <-chan amqp.Return, closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	for {
		select {
		case r, open := <-returns:
			if !open {
				returns = nil
				continue
			}
			p.returned(r)
		case answer := <-p.look:
			for ; len(returns) > 0; p.returned(<-returns) {
			}
			close(answer)
		case b, open := <-blocks:
			if !open {
				blocks = nil
				continue
			}
			p.mu.Lock()
			p.blocked = ""
			if b.Active {
				p.blocked = cmp.Or(b.Reason, "no reason")
			}
			p.mu.Unlock()
		case e := <-closes:
			p.err = amqp.ErrClosed
			if e != nil {
				p.err = e
			}
			close(p.ended)
			return
		}
	}
}

func (p *publisher) returned(r amqp.Return) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.inFlight[r.MessageId] { // several only if a message is sent twice at the same time
		one.returned = &ReturnedError{r.Exchange, r.RoutingKey, r.ReplyCode, r.ReplyText}
	}
}

// writeAll publishes messages one after the other, in its own goroutine, because a call may wait
// for the network and ignores contexts.
func (p *publisher) writeAll() {
	for {
		select {
		case one := <-p.write:
			err := calling.Call(func() (err error) {
				one.confirmation, err = p.channel.PublishWithDeferredConfirm(one.exchange, one.key, true, false, one.message)
				return err
			})
			one.written <- err
		case <-p.ended:
			return
		}
	}
}

// publish publishes a message, and waits until it is confirmed.
func (p *publisher) publish(ctx context.Context, one *publishing) error {
	id := one.message.MessageId
	p.mu.Lock()
	if p.blocked != "" {
		defer p.mu.Unlock()
		return fmt.Errorf("the broker takes no messages: %s", p.blocked)
	}
	p.inFlight[id] = append(p.inFlight[id], one)
	p.mu.Unlock()
	defer p.forget(id, one)

	select {
	case p.write <- one:
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-one.written:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-one.confirmation.Done():
	case <-ctx.Done():
		return fmt.Errorf("it was not confirmed: %w", ctx.Err())
	}
	return p.answer(one)
}

func (p *publisher) forget(id string, one *publishing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var others []*publishing
	for _, other := range p.inFlight[id] {
		if other != one {
			others = append(others, other)
		}
	}
	if p.inFlight[id] = others; others == nil {
		delete(p.inFlight, id)
	}
}

// answer returns the error of a confirmed message. The broker returns a message before it confirms
// it, and the client passes on both in that order.
func (p *publisher) answer(one *publishing) error {
	if one.confirmation.Acked() {
		seen := make(chan struct{})
		select {
		case p.look <- seen:
			<-seen
		case <-p.ended:
			return p.err // nobody knows whether it was returned
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if one.returned != nil {
			return one.returned
		}
		return nil
	}
	if !p.channel.IsClosed() {
		return errNack
	}
	<-p.ended // the channel ended without a confirmation
	return refusal(p.err, len(one.message.Body))
}

var tooLarge = regexp.MustCompile(`message size (\d+) is larger than`)

// refusal returns a refusal if the channel was ended because a message was too large, and this one
// is at least as large.
func refusal(err error, size int) error {
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
		return err
	}
	found := tooLarge.FindStringSubmatch(e.Reason)
	if found == nil {
		return err
	}
	if refused, _ := strconv.Atoi(found[1]); size >= refused && refused > 0 {
		return handler.Refuse(err)
	}
	return err
}
