package consumer

import (
	"context"
	"iter"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A store that was restored, or failed over to a standby that was behind, has a history of
// its own from some message on, and gives the positions of what it lost out again. So a
// consumer remembers the message that it is right behind, and looks whether that is still
// in its place: by each read, so that nothing of the one history is handled on top of the
// other, before it records a position, and when it starts.

// recall finds the message that a recorded position is right behind. It returns a
// [*PositionAheadError] if the store has lost it: a position other than 0 is right behind
// a message that was read, so from there on there is at least that one, and if its id is
// recorded it is that one. The mark is zero if the message was removed.
func (c *Consumer) recall(ctx context.Context, stream messagestore.StreamName, at recorded) (messagestore.Mark, error) {
	if at.Position == 0 {
		return messagestore.Mark{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	page, err := c.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: c.category, From: at.Position - 1, Limit: 1})
	switch {
	case err != nil:
		return messagestore.Mark{}, err
	case len(page.Messages) == 0 && !page.More:
		return messagestore.Mark{}, &PositionAheadError{Stream: stream, Position: at.Position, Behind: at.After}
	case len(page.Messages) == 0 || page.Messages[0].GlobalPosition != at.Position-1:
		return messagestore.Mark{}, nil
	case at.After != uuid.Nil && at.After != page.Messages[0].ID:
		return messagestore.Mark{}, &PositionAheadError{Stream: stream, Position: at.Position, Behind: at.After, Found: page.Messages[0].ID}
	}
	return keep(page.Messages[0].Mark()), nil
}

// keep returns a mark that has no part in the page it came with.
func keep(mark messagestore.Mark) messagestore.Mark {
	mark.Stream = messagestore.StreamName(strings.Clone(string(mark.Stream)))
	return mark
}

// checkMark returns a [*PositionAheadError] if the store has lost the message that was
// marked. The zero mark is of none.
func (c *Consumer) checkMark(ctx context.Context, stream messagestore.StreamName, mark messagestore.Mark) error {
	if mark.IsZero() {
		return nil
	}
	page, err := c.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: c.category, From: mark.GlobalPosition, Limit: 1})
	if err != nil {
		return err
	}
	return c.judge(ctx, stream, mark, page.First)
}

// judge is checkMark for who knows which message is the first from the marked one's place on.
func (c *Consumer) judge(ctx context.Context, stream messagestore.StreamName, mark, first messagestore.Mark) error {
	if first == mark {
		return nil
	}
	ahead := &PositionAheadError{Stream: stream, Position: messagestore.NextAfter(mark.GlobalPosition), Behind: mark.ID}
	if first.GlobalPosition == mark.GlobalPosition {
		ahead.Found = first.ID
		return ahead
	}
	// It was lost, or removed. What is removed leaves its stream's version where it was,
	// and no message in its place: so its stream has only later ones, at least one.
	if mark.Stream.Validate() != nil {
		return nil // another client's, that cannot be read by its name
	}
	next, stop := iter.Pull2(c.store.ReadStream(ctx, mark.Stream, mark.Position))
	defer stop()
	switch m, err, there := next(); {
	case !there:
	case err != nil:
		return err
	case m.Position > mark.Position, m.Mark() == mark:
		return nil
	case m.IsTombstone() && m.GlobalPosition > mark.GlobalPosition:
		return nil // that of a stream which was deleted already, and then with its name
	default:
		ahead.Found = m.ID
	}
	return ahead
}

// Epoch returns the store's, "" if it cannot tell. What a consumer has read may all be
// there, and what its handlers made of it lost, with the record that they did.
func (c *Consumer) epoch(ctx context.Context) (string, error) {
	if s, ok := c.store.(interface {
		Epoch(ctx context.Context) (string, error)
	}); ok {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		return s.Epoch(ctx)
	}
	return "", nil
}

// checkEpoch returns [errEpoch] if the store has another epoch than when p was found.
func (c *Consumer) checkEpoch(ctx context.Context, p *place) error {
	now, err := c.epoch(ctx)
	if err == nil && now != p.epoch {
		err = errEpoch
	}
	return err
}
