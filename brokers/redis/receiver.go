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

const (
	// consumerName is that of all receivers of a group: XAUTOCLAIM and XACK do not ask which
	// consumer has an entry.
	consumerName = "dibs"

	// window bounds the entries that a receiver has in hand: in work, ready, or to come again.
	window = 1024

	// readWait is how long a read waits at the server, also after the receiver was told to stop: an
	// entry that the server gives out meanwhile must arrive.
	readWait = 500 * time.Millisecond
)

// ReceiverConfig changes how a receiver works. Nil means all defaults.
type ReceiverConfig struct {
	// Concurrency is how many messages are passed to the function at a time, each of another key: 1
	// to 1024.
	//
	// Defaults to 1.
	Concurrency int

	// MaxDelay bounds the pause before a message comes again, but not one of handler.RetryAfter.
	// The pause begins with 100 ms, and grows with each failure: 100 ms to 24 h.
	//
	// Defaults to 1 min.
	MaxDelay time.Duration

	// Attempts is the number of deliveries after which a message whose function fails is parked: 1
	// to 1,000,000. Deliveries to receivers that have ended count.
	//
	// Defaults to no bound.
	Attempts int

	// Lease is how long an entry stays with a receiver that does not extend it. Receivers extend
	// all entries that they have, three times in that time: 1 s to 1 h. Those of a group have the
	// same.
	//
	// Defaults to 30 s.
	Lease time.Duration

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

// A Receiver passes the entries of a stream to a function. Its methods are safe for concurrent use,
// but it runs once at a time. There is nothing to close.
type Receiver struct {
	engine        *receiving.Receiver[redis.XMessage]
	client        redis.UniversalClient
	stream, group string
	lease         time.Duration
}

// ErrRunning is returned by a Run while another goes on.
var ErrRunning = receiving.ErrRunning

// NewReceiver returns a receiver that passes each entry of a stream to f, once to one receiver of
// the group, and acknowledges it after f has returned nil. If the acknowledgement is lost, the
// message may come again. The client is as that of [NewSink].
//
// After an error of f the message comes again, after a pause, unless the error carries a
// disposition: meanwhile messages of its key wait, and others go on, until the receiver has 1,024
// in hand. With handler.RetryAfter it comes again after that time, and with handler.Skip it is
// logged, counted and acknowledged. With handler.Park and handler.Refuse, and after
// [ReceiverConfig.Attempts], it is parked: park records it, such as by [inbox.Inbox.Refuse], and
// then it is acknowledged. After an error of park, whatever its disposition, it comes again. A
// panic of f or park is an error.
//
// The error has all mistakes in the arguments together: errors that match
// [messagestore.ErrInvalid]. NewReceiver calls no server.
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
		add("stream", r.stream, fmt.Sprintf("it has 1 to %d bytes", MaxStreamBytes))
	}
	if n := len(r.group); n == 0 || n > MaxStreamBytes {
		add("group", r.group, fmt.Sprintf("it has 1 to %d bytes", MaxStreamBytes))
	}
	if d := r.lease; d < time.Second || d > time.Hour {
		add("Lease", d, "it is between 1s and 1h0m0s")
	}
	return all
}

// ReceiverStats are a receiver's counts since [NewReceiver].
type ReceiverStats struct {
	Acked   int64 // messages whose acknowledgement the server confirmed
	Delayed int64 // failures after which a message comes again
	Parked  int64 // messages that are recorded and do not come again
	Skipped int64 // messages that were passed over, and whose acknowledgement the server confirmed
}

// Stats returns the counts of this moment.
func (r *Receiver) Stats() ReceiverStats { return ReceiverStats(r.engine.Stats()) }

// Run receives messages until ctx is done. Then it takes no more, waits up to
// [ReceiverConfig.Grace] for those in work, cancels their context, gives the others back and
// returns nil. It makes the stream and the group if they are missing, and the group begins with the
// stream's first entry. It waits for a server that is away.
//
// It returns an error only if the client was closed, the key is no stream, or the receiver runs
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
			ready = false // the stream was deleted, or the server has lost the group, perhaps
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

// read takes entries that no receiver of the group has had.
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

// claim takes entries whose lease is over, and that this receiver does not have itself.
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
	if err != nil { // they are claimed, and go on without the number of their deliveries
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

// extend keeps the entries that the receiver has until ctx is done.
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
		// Without an idle time to look at it takes each, and makes its idle time 0. An entry that
		// was acknowledged meanwhile stays so.
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

// giveBack has the entries that were not handled go to another receiver at once: it makes them idle
// for as long as a lease.
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

// A delivery is an entry as the engine of all receivers has it.
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

// Request returns m as a request for an inbox. Its ID is the field dibs-id, its data are the field
// [FieldData].
//
// A message that no inbox takes is refused, by handler.Refuse, with an error that matches
// [messagestore.ErrInvalid]: it has no ID, or its data are no JSON, or too large. The request is then what there is
// of it, for [inbox.Inbox.Refuse]. An entry without the field of data is refused too; its data are
// then the JSON of all its fields.
func Request(m redis.XMessage, source string) (inbox.Request, error) {
	id, _ := m.Values[outbox.HeaderID].(string)
	data, has := m.Values[FieldData].(string)
	request, err := receiving.Request(id, "field "+outbox.HeaderID, source, []byte(data))
	if !has && err == nil {
		err = handler.Refuse(messagestore.NewInvalidError("field "+FieldData, nil, "there is none"))
	}
	if !has {
		request.Data, _ = json.Marshal(m.Values) // texts alone
	}
	return request, err
}
