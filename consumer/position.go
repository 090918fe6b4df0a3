package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// recorded is the position of a consumer, or of a member of one: everything before
// it is finished, so it is where to go on.
type recorded struct {
	Position messagestore.GlobalPosition `json:"position"`

	// After is the id of the message that the position is right behind, which tells
	// whether the store still has the history that it is of. It is not there for 0, in
	// what was recorded before there were ids, and by other clients.
	After uuid.UUID `json:"after,omitzero"`
}

func (recorded) MessageType() string { return "Recorded" }

// A place is where one run keeps its position.
type place struct {
	ledger     messagestore.StreamName
	generation messagestore.Version // of the ledger
	epoch      string               // of the store, before the position was read
	stream     messagestore.StreamName
	version    messagestore.Version // of the stream, as this run knows it
	recorded                        // in it
	mark       messagestore.Mark    // of the message it is right behind, zero if that is not known

	// unsettled is a write whose outcome is not known. It is written again, as it
	// was, before any other: else its success would look like another process.
	unsettled *messagestore.Envelope
}

// resume finds where to go on, unless the store has lost what a run before has read: that
// may have looked for it before the store went back, and for the epoch after. Each call of the store has a time of its own: where a
// group gets another size, there is one for each of its members.
func (c *Consumer) resume(ctx context.Context, before *run) (*place, error) {
	p := &place{ledger: c.ledger()}
	var err error
	if p.epoch, err = c.epoch(ctx); err != nil {
		return nil, err
	}
	if before != nil {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		err := c.checkMark(ctx, before.place.stream, before.reader.mark)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	current, err := c.joinGeneration(ctx)
	if err != nil {
		return nil, err
	}
	p.generation = current.version
	p.stream = c.positionStream(current.version, c.config.GroupMember)
	if p.recorded, p.version, err = c.lastPosition(ctx, p.stream, current.begin()); err != nil {
		return nil, err
	}
	p.mark, err = c.recall(ctx, p.stream, p.recorded)
	return p, err
}

// lastPosition returns what is recorded in stream, and start if nothing is.
func (c *Consumer) lastPosition(ctx context.Context, stream messagestore.StreamName, start recorded) (recorded, messagestore.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	m, err := c.store.Last(ctx, stream)
	if errors.Is(err, messagestore.ErrNotFound) {
		return start, messagestore.NoStream, nil
	}
	if err != nil {
		return recorded{}, 0, fmt.Errorf("read position: %w", err)
	}
	at, err := decodeRecorded(m)
	return at, m.Position, err
}

func decodePosition(m *messagestore.Message, messageType string, into any) error {
	if m.IsTombstone() {
		return corrupt(m, "the stream was deleted")
	}
	if m.Type != messageType {
		return corrupt(m, fmt.Sprintf("its type is %s, not %s", shorten(m.Type), messageType))
	}
	if err := json.Unmarshal(m.Data, into); err != nil {
		return corrupt(m, shorten(err.Error()))
	}
	return nil
}

func corrupt(m *messagestore.Message, reason string) error {
	return &PositionCorruptError{Stream: m.Stream, Position: m.Position, Reason: reason}
}

// checkGeneration returns a [*FencedError] if a later generation has started.
func (c *Consumer) checkGeneration(ctx context.Context, ledger messagestore.StreamName, generation messagestore.Version) error {
	version, err := c.store.Version(ctx, ledger)
	if err == nil && version > generation {
		err = &FencedError{Stream: ledger, Expected: generation, Actual: version}
	}
	return err
}

// check finds out, for a run that does not record, what a recording does first: whether the
// store still has what was read, and whether nobody has had the consumer start elsewhere. It
// takes of p what does not change.
func (c *Consumer) check(ctx context.Context, p *place, read messagestore.Mark) error {
	if err := c.checkMark(ctx, p.stream, read); err != nil {
		return err
	}
	if err := c.checkGeneration(ctx, p.ledger, p.generation); err != nil {
		return err
	}
	return c.checkEpoch(ctx, p)
}

// recordPosition writes a position at the version that this run wrote or read last,
// so that of two processes with one identity the second finds out. It records nothing in
// a store that has lost what was read last, or that may have lost what handlers wrote.
func (c *Consumer) recordPosition(ctx context.Context, p *place, at recorded, read messagestore.Mark) error {
	if err := c.checkMark(ctx, p.stream, read); err != nil {
		return err
	}
	if err := c.checkEpoch(ctx, p); err != nil {
		return err
	}
	// A resize later than this look is found out by the next. Nothing is lost by it:
	// the new generation has started, at a position no higher than this member's.
	generation, err := c.store.Version(ctx, p.ledger)
	if err != nil {
		return fmt.Errorf("read group size: %w", err)
	}
	if err := p.fence(p.ledger, p.generation, generation); err != nil {
		return err
	}
	for p.Position != at.Position || p.unsettled != nil {
		if p.unsettled == nil {
			id, err := uuid.NewV7()
			if err != nil {
				return fmt.Errorf("new message id: %w", err)
			}
			p.unsettled = &messagestore.Envelope{ID: id, Body: at}
		}
		written, err := c.store.Write(ctx, p.stream, p.version, *p.unsettled)
		if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
			return p.fence(p.stream, conflict.Expected, conflict.Actual)
		}
		if err != nil {
			if !errors.Is(err, messagestore.ErrOutcomeUnknown) {
				p.unsettled = nil
			}
			return fmt.Errorf("record position: %w", err)
		}
		p.version = written.Version
		p.recorded = p.unsettled.Body.(recorded) //nolint:errcheck // it was made above
		p.unsettled = nil
	}
	return nil
}

// fence judges a stream that only this process should write to.
func (p *place) fence(stream messagestore.StreamName, expected, actual messagestore.Version) error {
	switch {
	case actual > expected:
		return &FencedError{Stream: stream, Expected: expected, Actual: actual}
	case actual < expected:
		return &PositionAheadError{Stream: stream, Position: p.Position, Expected: expected, Actual: actual}
	}
	return nil
}
