package kafkabroker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/dibs-go/dibs/brokers/internal/receiving"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// The limits of a receiver.
const (
	// window is how many records a receiver holds at most: in flight, ready, or to come again.
	window = 1024

	commitEvery  = 100 * time.Millisecond
	commitWithin = 5 * time.Second
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

	// Attempts is the number of failed calls of the function, in one receiver, after which a
	// message is parked: 1 to 1,000,000. Another receiver begins at 1, because Kafka does not count
	// deliveries.
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

// A Receiver passes the records of topics to a function. Its methods are safe for concurrent use,
// but only one Run at a time is allowed. There is nothing to close.
type Receiver struct {
	engine  *receiving.Receiver[*kgo.Record]
	options []kgo.Opt
}

// ErrRunning is returned by Run when the receiver is already running.
var ErrRunning = receiving.ErrRunning

// NewReceiver returns a receiver that passes each record of the topics to f, in one receiver of the
// group, and commits its offset after f has returned nil. A new group begins with the first record,
// unless the options say otherwise. Run makes its own client from the options.
//
// If f returns an error without a disposition, the message comes again after a pause. Meanwhile
// messages of its key wait, and others go on until the receiver holds 1,024 messages. With
// handler.RetryAfter it comes again after that time; with handler.Skip it is logged, counted and
// passed. With handler.Park or handler.Refuse, or after [ReceiverConfig.Attempts], it is parked:
// park records it, for example by [inbox.Inbox.Refuse], and then it is passed. If park returns any
// error, the message comes again. A panic of f or park counts as an error.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid].
// NewReceiver calls no server.
func NewReceiver(
	options []kgo.Opt, group string, topics []string, f func(ctx context.Context, m *kgo.Record) error,
	park func(ctx context.Context, m *kgo.Record, reason error) error, config *ReceiverConfig,
) (*Receiver, error) {
	if config == nil {
		config = &ReceiverConfig{}
	}
	engine, err := receiving.New(f, park, receiving.Config(*config), mistakes(group, topics)...)
	if err != nil {
		return nil, err
	}
	r := &Receiver{engine: engine, options: append([]kgo.Opt{kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}, options...)}
	r.options = append(r.options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
	return r, nil
}

func mistakes(group string, topics []string) (all []error) {
	add := func(field string, value any, rule string) {
		all = append(all, messagestore.NewInvalidError(field, value, rule))
	}
	if group == "" {
		add("group", group, "must not be empty")
	}
	if len(topics) == 0 {
		add("topics", nil, "must not be empty")
	}
	for _, topic := range topics {
		if rule := topicRule(topic); rule != "" {
			add("topic", topic, rule)
		}
	}
	return all
}

// ReceiverStats are a receiver's counts since [NewReceiver].
type ReceiverStats struct {
	Acked   int64 // messages that were handled; their offsets are committed when all before them are
	Delayed int64 // failures after which a message comes again
	Parked  int64 // messages that are recorded and passed over
	Skipped int64 // messages that were passed over
}

// Stats returns the current counts.
func (r *Receiver) Stats() ReceiverStats { return ReceiverStats(r.engine.Stats()) }

// Run receives messages until ctx is done. Then it takes no more, waits up to
// [ReceiverConfig.Grace] for the messages in flight, cancels their context, commits the offsets,
// leaves the group and returns nil. It waits while brokers are away.
//
// It returns an error only if the client's options are invalid, or the receiver runs already
// ([ErrRunning]).
func (r *Receiver) Run(ctx context.Context) error {
	return r.engine.Run(ctx, func(fetching, working context.Context, _ context.CancelFunc) error {
		n := &fetcher{Receiver: r, partitions: map[place]*partition{}, desk: receiving.NewDesk[*delivery](r.engine, window)}
		var err error
		n.client, err = kgo.NewClient(append(slices.Clone(r.options), kgo.OnPartitionsRevoked(n.revoked), kgo.OnPartitionsLost(n.lost))...)
		if err != nil {
			return err
		}
		_, err = n.desk.Serve(fetching, working, r.engine.Concurrency, n.fetch, n.commitAll)
		n.commit(context.WithoutCancel(ctx), n.client)
		n.client.CloseAllowingRebalance()
		return err
	})
}

// A fetcher is one call of Run.
type fetcher struct {
	*Receiver
	client *kgo.Client
	desk   *receiving.Desk[*delivery]

	mu          sync.Mutex
	partitions  map[place]*partition
	uncommitted bool // the last commit failed
}

type place struct {
	topic     string
	partition int32
}

// A partition is assigned to the receiver, which holds some of its records.
type partition struct {
	inHand []*delivery // in the order of their offsets
	next   kgo.EpochOffset
	dirty  bool // next has not been committed
	gone   bool
}

// fetch puts records on the desk until ctx is done.
func (n *fetcher) fetch(ctx context.Context) error {
	failed := 0
	for {
		room := n.desk.Room(ctx)
		if room == 0 {
			return nil
		}
		fetches := n.client.PollRecords(ctx, room)
		fetches.EachRecord(n.put)
		n.client.AllowRebalance()
		err := fetches.Err()
		if err == nil || ctx.Err() != nil {
			failed = 0
			continue
		}
		n.anew(fetches)
		failed++
		n.engine.Unasked(ctx, failed, err)
	}
}

// anew subscribes again to topics that were deleted and made again, because the client consumes
// only the old ones. The function still gets the records of the old topics that the receiver holds,
// but their offsets are not committed.
func (n *fetcher) anew(fetches kgo.Fetches) {
	var topics []string
	fetches.EachError(func(topic string, _ int32, err error) {
		if errors.Is(err, kerr.UnknownTopicID) && !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	})
	if len(topics) == 0 {
		return
	}
	n.mu.Lock()
	maps.DeleteFunc(n.partitions, func(at place, _ *partition) bool { return slices.Contains(topics, at.topic) })
	n.mu.Unlock()
	n.client.PurgeTopicsFromConsuming(topics...)
	n.client.AddConsumeTopics(topics...)
}

func (n *fetcher) put(record *kgo.Record) {
	d := &delivery{n: n, record: record}
	at := place{record.Topic, record.Partition}
	n.mu.Lock()
	d.of = n.partitions[at]
	if d.of == nil {
		d.of = &partition{}
		n.partitions[at] = d.of
	}
	d.of.inHand = append(d.of.inHand, d)
	n.mu.Unlock()
	n.desk.Put(d, record.Topic+"\x00"+string(record.Key), record.Key != nil)
}

// done marks a record as done, and advances the offset to commit.
func (n *fetcher) done(d *delivery) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d.ended = true
	p := d.of
	for len(p.inHand) > 0 && p.inHand[0].ended {
		record := p.inHand[0].record
		p.next = kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset + 1}
		p.dirty = true
		p.inHand = p.inHand[1:]
	}
}

// commitAll commits offsets at intervals until ctx is done.
func (n *fetcher) commitAll(ctx context.Context) {
	for outage.Wait(ctx, commitEvery) == nil {
		n.commit(ctx, n.client)
	}
}

// commit commits the offsets below which all records are done. After a failure the next call tries
// again.
func (n *fetcher) commit(ctx context.Context, client *kgo.Client) {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	n.mu.Lock()
	for at, p := range n.partitions {
		if !p.dirty || p.gone {
			continue
		}
		p.dirty = false
		if offsets[at.topic] == nil {
			offsets[at.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[at.topic][at.partition] = p.next
	}
	n.mu.Unlock()
	if len(offsets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		refused := map[place]bool{}
		if answer != nil {
			for _, t := range answer.Topics {
				for _, p := range t.Partitions {
					refused[place{t.Topic, p.Partition}] = p.ErrorCode != 0
				}
			}
		}
		for topic, all := range offsets {
			for id := range all {
				at := place{topic, id}
				if p := n.partitions[at]; p != nil && (err != nil || refused[at]) {
					p.dirty = true
				}
			}
		}
		if err != nil && !n.uncommitted { // once in an outage
			n.engine.Logger.Warn().Str("error", text.Log(err)).Msg("offsets were not committed: messages may come again")
		}
		n.uncommitted = err != nil
	})
}

// revoked commits the offsets of partitions that go to another receiver, which gets the records
// that are not done.
func (n *fetcher) revoked(ctx context.Context, client *kgo.Client, parts map[string][]int32) {
	n.commit(ctx, client)
	n.lost(ctx, client, parts)
}

func (n *fetcher) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	n.mu.Lock()
	for topic, ids := range parts {
		for _, id := range ids {
			at := place{topic, id}
			if p := n.partitions[at]; p != nil {
				p.gone = true
				delete(n.partitions, at)
			}
		}
	}
	n.mu.Unlock()
	n.desk.Drop(func(d *delivery) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return d.of.gone
	})
}

// A delivery is a record, for package receiving.
type delivery struct {
	n      *fetcher
	record *kgo.Record
	of     *partition
	ended  bool
}

func (d *delivery) Message() *kgo.Record { return d.record }
func (d *delivery) Place() string        { return d.record.Topic }
func (d *delivery) Times() int           { return 1 }
func (d *delivery) Extend()              {} // the client's heartbeats do

func (d *delivery) Ack(context.Context) error {
	d.n.done(d)
	return nil
}

func (d *delivery) Parked(ctx context.Context, _ error) error { return d.Ack(ctx) }

// Request returns m as a request for an inbox. Its ID is the header dibs-id, and its data are the
// record's value. Its source is the given text or, if that is empty, the topic.
//
// If no inbox can take the message, because it has no ID, or its data are not JSON or too large,
// the error is a refusal, by handler.Refuse, and matches [messagestore.ErrInvalid]. The request
// then has what the message has, for [inbox.Inbox.Refuse].
func Request(m *kgo.Record, source string) (inbox.Request, error) {
	if source == "" {
		source = m.Topic
	}
	id := ""
	for _, h := range m.Headers {
		if h.Key == outbox.HeaderID {
			id = string(h.Value)
		}
	}
	return receiving.Request(id, "header "+outbox.HeaderID, source, m.Value)
}
