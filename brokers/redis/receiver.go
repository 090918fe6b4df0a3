package redisbroker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/brokers/internal/receiving"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// The name and the limits of a receiver.
const (
	// consumerName is the consumer name of all receivers of a group: XAUTOCLAIM and XACK do not
	// depend on which consumer has an entry.
	consumerName = "dibs"

	// window is how many entries a receiver holds at most: in flight, ready, or to come again.
	window = 1024

	// readWait is how long a read waits in the server, even if the receiver must stop: an entry
	// that the server delivers meanwhile must arrive.
	readWait = 500 * time.Millisecond
)

// ReceiverConfig configures a receiver. nil means the defaults.
type ReceiverConfig struct {
	// Concurrency is how many messages, of different keys, the function handles at a time: 1 to
	// 1024.
	//
	// Defaults to 1.
	Concurrency int

	// MaxDelay bounds the pause before a message comes again: 100 ms to 24 h. The pause begins with
	// 100 ms and grows with each failure. It does not bound handler.RetryAfter.
	//
	// Defaults to 1 min.
	MaxDelay time.Duration

	// Attempts is the number of deliveries after which a failing message is parked: 1 to 1,000,000.
	// Deliveries to receivers that have ended count too.
	//
	// Defaults to 0: no bound.
	Attempts int

	// Lease is how long an entry stays with a receiver that does not extend it: 1 s to 1 h.
	// Receivers extend all their entries three times in that time. All receivers of a group must
	// have the same Lease.
	//
	// Defaults to 30 s.
	Lease time.Duration

	// Grace is how long messages in flight may take after ctx of Run is done: 1 ms to 1 h.
	//
	// Defaults to 10 s.
	Grace time.Duration

	// Logger receives an error for each message that is parked, and a warning for each failure.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Receiver passes the entries of a stream to a function. Its methods are safe for concurrent use,
// but only one Run at a time is allowed. There is nothing to close.
type Receiver struct {
	engine        *receiving.Receiver[redis.XMessage]
	client        redis.UniversalClient
	stream, group string
	lease         time.Duration
}

// ErrRunning is returned by Run when the receiver is already running.
var ErrRunning = receiving.ErrRunning

// NewReceiver returns a receiver that passes each entry of a stream to f, in one receiver of the
// group, and acknowledges it after f has returned nil. If the acknowledgement is lost, the message
// may come again. The conditions for the client are those of [NewSink].
//
// If f returns an error without a disposition, the message comes again after a pause. Meanwhile
// messages of its key wait, and others go on until the receiver holds 1,024 messages. With
// handler.RetryAfter it comes again after that time; with handler.Skip it is logged, counted and
// acknowledged. With handler.Park or handler.Refuse, or after [ReceiverConfig.Attempts], it is
// parked: park records it, for example by [inbox.Inbox.Refuse], and then it is acknowledged. If
// park returns any error, the message comes again. A panic of f or park counts as an error.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid].
// NewReceiver calls no server.
func NewReceiver(
	client redis.UniversalClient, stream, group string, f func(ctx context.Context, m redis.XMessage) error,
	park func(ctx context.Context, m redis.XMessage, reason error) error, config *ReceiverConfig,
) (*Receiver, error) {
	if config == nil {
		config = &ReceiverConfig{}
	}
	r := &Receiver{client: client, stream: stream, group: group, lease: cmp.Or(config.Lease, 30*time.Second)}
	var err error
	r.engine, err = receiving.New(f, park, receiving.Config{
		Concurrency: config.Concurrency, MaxDelay: config.MaxDelay, Attempts: config.Attempts, Grace: config.Grace, Logger: config.Logger,
	}, r.mistakes()...)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Receiver) mistakes() (all []error) {
	add := func(field string, value any, rule string) {
		all = append(all, messagestore.NewInvalidError(field, value, rule))
	}
	if rule := clientRule(r.client); rule != "" {
		add("client", fmt.Sprintf("%T", r.client), rule)
	}
	if n := len(r.stream); n == 0 || n > MaxStreamBytes {
		add("stream", r.stream, fmt.Sprintf("must be 1 to %d bytes", MaxStreamBytes))
	}
	if n := len(r.group); n == 0 || n > MaxStreamBytes {
		add("group", r.group, fmt.Sprintf("must be 1 to %d bytes", MaxStreamBytes))
	}
	if d := r.lease; d < time.Second || d > time.Hour {
		add("Lease", d, "must be between 1s and 1h0m0s")
	}
	return all
}

// ReceiverStats are a receiver's counts since [NewReceiver].
type ReceiverStats struct {
	Acked   int64 // messages acknowledged, and confirmed by the server
	Delayed int64 // failures after which a message comes again
	Parked  int64 // messages that are recorded and do not come again
	Skipped int64 // messages skipped, acknowledged, and confirmed by the server
}

// Stats returns the current counts.
func (r *Receiver) Stats() ReceiverStats { return ReceiverStats(r.engine.Stats()) }

// Run receives messages until ctx is done. Then it takes no more, waits up to
// [ReceiverConfig.Grace] for the messages in flight, cancels their context, gives the others back
// and returns nil. It makes the stream and the group if they are missing; the group begins with the
// stream's first entry. It waits while the server is away.
//
// It returns an error only if the client was closed, the key is not a stream, or the receiver runs
// already ([ErrRunning]).
func (r *Receiver) Run(ctx context.Context) error {
	return r.engine.Run(ctx, func(fetching, working context.Context, stop context.CancelFunc) error {
		n := &fetcher{Receiver: r, desk: receiving.NewDesk[*delivery](r.engine, window)}
		left, err := n.desk.Serve(fetching, working, r.engine.Concurrency, func(ctx context.Context) error {
			defer stop()
			return n.fetch(ctx)
		}, n.extend)
		n.giveBack(left)
		if err != nil {
			return fmt.Errorf("stream %s: %w", text.Shorten(r.stream), err)
		}
		return nil
	})
}

// A fetcher is one call of Run.
type fetcher struct {
	*Receiver
	desk *receiving.Desk[*delivery]

	next string // where the next XAUTOCLAIM begins
}

// fetch puts entries on the desk until ctx is done.
func (n *fetcher) fetch(ctx context.Context) error {
	failed, ready := 0, false
	var claimed time.Time
	for {
		room := n.desk.Room(ctx)
		if room == 0 {
			return nil
		}
		var err error
		if !ready {
			err = n.makeGroup(ctx)
			ready = err == nil
		}
		if err == nil && time.Since(claimed) >= min(n.lease/4, time.Second) {
			if err = n.claim(ctx, room); err == nil {
				claimed = time.Now()
				room = n.desk.Room(ctx)
			}
		}
		if err == nil && room > 0 {
			err = n.read(ctx, room)
		}
		switch {
		case err == nil, ctx.Err() != nil: // Room ends the loop
			failed = 0
		case errors.Is(err, redis.ErrClosed), redis.HasErrorPrefix(err, "WRONGTYPE"):
			return err
		default:
			ready = false // perhaps the stream was deleted, or the server has lost the group
			failed++
			n.engine.Unasked(ctx, failed, err)
		}
	}
}

func (n *fetcher) makeGroup(ctx context.Context) error {
	err := n.client.XGroupCreateMkStream(ctx, n.stream, n.group, "0").Err()
	if redis.HasErrorPrefix(err, "BUSYGROUP") {
		return nil
	}
	return err
}

// read takes entries that no receiver of the group has had yet.
func (n *fetcher) read(ctx context.Context, room int) error {
	streams, err := n.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: n.group, Consumer: consumerName, Streams: []string{n.stream, ">"}, Count: int64(room), Block: readWait,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range streams {
		for _, m := range s.Messages {
			n.put(m, 1)
		}
	}
	return nil
}

// claim takes entries with a lease that is over, unless this receiver has them itself.
func (n *fetcher) claim(ctx context.Context, room int) error {
	from := cmp.Or(n.next, "0-0")
	messages, next, err := n.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: n.stream, Group: n.group, Consumer: consumerName, MinIdle: n.lease, Start: from, Count: int64(min(room, 100)),
	}).Result()
	if err != nil {
		return err
	}
	n.next = next
	if len(messages) == 0 {
		return nil
	}
	mine := map[string]bool{}
	for _, d := range n.desk.InHand() {
		mine[d.message.ID] = true
	}
	times := map[string]int{}
	pending, err := n.client.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: n.stream, Group: n.group, Start: messages[0].ID, End: messages[len(messages)-1].ID, Count: 10_000,
	}).Result()
	if err != nil { // they are claimed, and go on without their number of deliveries
		n.engine.Logger.Warn().Str("error", text.Log(err)).Msg("the server was not asked how often messages were delivered")
	}
	for _, p := range pending {
		times[p.ID] = int(min(p.RetryCount, 1<<30))
	}
	for _, m := range messages {
		if !mine[m.ID] {
			n.put(m, max(times[m.ID], 2))
		}
	}
	return nil
}

func (n *fetcher) put(m redis.XMessage, times int) {
	stream, _ := m.Values[outbox.HeaderStream].(string)
	key, keyed := receiving.Lane(stream)
	n.desk.Put(&delivery{n.Receiver, m, times}, key, keyed)
}

// extend extends the entries that the receiver has, until ctx is done.
func (n *fetcher) extend(ctx context.Context) {
	tick := time.NewTicker(n.lease / 3)
	defer tick.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var ids []string
		for _, d := range n.desk.InHand() {
			ids = append(ids, d.message.ID)
		}
		if len(ids) == 0 {
			continue
		}
		// Without a minimum idle time this claims each entry, and sets its idle time to 0. It does
		// not affect an entry that was acknowledged meanwhile.
		call, cancel := context.WithTimeout(ctx, n.lease/3)
		err := n.client.XClaimJustID(call, &redis.XClaimArgs{Stream: n.stream, Group: n.group, Consumer: consumerName, Messages: ids}).Err()
		cancel()
		if err == nil {
			failed = 0
			continue
		}
		if failed++; failed == 1 && ctx.Err() == nil { // once in an outage
			n.engine.Logger.Warn().Int("messages", len(ids)).Str("error", text.Log(err)).Msg("messages were not extended: others may get them")
		}
	}
}

// giveBack lets another receiver take the unhandled entries at once, by setting their idle time to
// a whole lease.
func (n *fetcher) giveBack(left []*delivery) {
	if len(left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	args := []any{"XCLAIM", n.stream, n.group, consumerName, 0}
	for _, d := range left {
		args = append(args, d.message.ID)
	}
	args = append(args, "IDLE", n.lease.Milliseconds(), "JUSTID")
	if err := n.client.Do(ctx, args...).Err(); err != nil {
		n.engine.Logger.Warn().Int("messages", len(left)).Str("error", text.Log(err)).Msg("messages were not given back: others get them after the lease")
	}
}

// A delivery is an entry, for package receiving.
type delivery struct {
	r       *Receiver
	message redis.XMessage
	times   int
}

func (d *delivery) Message() redis.XMessage { return d.message }
func (d *delivery) Place() string           { return d.r.stream }
func (d *delivery) Times() int              { return d.times }
func (d *delivery) Extend()                 {} // the run extends all together

func (d *delivery) Ack(ctx context.Context) error {
	for failed := 1; ; failed++ {
		err := d.r.client.XAck(ctx, d.r.stream, d.r.group, d.message.ID).Err()
		if err == nil || ctx.Err() != nil || errors.Is(err, redis.ErrClosed) {
			return err
		}
		_ = outage.Wait(ctx, outage.Pause(failed, 100*time.Millisecond, time.Second))
	}
}

func (d *delivery) Parked(ctx context.Context, _ error) error { return d.Ack(ctx) }

// Request returns m as a request for an inbox. Its ID is the field dibs-id, and its data are the
// field [FieldData].
//
// If no inbox can take the message, because it has no ID, or its data are not JSON or too large,
// the error is a refusal, by handler.Refuse, and matches [messagestore.ErrInvalid]. The request
// then has what the message has, for [inbox.Inbox.Refuse]. An entry without the field of data is
// refused too; its data are then the JSON of all its fields.
func Request(m redis.XMessage, source string) (inbox.Request, error) {
	id, _ := m.Values[outbox.HeaderID].(string)
	data, has := m.Values[FieldData].(string)
	request, err := receiving.Request(id, "field "+outbox.HeaderID, source, []byte(data))
	if !has && err == nil {
		err = handler.Refuse(messagestore.NewInvalidError("field "+FieldData, nil, "must be there"))
	}
	if !has {
		request.Data, _ = json.Marshal(m.Values) // texts alone
	}
	return request, err
}
