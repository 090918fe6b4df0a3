package rabbitbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/dibs-go/dibs/brokers/internal/receiving"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// maxPrefetch bounds the messages that a receiver may hold.
const maxPrefetch = 65_535

var errCancelled = errors.New("the broker has ended the consumer: the queue was deleted, or its node is gone")

// ReceiverConfig configures a receiver. nil means the defaults.
type ReceiverConfig struct {
	// Concurrency is how many messages, of different keys, the function handles at a time: 1 to
	// 1024.
	//
	// Defaults to 1.
	Concurrency int

	// Prefetch is how many messages the receiver holds (in flight, ready or to come again):
	// Concurrency to 65,535. Other receivers of the queue do not get them, and while all of them
	// fail no other message comes.
	//
	// Defaults to 256, or to Concurrency if that is more.
	Prefetch int

	// MaxDelay bounds the pause before a message comes again: 100 ms to 24 h. The pause begins with
	// 100 ms and grows with each failure. It does not bound handler.RetryAfter. The broker's
	// consumer_timeout ends a longer pause.
	//
	// Defaults to 1 min.
	MaxDelay time.Duration

	// Attempts is the number of failed calls of the function, in one receiver and over one
	// connection, after which a message is parked: 1 to 1,000,000. Another receiver begins at 1,
	// because the broker's count includes deliveries that the receiver only held.
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

// A Receiver passes the messages of a queue to a function. Its methods are safe for concurrent use,
// but only one Run at a time is allowed. There is nothing to close.
type Receiver struct {
	engine   *receiving.Receiver[amqp.Delivery]
	dial     func(ctx context.Context) (*amqp.Connection, error)
	queue    string
	prefetch int
}

// ErrRunning is returned by Run when the receiver is already running.
var ErrRunning = receiving.ErrRunning

// NewReceiver returns a receiver that passes each message of a queue to f, and acknowledges it
// after f has returned nil. If the connection is lost before that, the message comes again. Run
// uses its own connection from dial, like [NewSink], and closes it. The queue must exist: the
// receiver does not declare it.
//
// If f returns an error without a disposition, the message comes again after a pause. Meanwhile
// messages of its key wait, and others go on until the receiver has [ReceiverConfig.Prefetch] in
// hand. With handler.RetryAfter it comes again after that time; with handler.Skip it is logged,
// counted and acknowledged. With handler.Park or handler.Refuse, or after
// [ReceiverConfig.Attempts], it is parked: park records it, for example by [inbox.Inbox.Refuse],
// and then it is acknowledged. If park returns any error, the message comes again. A panic of f or
// park counts as an error. Only the receiver acknowledges: in f and park the methods of the
// [amqp.Delivery] return errors.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid].
// NewReceiver calls no broker.
func NewReceiver(
	dial func(ctx context.Context) (*amqp.Connection, error), queue string, f func(ctx context.Context, m amqp.Delivery) error,
	park func(ctx context.Context, m amqp.Delivery, reason error) error, config *ReceiverConfig,
) (*Receiver, error) {
	if config == nil {
		config = &ReceiverConfig{}
	}
	r := &Receiver{dial: dial, queue: queue, prefetch: cmp.Or(config.Prefetch, max(256, config.Concurrency))}
	var wrong []error
	if dial == nil {
		wrong = append(wrong, messagestore.NewInvalidError("dial", nil, "must not be nil"))
	}
	if n := len(queue); n == 0 || n > maxShortString {
		wrong = append(wrong, messagestore.NewInvalidError("queue", queue, fmt.Sprintf("must be 1 to %d bytes", maxShortString)))
	}
	if n := r.prefetch; n < max(1, config.Concurrency) || n > maxPrefetch {
		wrong = append(wrong, messagestore.NewInvalidError("Prefetch", n, fmt.Sprintf("must be between Concurrency and %d", maxPrefetch)))
	}
	var err error
	r.engine, err = receiving.New(f, park, receiving.Config{
		Concurrency: config.Concurrency, MaxDelay: config.MaxDelay, Attempts: config.Attempts, Grace: config.Grace, Logger: config.Logger,
	}, wrong...)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// ReceiverStats are a receiver's counts since [NewReceiver].
type ReceiverStats struct {
	Acked   int64 // messages that were acknowledged
	Delayed int64 // failures after which a message comes again
	Parked  int64 // messages that are recorded and do not come again
	Skipped int64 // messages that were skipped and acknowledged
}

// Stats returns the current counts.
func (r *Receiver) Stats() ReceiverStats { return ReceiverStats(r.engine.Stats()) }

// Run receives messages until ctx is done. Then it takes no more, waits up to
// [ReceiverConfig.Grace] for the messages in flight, cancels their context, closes its connection,
// which returns the others to the queue, and returns nil. If the broker is away, the queue is
// missing or the login is refused, it logs the failure and tries again.
//
// It returns an error only if the receiver runs already ([ErrRunning]).
func (r *Receiver) Run(ctx context.Context) error {
	return r.engine.Run(ctx, func(fetching, working context.Context, _ context.CancelFunc) error {
		n := &fetcher{Receiver: r, desk: receiving.NewDesk[*delivery](r.engine, r.prefetch)}
		_, err := n.desk.Serve(fetching, working, r.engine.Concurrency, n.fetch, func(context.Context) {})
		if n.conn != nil {
			closeConnection(n.conn) // after the last acknowledgement
		}
		return err
	})
}

// A fetcher is one call of Run.
type fetcher struct {
	*Receiver
	desk *receiving.Desk[*delivery]
	conn *amqp.Connection // the last one
}

// fetch puts messages on the desk until ctx is done.
func (n *fetcher) fetch(ctx context.Context) error {
	for failed := 1; ; failed++ {
		came, err := n.consume(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx is done: the receiver must stop
		}
		if came {
			failed = 1
		}
		n.engine.Unasked(ctx, failed, err)
	}
}

// consume puts messages on the desk until ctx is done or its connection ends. It reports whether a
// message came.
func (n *fetcher) consume(ctx context.Context) (came bool, err error) {
	conn, err := dialed(ctx, n.dial)
	if err != nil {
		return false, err
	}
	n.conn = conn
	defer func() {
		if ctx.Err() == nil { // else the messages in flight are acknowledged over it
			closeConnection(conn)
			n.desk.Drop(func(d *delivery) bool { return d.conn == conn })
		}
	}()
	const tag = "dibs"
	var channel *amqp.Channel
	var closes chan *amqp.Error
	var messages <-chan amqp.Delivery
	err = within(conn, func() (err error) {
		if channel, err = conn.Channel(); err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		closes = channel.NotifyClose(make(chan *amqp.Error, 1))
		if err := channel.Qos(n.prefetch, 0, false); err != nil {
			return fmt.Errorf("prefetch: %w", err)
		}
		if messages, err = channel.Consume(n.queue, tag, false, false, false, false, nil); err != nil {
			return fmt.Errorf("consume: %w", err)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for {
		select {
		case <-ctx.Done():
			_ = channel.Cancel(tag, true) // messages that the broker has already sent go back with the connection
			return came, nil
		case m, open := <-messages:
			if !open {
				if !channel.IsClosed() {
					return came, errCancelled
				}
				return came, endOf(closes)
			}
			came = true
			stream, _ := m.Headers[outbox.HeaderStream].(string)
			key, keyed := receiving.Lane(stream)
			n.desk.Put(&delivery{conn, n.queue, m}, key, keyed)
		}
	}
}

// A delivery is a message, for package receiving.
type delivery struct {
	conn    *amqp.Connection
	queue   string
	message amqp.Delivery
}

func (d *delivery) Place() string { return d.queue }
func (d *delivery) Times() int    { return 1 }
func (d *delivery) Extend()       {} // the client's heartbeats do

func (d *delivery) Message() amqp.Delivery {
	m := d.message
	m.Acknowledger = nil
	return m
}

func (d *delivery) Ack(context.Context) error { return d.message.Ack(false) }

func (d *delivery) Parked(ctx context.Context, _ error) error { return d.Ack(ctx) }

// Request returns m as a request for an inbox. Its ID is the header dibs-id, or the message id. Its
// source is the given text or, if that is empty, the routing key.
//
// If no inbox can take the message, because it has no ID, or its data are not JSON or too large,
// the error is a refusal, by handler.Refuse, and matches [messagestore.ErrInvalid]. The request
// then has what the message has, for [inbox.Inbox.Refuse].
func Request(m amqp.Delivery, source string) (inbox.Request, error) {
	id, _ := m.Headers[outbox.HeaderID].(string)
	return receiving.Request(cmp.Or(id, m.MessageId), "header "+outbox.HeaderID, cmp.Or(source, m.RoutingKey), m.Body)
}
