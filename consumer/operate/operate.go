// Package operate shows where consumers are, and moves them. It needs no handlers.
//
//	all, err := operate.Consumers(ctx, store, "account:command")
//
//	move, err := operate.Consumer(store, "account:command", "accounts").Reset(ctx, position)
//
// [messagestore.Store.End] and [messagestore.Store.PositionAt] find positions to reset to,
// and [Target.Parked] is the queue of parked messages.
package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// A Target is the consumer that an operator works on. Its methods are safe for concurrent
// use.
type Target struct {
	store *messagestore.Store
	log   checkpoint.Log
}

// Consumer returns the consumer of category with a name. It reads nothing; the methods report a
// wrong category or name.
func Consumer(store *messagestore.Store, category messagestore.Category, name string) *Target {
	return &Target{store, checkpoint.Log{Store: store, Consumer: checkpoint.Consumer{Category: category, Name: name}}}
}

// CheckConsumer returns nil if the category and the name are valid. Otherwise it returns the error
// with which every method refuses them, which matches [messagestore.ErrInvalid]. It does not call a
// store.
func CheckConsumer(category messagestore.Category, name string) error {
	return checkpoint.Consumer{Category: category, Name: name}.Validate()
}

// An UnknownConsumerError says that no consumer with the name has ever started.
type UnknownConsumerError struct {
	Category messagestore.Category
	Name     string
	Known    []string // the consumers of the category, in order
}

// Error names the known consumers.
func (e *UnknownConsumerError) Error() string {
	quoted := make([]string, len(e.Known))
	for i, name := range e.Known {
		quoted[i] = text.Shorten(name)
	}
	known := "there are " + strings.Join(quoted, ", ")
	switch len(e.Known) {
	case 0:
		known = "there is none"
	case 1:
		known = "there is " + quoted[0]
	}
	return fmt.Sprintf("unknown consumer %s of %s: %s", checkpoint.Shown(e.Name), checkpoint.Shown(string(e.Category)), known)
}

// A BeyondEndError says that a position is beyond the end of the category. It matches
// consumer.ErrPositionAhead.
type BeyondEndError struct {
	Category messagestore.Category
	Position messagestore.GlobalPosition
	End      messagestore.GlobalPosition // the highest possible position: after the last message
}

// Error names the positions.
func (e *BeyondEndError) Error() string {
	return fmt.Sprintf("position %d is ahead of the store: category %s ends before %d", e.Position, e.Category, e.End)
}

// Is reports whether target is consumer.ErrPositionAhead.
func (e *BeyondEndError) Is(target error) bool { return target == checkpoint.ErrAhead }

// A Move is the result of a reset.
type Move struct {
	Generation messagestore.Version // the number of the generation that begins at the new position

	// From is where the consumer was: the last checkpoint of the generation that has ended, or its
	// start. FromErr matches consumer.ErrPositionCorrupt if that checkpoint cannot be read, and is
	// nil otherwise.
	From    messagestore.GlobalPosition
	FromErr error
}

// Reset moves the consumer, with all members of its group, to a position, where a new generation
// begins. It returns the generation and where the consumer was. A paused consumer stays paused. If
// two resets run at once, the later one moves the consumer from where the earlier one has put it.
//
// Messages before the position are not delivered again. Messages from the position on are
// delivered, even if they were handled before. The checkpoints of earlier generations stay, and do
// not count.
//
// Running members are fenced: each notices when it writes its next checkpoint, or after at most 10
// s without one, finishes its messages in flight, and starts over at the position, while its Run
// goes on. Until then it handles messages from its old position on, and messages of one cardinal id
// may be in flight in two members at once. To avoid that, call [Target.Pause] first, and wait until
// no handler is at work: 10 s and the time of the longest handler. Then reset the consumer, and
// call [Target.Resume].
//
// The error is an [*UnknownConsumerError] if no consumer with the name has started yet, a
// [*BeyondEndError] if the position is beyond the end, and matches [messagestore.ErrInvalid] if it
// is below 0. Then nothing is changed.
func (t *Target) Reset(ctx context.Context, position messagestore.GlobalPosition) (Move, error) {
	if err := t.validate(); err != nil {
		return Move{}, fmt.Errorf("reset: %w", err)
	}
	move, err := t.reset(ctx, position)
	if err != nil {
		return Move{}, t.log.Wrap(fmt.Errorf("reset: %w", err))
	}
	return move, nil
}

func (t *Target) validate() error {
	if t.store == nil {
		return messagestore.NewInvalidError("store", nil, "must not be nil")
	}
	return t.log.Validate()
}

// checkPosition returns an error if no consumer can be moved to the position.
func (t *Target) checkPosition(ctx context.Context, position messagestore.GlobalPosition) error {
	if position < 0 {
		return messagestore.NewInvalidError("position", int64(position), "must be at least 0")
	}
	_, err := t.log.Recall(ctx, t.log.Ledger(), checkpoint.Checkpoint{Position: position})
	if errors.Is(err, checkpoint.ErrAhead) {
		end, err := t.store.End(ctx, t.log.Category)
		if err != nil {
			return err
		}
		return &BeyondEndError{Category: t.log.Category, Position: position, End: end}
	}
	return err
}

func (t *Target) reset(ctx context.Context, position messagestore.GlobalPosition) (Move, error) {
	if err := t.checkPosition(ctx, position); err != nil {
		return Move{}, err
	}
	for {
		current, err := t.log.Generation(ctx)
		if err != nil {
			return Move{}, err
		}
		if current.None() {
			return Move{}, t.unknown(ctx)
		}
		before, err := t.placed(ctx, current)
		if err != nil {
			return Move{}, err
		}
		written, err := t.store.Write(ctx, t.log.Ledger(), current.Entry, checkpoint.Started{Start: position, Reset: true, Paused: current.Paused})
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // the consumer was paused, resumed or reset meanwhile
		}
		return Move{written.Version, before.at.Position, before.err}, err
	}
}

// Pause stops the consumer from taking messages, over restarts and resets, until [Target.Resume].
// It reports whether it has changed anything: false means that the consumer was already paused.
//
// Running members notice within 10 s, most of them within 1 s. Messages in flight are finished, a
// message that waits for its next retry goes on waiting, and so do requested redrives. The members
// keep their slots, checkpoints go on, and no message is lost or delivered twice because of a
// pause. A CatchUp ends with consumer.ErrPaused.
//
// The error is an [*UnknownConsumerError] if no consumer with the name has started yet: then
// nothing is changed. After an unknown outcome you may call Pause again.
func (t *Target) Pause(ctx context.Context) (changed bool, err error) {
	return t.pause(ctx, "pause", true)
}

// Resume lets the consumer go on where it was paused, and reports whether it has changed anything:
// false means that the consumer was not paused. Running members notice it as fast as a
// [Target.Pause]. It returns the same errors as Pause.
func (t *Target) Resume(ctx context.Context) (changed bool, err error) {
	return t.pause(ctx, "resume", false)
}

func (t *Target) pause(ctx context.Context, doing string, paused bool) (bool, error) {
	if err := t.validate(); err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	current, changed, err := t.log.Pause(ctx, paused)
	if err == nil && current.None() {
		err = t.unknown(ctx)
	}
	if err != nil {
		return false, t.log.Wrap(fmt.Errorf("%s: %w", doing, err))
	}
	return changed, nil
}

// Create sets the position at which a consumer that has never started begins. It is [Target.Reset]
// for an unknown name, and returns the same errors except for the [*UnknownConsumerError].
//
// The error is a [*KnownConsumerError] if a consumer with the name has started, or starts
// meanwhile: then nothing is changed.
func (t *Target) Create(ctx context.Context, position messagestore.GlobalPosition) error {
	if err := t.validate(); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	err := t.checkPosition(ctx, position)
	if err == nil {
		_, err = t.store.Write(ctx, t.log.Ledger(), messagestore.NoStream, checkpoint.Started{Start: position, Reset: true})
	}
	if errors.Is(err, messagestore.ErrVersionConflict) {
		err = &KnownConsumerError{Category: t.log.Category, Name: t.log.Name}
	}
	if err != nil {
		return t.log.Wrap(fmt.Errorf("create: %w", err))
	}
	return nil
}

// A KnownConsumerError says that a consumer that was to be created has started before.
type KnownConsumerError struct {
	Category messagestore.Category
	Name     string
}

// Error names the consumer.
func (e *KnownConsumerError) Error() string {
	return fmt.Sprintf("consumer %s of %s has started before: reset it", checkpoint.Shown(e.Name), checkpoint.Shown(string(e.Category)))
}

// Next returns the messages at which the consumer is: for each replica that holds slots, and for
// the slots that no replica holds, the first message that is not finished according to the
// checkpoint. A stuck consumer is stuck at one of these. Next does not know the consumer's filter,
// so it also returns messages that the filter leaves out.
func (t *Target) Next(ctx context.Context) ([]*messagestore.Message, error) {
	if err := t.validate(); err != nil {
		return nil, fmt.Errorf("next: %w", err)
	}
	next, err := t.next(ctx)
	if err != nil {
		return nil, t.log.Wrap(fmt.Errorf("next: %w", err))
	}
	return next, nil
}

func (t *Target) next(ctx context.Context) (all []*messagestore.Message, err error) {
	current, err := t.log.Generation(ctx)
	if err != nil {
		return nil, err
	}
	if current.None() {
		return nil, t.unknown(ctx)
	}
	before, err := t.placed(ctx, current)
	if err == nil {
		err = before.err
	}
	if err != nil {
		return nil, err
	}
	first := map[uuid.UUID]*messagestore.Message{} // by holder
	for _, part := range before.group.Parts {
		m, err := t.firstOf(ctx, part)
		if err != nil {
			return nil, err
		}
		if known := first[part.Holder]; m != nil && (known == nil || m.GlobalPosition < known.GlobalPosition) {
			first[part.Holder] = m
		}
	}
	all = slices.Collect(maps.Values(first))
	slices.SortFunc(all, func(a, b *messagestore.Message) int { return cmp.Compare(a.GlobalPosition, b.GlobalPosition) })
	return all, nil
}

// firstOf returns the first message of a part.
func (t *Target) firstOf(ctx context.Context, part checkpoint.Part) (first *messagestore.Message, err error) {
	for size, members := range part.Slots.Classes() {
		for _, member := range members {
			m, err := firstMessage(ctx, t.store, messagestore.CategoryQuery{
				Category: t.log.Category, From: part.Position, Filter: messagestore.Filter{GroupSize: size, GroupMember: member},
			})
			if err != nil {
				return nil, err
			}
			if m != nil && (first == nil || m.GlobalPosition < first.GlobalPosition) {
				first = m
			}
		}
	}
	return first, nil
}

func (t *Target) unknown(ctx context.Context) error {
	unknown := &UnknownConsumerError{Category: t.log.Category, Name: t.log.Name}
	streams, err := tailsOf(ctx, t.store, checkpoint.Positions(t.log.Category))
	if err != nil {
		return err
	}
	for stream, types := range streams {
		if types.has(checkpoint.Started{}) {
			unknown.Known = append(unknown.Known, stream.ID())
		}
	}
	slices.Sort(unknown.Known)
	return unknown
}

// Parked returns the queue of the consumer's parked messages. Its dead items are the parked
// messages: each has the message, the handler's last error, and how often the handler failed. Retry
// lets the consumer deliver a message again, once, and Drop closes its item without a delivery.
//
// The consumer finds retried messages within its RedriveInterval, or when it is started next; in a
// group the member that the message's stream belongs to finds them. In a test or a job, Retry and
// then CatchUp do it at once. A message is delivered in its turn: never together with another of
// its cardinal id, and not before an earlier retried message of its stream. If its handler fails
// again, the message is parked again, with the new error. If the consumer is killed during the
// delivery, it redrives the message when it is started again.
//
// A retried message is not written to its category again, because other consumers of the category
// would get it a second time.
func (t *Target) Parked() (*queue.Queue, error) {
	if t.store == nil {
		return nil, messagestore.NewInvalidError("store", nil, "must not be nil")
	}
	if err := t.log.Validate(); err != nil {
		return nil, err
	}
	return queue.New(t.store, t.log.Category, &queue.Config{Name: t.log.Parked().Name})
}

// Park asks the consumer to park a message, with a reason that is stored in its item. Use it for
// the message at which a consumer is stuck. The item is suspended until the consumer has parked the
// message; to withdraw the request, drop the item.
//
// The member that has the message's part of the category parks it. A running consumer parks the
// message instead of the next retry, once it has found the request, which takes at most its
// RedriveInterval. A stopped consumer parks the message at its next start, without delivering it. A
// handler that has the message is not interrupted. If the message is handled first, nothing is
// parked, and the consumer logs that.
//
// It reports false if the message is already parked, or its parking was already requested. The
// error matches [messagestore.ErrInvalid] if the message belongs to another category, or if the
// reason is not 1 to 255 bytes of visible text.
func (t *Target) Park(ctx context.Context, m *messagestore.Message, reason string) (asked bool, err error) {
	if err := t.validate(); err != nil {
		return false, fmt.Errorf("park: %w", err)
	}
	if asked, err = t.park(ctx, m, reason); err != nil {
		return false, t.log.Wrap(fmt.Errorf("park: %w", err))
	}
	return asked, nil
}

func (t *Target) park(ctx context.Context, m *messagestore.Message, reason string) (bool, error) {
	switch {
	case m == nil || m.Stream.Category() != t.log.Category:
		return false, messagestore.NewInvalidError("message", m, "must be a message of the consumer's category")
	case text.TypeRule(reason) != "":
		return false, messagestore.NewInvalidError("reason", reason, "must be 1 to 255 bytes of visible text, without white space at either end")
	}
	queues, err := queuing.Of(t.store)
	if err != nil {
		return false, err
	}
	return queues.QueuePark(ctx, queuing.Parking{Queue: t.log.Parked(), Position: m.GlobalPosition, Error: reason, Asked: true})
}
