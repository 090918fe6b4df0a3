// Package operate shows where consumers are, and moves them. It needs no handlers.
//
//	all, err := operate.Consumers(ctx, store, "account:command")
//
//	generation, err := operate.Consumer(store, "account:command", "accounts").Reset(ctx, position)
//
// [messagestore.Store.End] and [messagestore.Store.PositionAt] find positions to reset to,
// and package deadletter shows parked messages.
package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/internal/names"
	"github.com/dibs-go/dibs/consumer/internal/tails"
	"github.com/dibs-go/dibs/consumer/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Target is the consumer that an operator works on. Its methods are safe for concurrent
// use.
type Target struct {
	store *messagestore.Store
	log   checkpoint.Log
}

// Consumer returns the consumer of category with a name. It reads nothing, and the methods
// report a wrong category or name.
func Consumer(store *messagestore.Store, category messagestore.Category, name string) *Target {
	return &Target{store, checkpoint.Log{Store: store, Consumer: names.Consumer{Category: category, Name: name}}}
}

// An UnknownConsumerError says that no consumer of a name has ever started.
type UnknownConsumerError struct {
	Category messagestore.Category
	Name     string
	Known    []string // the consumers of the category, in order
}

// Error names the consumers that are known.
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
	return fmt.Sprintf("unknown consumer %s of %s: %s", text.Shorten(e.Name), text.Shorten(string(e.Category)), known)
}

// A BeyondEndError says that a position is beyond the end of the category. It matches
// consumer.ErrPositionAhead.
type BeyondEndError struct {
	Category messagestore.Category
	Position messagestore.GlobalPosition
	End      messagestore.GlobalPosition // the highest possible: after the last message
}

// Error names the positions.
func (e *BeyondEndError) Error() string {
	return fmt.Sprintf("position %d is ahead of the store: category %s ends before %d", e.Position, e.Category, e.End)
}

// Is reports whether target is consumer.ErrPositionAhead.
func (e *BeyondEndError) Is(target error) bool { return target == checkpoint.ErrAhead }

// Reset moves the consumer, with all members of its group, to a position, and returns the
// number of the new generation that begins there.
//
// Messages before the position are not delivered again. Messages from it on are, even if
// they were handled before. The checkpoints of earlier generations stay, and do not count.
//
// A consumer that runs meanwhile is fenced: it stops with consumer.ErrConsumerFenced when it
// writes its next checkpoint, or after at most 10 s if it writes none. It goes on from the
// position when it is started again. Until it stops, it handles messages from its old
// position on.
//
// The error is an [*UnknownConsumerError] if no consumer of the name has started yet, a
// [*BeyondEndError] for a position beyond the end, and matches [messagestore.ErrInvalid] for
// one below 0. Then nothing is changed.
func (t *Target) Reset(ctx context.Context, position messagestore.GlobalPosition) (messagestore.Version, error) {
	if err := t.validate(); err != nil {
		return 0, fmt.Errorf("reset: %w", err)
	}
	generation, err := t.reset(ctx, position)
	if err != nil {
		return 0, t.log.Wrap(fmt.Errorf("reset: %w", err))
	}
	return generation, nil
}

func (t *Target) validate() error {
	if t.store == nil {
		return messagestore.NewInvalidError("store", nil, "there is none")
	}
	return t.log.Validate()
}

func (t *Target) reset(ctx context.Context, position messagestore.GlobalPosition) (messagestore.Version, error) {
	if position < 0 {
		return 0, messagestore.NewInvalidError("position", int64(position), "it is at least 0")
	}
	_, err := t.log.Recall(ctx, t.log.Ledger(), checkpoint.Checkpoint{Position: position})
	if errors.Is(err, checkpoint.ErrAhead) {
		end, err := t.store.End(ctx, t.log.Category)
		if err != nil {
			return 0, err
		}
		return 0, &BeyondEndError{Category: t.log.Category, Position: position, End: end}
	}
	if err != nil {
		return 0, err
	}
	for {
		current, err := t.log.Generation(ctx)
		if err != nil {
			return 0, err
		}
		if current.Size == 0 {
			return 0, t.unknown(ctx)
		}
		written, err := t.store.Write(ctx, t.log.Ledger(), current.Version, checkpoint.Resized{Size: current.Size, Start: position, Reset: true})
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // the group was resized meanwhile: its new size stays
		}
		return written.Version, err
	}
}

func (t *Target) unknown(ctx context.Context) error {
	unknown := &UnknownConsumerError{Category: t.log.Category, Name: t.log.Name}
	streams, err := tails.Of(ctx, t.store, names.Positions(t.log.Category), []string{checkpoint.Resized{}.MessageType()})
	if err != nil {
		return err
	}
	for stream, types := range streams {
		if types.Has(checkpoint.Resized{}) {
			unknown.Known = append(unknown.Known, stream.ID())
		}
	}
	slices.Sort(unknown.Known)
	return unknown
}
