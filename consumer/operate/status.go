package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// MaxLag is the highest lag that is counted.
const MaxLag = 100_000

// A Status says where a consumer is.
type Status struct {
	Category messagestore.Category
	Name     string

	// Foreign marks a consumer of another client of message-db, such as Eventide: a stream of the
	// position category with messages of type Recorded. Its Name is the identifier of that stream,
	// or "". It has no generation, no replicas, and nothing parked.
	Foreign bool

	// Generation is the position in the ledger of the entry with the start. [Target.Reset] adds
	// one; [Target.Pause] and [Target.Resume] do not.
	Generation messagestore.Version
	StartedAt  time.Time // when the generation began
	PausedAt   time.Time // when an operator paused the consumer, zero if it is not paused

	// Position is the checkpoint: the next message to read. With several replicas it is the lowest
	// of their positions.
	Position messagestore.GlobalPosition

	// RecordedAt is when the checkpoint was written. It is zero if the generation has no checkpoint
	// yet; then Position is its start.
	RecordedAt time.Time

	// Lag is the number of messages of the category from Position on. If there are more than
	// [MaxLag], AtLeast is set. If a consumer reads only some types, its real lag may be lower,
	// because its types are not stored.
	Lag     int64
	AtLeast bool

	// Oldest is when the first of these messages was written, by the store's clock; zero without
	// any.
	Oldest time.Time

	// PositionErr matches consumer.ErrPositionAhead or consumer.ErrPositionCorrupt, or is nil. If
	// it is set, there are no Lag and no Replicas.
	PositionErr error

	// Replicas are the processes that have joined the consumer, in their order.
	Replicas []Replica
	Free     int // of [Slots]: how many are held by no replica

	Parked int // messages in the queue of parked messages, including those to be redriven

	// Failing are the failing messages: their handler has failed, and they are not handled, skipped
	// or parked yet. It has the first 10 that began to fail, in that order; MoreFailing is the
	// number of the others. If a consumer has stopped at a message, Failing has that message, too.
	// A consumer stores both at most once a second, so a message may be listed for about a second
	// after it was handled, skipped or parked, and a message that began to fail less than a second
	// ago may be missing. After a reset the list is empty.
	Failing     []Failure
	MoreFailing int

	// Err says why the rest is missing: the ledger is corrupt.
	Err error
}

// A Failure is a failing message.
type Failure struct {
	ID             uuid.UUID
	Type           string
	Stream         messagestore.StreamName
	Position       messagestore.Version
	GlobalPosition messagestore.GlobalPosition
	Attempts       int       // how often it was delivered and failed, by all processes since FirstFailedAt
	Error          string    // the last failure, shortened to about 1 KiB, without control characters
	FirstFailedAt  time.Time // by the clock of the consumer that first delivered it
}

// Slots is the number of slots that the replicas of a consumer hold together.
const Slots = checkpoint.Slots

// A Replica is a process that has joined a consumer.
type Replica struct {
	ID      uuid.UUID
	Process string // host and process id
	Slots   int    // of [Slots]; a replica without slots stands by

	// Position is the lowest position of its slots. Lag is the number of messages left in them, up
	// to [MaxLag]; AtLeast is set if there are more.
	Position messagestore.GlobalPosition
	Lag      int64
	AtLeast  bool

	// Silent is how long ago it last wrote, by the store's clock. Gone says that this is longer
	// than its lease: the others take its slots. Resting says that it is alone, and need not write.
	Silent  time.Duration
	Gone    bool
	Resting bool
}

// Consumers returns the status of each consumer of category that has ever started, by name, and
// then of the consumers of other clients. It counts the messages before them and does not read
// them. You may call it while the consumers run: each number is from the moment at which it was
// read. If the store's driver cannot count, it reads the whole category of positions.
func Consumers(ctx context.Context, store *messagestore.Store, category messagestore.Category) ([]Status, error) {
	if err := category.Validate(); err != nil {
		return nil, fmt.Errorf("consumers: %w", err)
	}
	all, err := consumers(ctx, store, category)
	if err != nil {
		return nil, fmt.Errorf("consumers of %s: %w", category, err)
	}
	return all, nil
}

func consumers(ctx context.Context, store *messagestore.Store, category messagestore.Category) ([]Status, error) {
	positions := checkpoint.Positions(category)
	if positions.Validate() != nil {
		return nil, nil //nolint:nilerr // the name is too long for any
	}
	streams, err := tailsOf(ctx, store, positions)
	if err != nil {
		return nil, err
	}
	parked, err := parkedOf(ctx, store, category)
	if err != nil {
		return nil, err
	}
	var ours, foreign []Status
	for stream, types := range streams {
		ids := stream.IDs()
		if len(ids) == 1 && types.has(checkpoint.Started{}) {
			s, err := Consumer(store, category, ids[0]).status(ctx)
			if err != nil {
				return nil, err
			}
			s.Parked = parked[checkpoint.Consumer{Category: category, Name: ids[0]}.Parked().Name]
			ours = append(ours, s)
			continue
		}
		ofOurs := len(ids) == 2 && streams[positions.Stream(ids[0])].has(checkpoint.Started{})
		if ofOurs || !types.has(checkpoint.Checkpoint{}) {
			continue
		}
		s, err := foreignStatus(ctx, store, category, stream, types[checkpoint.Checkpoint{}.MessageType()])
		if err != nil {
			return nil, err
		}
		foreign = append(foreign, s)
	}
	byName := func(a, b Status) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(ours, byName)
	slices.SortFunc(foreign, byName)
	return append(ours, foreign...), nil
}

// parkedOf counts the parked messages of a category in their queues.
func parkedOf(ctx context.Context, store *messagestore.Store, category messagestore.Category) (map[string]int, error) {
	all, err := queue.All(ctx, store)
	if errors.Is(err, messagestore.ErrNotSupported) {
		return nil, nil
	}
	parked := map[string]int{}
	for _, q := range all {
		if q.Parked && q.Category == category {
			parked[q.Name] = int(q.Dead + q.Held + q.Later + q.Out)
		}
	}
	return parked, err
}

func (t *Target) status(ctx context.Context) (Status, error) {
	s := Status{Category: t.log.Category, Name: t.log.Name, Generation: messagestore.NoStream}
	if err := t.log.Validate(); err != nil { // the stream was not written by Dibs
		s.Err = err
		return s, nil //nolint:nilerr // it is in the status
	}
	current, err := t.log.Generation(ctx)
	if errors.Is(err, checkpoint.ErrCorrupt) {
		s.Err = err
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.Generation, s.StartedAt = current.Version, current.At
	if current.Paused {
		s.PausedAt = current.Since
	}
	p, err := t.placed(ctx, current)
	if err != nil {
		return s, err
	}
	s.Position, s.PositionErr = p.at.Position, p.err
	if p.last != nil {
		s.RecordedAt = p.last.Time
	}
	if s.PositionErr != nil {
		return s, nil //nolint:nilerr // it is in the status
	}
	if err := t.measure(ctx, &s, t.log.Checkpoints(current.Version), p.at.After); err != nil || p.last == nil {
		return s, err
	}
	s.addFailing(p.last)
	if s.PositionErr != nil || len(p.group.Members) == 0 {
		return s, nil //nolint:nilerr // it is in the status
	}
	return s, t.replicas(ctx, &s, &p.group, p.last.Time)
}

// replicas fills in the replicas of s, from a state of the group that was written at the given
// time.
func (t *Target) replicas(ctx context.Context, s *Status, group *checkpoint.Group, written time.Time) error {
	now, err := t.store.Now(ctx)
	if err != nil {
		return err
	}
	s.Free = group.Held(uuid.Nil).Len()
	for _, m := range group.Members {
		end, ends := m.Ends(written)
		r := Replica{
			ID: m.ID, Process: m.Process, Slots: group.Held(m.ID).Len(), Silent: max(0, now.Sub(end.Add(-m.Patience()))),
			Resting: m.Resting, Gone: ends && !now.Before(end),
		}
		for i, part := range group.Of(m.ID) {
			if i == 0 || part.Position < r.Position {
				r.Position = part.Position
			}
			n, err := t.left(ctx, part)
			if err != nil {
				return err
			}
			r.Lag += n
		}
		if r.AtLeast = r.Lag > MaxLag; r.AtLeast {
			r.Lag = MaxLag
		}
		s.Replicas = append(s.Replicas, r)
	}
	return nil
}

// left counts the messages in slots from their position on.
func (t *Target) left(ctx context.Context, part checkpoint.Part) (total int64, err error) {
	for size, members := range part.Slots.Classes() {
		for _, member := range members {
			n, err := count(ctx, t.store, messagestore.CategoryQuery{
				Category: t.log.Category, From: part.Position, Limit: MaxLag + 1, Filter: messagestore.Filter{GroupSize: size, GroupMember: member},
			})
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	return total, nil
}

// addFailing adds the failing messages of a checkpoint.
func (s *Status) addFailing(last *messagestore.Message) {
	failing, more := checkpoint.DecodeFailing(last)
	for _, f := range failing {
		s.Failing = append(s.Failing, Failure{
			ID: f.MessageID, Type: f.Type, Stream: f.Stream, Position: f.Position, GlobalPosition: f.GlobalPosition,
			Attempts: f.Attempts, Error: f.Error, FirstFailedAt: f.FirstFailedAt,
		})
	}
	s.MoreFailing = more
}

// A placed says where a consumer is according to its last checkpoint. If the generation has no
// checkpoint, last is nil, and the consumer is at the generation's start.
type placed struct {
	last  *messagestore.Message
	at    checkpoint.Checkpoint
	group checkpoint.Group
	err   error // that matches consumer.ErrPositionCorrupt: at is where the generation starts
}

func (t *Target) placed(ctx context.Context, of checkpoint.Generation) (p placed, err error) {
	p.at = of.Begin()
	p.group = checkpoint.Group{Parts: []checkpoint.Part{{Slots: checkpoint.AllSlots, Checkpoint: p.at}}}
	last, err := t.store.Last(ctx, t.log.Checkpoints(of.Version))
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
		return p, nil
	case err != nil:
		return p, err
	}
	p.last = last
	group, err := checkpoint.DecodeGroup(last)
	if err == nil {
		err = t.log.CheckAfter(ctx, last, group.Lowest(), p.at)
	}
	if err != nil && !errors.Is(err, checkpoint.ErrCorrupt) {
		return p, err
	}
	if err != nil {
		p.err = err
		return p, nil //nolint:nilerr // it is in the place
	}
	p.group, p.at = group, group.Lowest()
	return p, nil
}

// measure fills in the lag of s.
func (t *Target) measure(ctx context.Context, s *Status, stream messagestore.StreamName, after uuid.UUID) error {
	_, err := t.log.Recall(ctx, stream, checkpoint.Checkpoint{Position: s.Position, After: after})
	if errors.Is(err, checkpoint.ErrAhead) {
		s.PositionErr = err
		return nil
	}
	if err != nil {
		return err
	}
	q := messagestore.CategoryQuery{Category: t.log.Category, From: s.Position}
	oldest, err := firstMessage(ctx, t.store, q)
	if err != nil || oldest == nil {
		return err
	}
	s.Oldest = oldest.Time
	q.Limit = MaxLag + 1
	if s.Lag, err = count(ctx, t.store, q); err != nil {
		return err
	}
	if s.AtLeast = s.Lag > MaxLag; s.AtLeast {
		s.Lag = MaxLag
	}
	return nil
}

// foreignStatus returns the status of a consumer of another client. By Eventide's rule it stores
// the position of the last message that it handled.
func foreignStatus(ctx context.Context, store *messagestore.Store, category messagestore.Category, stream messagestore.StreamName, last tail) (Status, error) {
	s := Status{Category: category, Name: stream.ID(), Foreign: true, Generation: messagestore.NoStream, StartedAt: last.At, RecordedAt: last.At}
	// Dibs may be unable to read the stream's name, so the stream is read through its category.
	page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: stream.Category(), From: last.Global, Limit: 1})
	if err != nil {
		return s, err
	}
	if len(page.Messages) == 1 && page.Messages[0].Stream == stream {
		var handled checkpoint.Checkpoint
		if handled, s.PositionErr = checkpoint.Decode(page.Messages[0]); s.PositionErr == nil {
			s.Position = handled.Position.Next()
			return s, Consumer(store, category, "").measure(ctx, &s, stream, uuid.Nil)
		}
	}
	return s, nil
}
