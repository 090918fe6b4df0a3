package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A Place is where one run keeps its checkpoints.
type Place struct {
	Stream     messagestore.StreamName
	Checkpoint                   // the last one
	Mark       messagestore.Mark // of the message before it, zero if that is not known
	First      bool              // the consumer had no checkpoint before this one

	log        Log
	size       int                  // of the group
	generation messagestore.Version // of the ledger
	epoch      string               // of the store, before the checkpoint was read
	version    messagestore.Version // of Stream, as this run knows it

	// unsettled is a write of unknown outcome. It is repeated with its id before any other
	// write: otherwise its success would look like another process.
	unsettled *messagestore.Envelope

	*seat // nil without a lease
}

// Resume returns the place at which a member of a group goes on. Each call of the store has
// a timeout of its own: when a group is resized there is one call for each member.
//
// Before is where a run before this one had checkpointed, and read the last message that
// it had read; they are zero if there was none. That run may have looked for the message
// before the store was rolled back, and for the epoch after that.
func (l Log) Resume(ctx context.Context, size, member int, before messagestore.StreamName, read messagestore.Mark) (*Place, error) {
	p, start, err := l.place(ctx, size, member, before, read)
	if err != nil {
		return nil, err
	}
	if p.Checkpoint, p.version, err = l.last(ctx, p.Stream, start); err != nil {
		return nil, err
	}
	p.Mark, err = l.Recall(ctx, p.Stream, p.Checkpoint)
	return p, err
}

// place returns the place of a member in the current generation, without its checkpoint, and
// where the generation starts.
func (l Log) place(ctx context.Context, size, member int, before messagestore.StreamName, read messagestore.Mark) (*Place, Checkpoint, error) {
	p := &Place{log: l, size: size}
	var err error
	if p.epoch, err = l.epoch(ctx); err != nil {
		return nil, Checkpoint{}, err
	}
	if !read.IsZero() {
		ctx, cancel := context.WithTimeout(ctx, CallTimeout)
		err := l.checkMark(ctx, before, read)
		cancel()
		if err != nil {
			return nil, Checkpoint{}, err
		}
	}
	current, err := l.join(ctx, size)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	p.generation, p.First = current.Version, current.First
	p.Stream = l.Checkpoints(current.Version, member)
	return p, current.Begin(), nil
}

// Unsettled reports whether the outcome of the last write is not known.
func (p *Place) Unsettled() bool { return p.unsettled != nil }

// CheckGeneration returns a [*FencedError] if a later generation has started.
func (p *Place) CheckGeneration(ctx context.Context) error {
	ledger := p.log.Ledger()
	version, err := p.log.Version(ctx, ledger)
	if err == nil && version > p.generation {
		err = p.superseded(ctx, version)
	}
	return err
}

// superseded returns the error of a run that finds a later generation, or of a store that did not
// say which: the run looks again.
func (p *Place) superseded(ctx context.Context, version messagestore.Version) error {
	fenced := &FencedError{Stream: p.log.Ledger(), Expected: p.generation, Actual: version, Size: p.size}
	switch now, err := p.log.Generation(ctx); {
	case err == nil:
		fenced.Generation = &now.Resized
	case !errors.Is(err, ErrCorrupt):
		return err
	}
	return fenced
}

// CheckEpoch returns [ErrEpoch] if the store has another epoch than when the place was found.
func (p *Place) CheckEpoch(ctx context.Context) error {
	now, err := p.log.epoch(ctx)
	if err == nil && now != p.epoch {
		err = ErrEpoch
	}
	return err
}

// Check returns an error if the store has lost the message that was read last, if a later
// generation has started, or if the epoch has changed. It uses only fields of p that never
// change, so it may be called during a Write.
func (p *Place) Check(ctx context.Context, read messagestore.Mark) error {
	if err := p.log.checkMark(ctx, p.Stream, read); err != nil {
		return err
	}
	if err := p.CheckGeneration(ctx); err != nil {
		return err
	}
	return p.CheckEpoch(ctx)
}

// Write writes a checkpoint at the version that this run wrote or read last, so that of two
// processes with one identity the second to write is fenced. It writes nothing if the store
// has lost the message that was read last, or has another epoch. A member of a group extends its
// lease with it, or leaves.
func (p *Place) Write(ctx context.Context, at Checkpoint, read messagestore.Mark, leave bool) error {
	if err := p.log.checkMark(ctx, p.Stream, read); err != nil {
		return err
	}
	if err := p.CheckEpoch(ctx); err != nil {
		return err
	}
	// The next write finds a resize that comes after this read. No message is skipped by
	// it: the new generation starts at a position no higher than this member's.
	ledger := p.log.Ledger()
	generation, err := p.log.Version(ctx, ledger)
	if err != nil {
		return fmt.Errorf("read generation: %w", err)
	}
	if generation > p.generation {
		return p.superseded(ctx, generation)
	}
	if err := p.fence(ledger, p.generation, generation); err != nil {
		return err
	}
	if p.seat != nil {
		return p.step(ctx, at, leave)
	}
	for p.Position != at.Position || p.unsettled != nil {
		body, _, err := p.append(ctx, func() recorded { return recorded{Checkpoint: at} })
		if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
			return p.fence(p.Stream, conflict.Expected, conflict.Actual)
		}
		if err != nil {
			return fmt.Errorf("write checkpoint: %w", err)
		}
		p.Checkpoint = body.Checkpoint
	}
	return nil
}

// append appends a message to the stream of checkpoints at the version that this run knows,
// and returns it. A write of unknown outcome goes again, in place of the next.
func (p *Place) append(ctx context.Context, next func() recorded) (recorded, messagestore.Written, error) {
	if p.unsettled == nil {
		id, err := uuid.NewV7()
		if err != nil {
			return recorded{}, messagestore.Written{}, fmt.Errorf("new message id: %w", err)
		}
		p.unsettled = &messagestore.Envelope{ID: id, Body: next()}
	}
	body := p.unsettled.Body.(recorded) //nolint:errcheck // it was made above
	written, err := p.log.Write(ctx, p.Stream, p.version, *p.unsettled)
	if err == nil {
		p.version = written.Version
	}
	if !errors.Is(err, messagestore.ErrOutcomeUnknown) {
		p.unsettled = nil
	}
	return body, written, err
}

// fence compares the version of a stream that only this process should write to.
func (p *Place) fence(stream messagestore.StreamName, expected, actual messagestore.Version) error {
	switch {
	case actual > expected:
		return &FencedError{Stream: stream, Expected: expected, Actual: actual}
	case actual < expected:
		return &AheadError{Stream: stream, Position: p.Position, Expected: expected, Actual: actual}
	}
	return nil
}
