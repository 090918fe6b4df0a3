package checkpoint

import (
	"context"
	"iter"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A store that was restored, or failed over to a standby that was behind, assigns the positions of
// the lost messages again. So a consumer keeps the mark of the last message before its position,
// and checks that the store still has it: with each read, before it writes a checkpoint, and when
// it starts.

// Recall returns the mark of the last message before a checkpoint, or an [*AheadError] if the store
// has lost it. Any position except 0 directly follows a message that was read, so the store must
// have at least that message from its place on, with the stored id if there is one. The mark is
// zero if the message was removed.
func (l Log) Recall(ctx context.Context, stream messagestore.StreamName, at Checkpoint) (messagestore.Mark, error) {
	if at.Position == 0 {
		return messagestore.Mark{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	page, err := l.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: l.Category, From: at.Position - 1, Limit: 1})
	switch {
	case err != nil:
		return messagestore.Mark{}, err
	case len(page.Messages) == 0 && !page.More:
		return messagestore.Mark{}, &AheadError{Stream: stream, Position: at.Position, Behind: at.After}
	case len(page.Messages) == 0 || page.Messages[0].GlobalPosition != at.Position-1:
		return messagestore.Mark{}, nil
	case at.After != uuid.Nil && at.After != page.Messages[0].ID:
		return messagestore.Mark{}, &AheadError{Stream: stream, Position: at.Position, Behind: at.After, Found: page.Messages[0].ID}
	}
	return Keep(page.Messages[0].Mark()), nil
}

// Keep returns a mark that does not keep its page in memory.
func Keep(mark messagestore.Mark) messagestore.Mark {
	mark.Stream = messagestore.StreamName(strings.Clone(string(mark.Stream)))
	return mark
}

// CheckMark returns an [*AheadError] if the store has lost the marked message. A zero mark is never
// lost.
func (p *Place) CheckMark(ctx context.Context, mark messagestore.Mark) error {
	return p.log.checkMark(ctx, p.Stream, mark)
}

func (l Log) checkMark(ctx context.Context, stream messagestore.StreamName, mark messagestore.Mark) error {
	if mark.IsZero() {
		return nil
	}
	page, err := l.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: l.Category, From: mark.GlobalPosition, Limit: 1})
	if err != nil {
		return err
	}
	return l.judge(ctx, stream, mark, page.First)
}

// Judge is CheckMark after a read that started at the marked message's place: first is the first
// message of that read.
func (p *Place) Judge(ctx context.Context, mark, first messagestore.Mark) error {
	return p.log.judge(ctx, p.Stream, mark, first)
}

func (l Log) judge(ctx context.Context, stream messagestore.StreamName, mark, first messagestore.Mark) error {
	if first == mark {
		return nil
	}
	ahead := &AheadError{Stream: stream, Position: mark.GlobalPosition.Next(), Behind: mark.ID}
	if first.GlobalPosition == mark.GlobalPosition {
		ahead.Found = first.ID
		return ahead
	}
	// The message was lost or removed. A removal does not change the version of the stream and
	// leaves the message's place empty: the stream has at least one later message.
	if mark.Stream.Validate() != nil {
		return nil // a stream of another client, with a name that cannot be read
	}
	next, stop := iter.Pull2(l.ReadStream(ctx, mark.Stream, mark.Position))
	defer stop()
	switch m, err, there := next(); {
	case !there:
	case err != nil:
		return err
	case m.Position > mark.Position, m.Mark() == mark:
		return nil
	case m.IsTombstone() && m.GlobalPosition > mark.GlobalPosition:
		return nil // of a stream that was deleted before, and then with its name
	default:
		ahead.Found = m.ID
	}
	return ahead
}

// epoch returns the store's epoch, or "". In another epoch the writes of the handlers may be lost,
// even if the store has all messages that the consumer has read.
func (l Log) epoch(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	return l.Epoch(ctx)
}
