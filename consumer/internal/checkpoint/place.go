package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
)

// A Place is where one run stores its checkpoints. Only one goroutine at a time writes: the run's
// loop, or a goroutine that the loop has started and waits for.
type Place struct {
	// Set when the place is found, and never changed: any goroutine may read them.
	Stream     messagestore.StreamName
	Mark       messagestore.Mark // of the message before the first checkpoint, zero if not known
	First      bool              // the consumer had no checkpoint before
	Failing    []Failure         // in the run's part, as they were found
	log        Log
	generation messagestore.Version // its number
	epoch      string               // of the store, before the checkpoint was read

	// For any goroutine: it has its own lock.
	ledger ledger

	// The writer's: the state that this run last wrote or read.
	Checkpoint                      // the last one
	version    messagestore.Version // of Stream
	failing    Failing              // without a lease

	// The writer's. A write with an unknown outcome is repeated with its id before any other write,
	// because otherwise its success would look like another process's write.
	unsettled *messagestore.Envelope

	// The writer's: while unsettled is set, another error of the store does not replace the unknown
	// outcome.
	outcome waiting.Outcome

	*seat // nil without a lease
}

// A ledger is the state of the consumer's ledger that a run has seen. It is safe for concurrent
// use.
type ledger struct {
	mu     sync.Mutex
	entry  messagestore.Version // the last that was read
	paused bool
}

func (l *ledger) saw(g *Generation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.Entry >= l.entry { // another goroutine may have read a later one
		l.entry, l.paused = g.Entry, g.Paused
	}
}

func (l *ledger) last() messagestore.Version {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entry
}

// Paused reports whether an operator has paused the consumer, as far as this run has seen.
func (p *Place) Paused() bool {
	p.ledger.mu.Lock()
	defer p.ledger.mu.Unlock()
	return p.ledger.paused
}

// place returns a place in the current generation, without its checkpoint, and the start of the
// generation.
func (l Log) place(ctx context.Context, before messagestore.StreamName, read messagestore.Mark) (*Place, Checkpoint, error) {
	p := &Place{log: l}
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
	current, err := l.start(ctx)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	p.generation, p.First = current.Version, current.First
	p.ledger.entry, p.ledger.paused = current.Entry, current.Paused
	p.Stream = l.Checkpoints(current.Version)
	return p, current.Begin(), nil
}

// Unsettled reports whether the outcome of the last write is not known.
func (p *Place) Unsettled() bool { return p.unsettled != nil }

// CheckGeneration returns a [*FencedError] if a later generation has started. It also learns
// whether the consumer is paused.
func (p *Place) CheckGeneration(ctx context.Context) error {
	known := p.ledger.last()
	version, err := p.log.Version(ctx, p.log.Ledger())
	if err == nil && version > known {
		err = p.catchUp(ctx, known, version)
	}
	return err
}

// catchUp reads the ledger after it has grown. It returns a [*FencedError] for a later generation,
// or the error of a store that did not answer: then the run looks again.
func (p *Place) catchUp(ctx context.Context, known, version messagestore.Version) error {
	fenced := &FencedError{Stream: p.log.Ledger(), Expected: known, Actual: version}
	switch now, err := p.log.Generation(ctx); {
	case err == nil && now.Version == p.generation:
		p.ledger.saw(&now)
		return nil
	case err == nil:
		fenced.Generation = &now.Started
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
// generation has started, or if the epoch has changed. It only uses fields of p that never change,
// and the ledger, so it may be called during a Write.
func (p *Place) Check(ctx context.Context, read messagestore.Mark) error {
	if err := p.log.checkMark(ctx, p.Stream, read); err != nil {
		return err
	}
	if err := p.CheckGeneration(ctx); err != nil {
		return err
	}
	return p.CheckEpoch(ctx)
}

// Write writes a checkpoint, with the failing messages, at the version that this run last wrote or
// read. So if two processes have no lease, the second to write is fenced. It writes nothing if the
// store has lost the message that was read last, or has another epoch. A member of a group extends
// its lease with the write, or leaves.
func (p *Place) Write(ctx context.Context, at Checkpoint, failing Failing, read messagestore.Mark, leave bool) error {
	return p.told(p.write(ctx, at, failing, read, leave))
}

// told returns the error of a write for the caller: after a write of unknown outcome every error
// says so too, unless this run is fenced, or has lost its checkpoint.
func (p *Place) told(err error) error { return p.outcome.Of(err, ErrFenced, ErrAhead, ErrEpoch) }

func (p *Place) write(ctx context.Context, at Checkpoint, failing Failing, read messagestore.Mark, leave bool) error {
	if err := p.log.checkMark(ctx, p.Stream, read); err != nil {
		return err
	}
	if err := p.CheckEpoch(ctx); err != nil {
		return err
	}
	// If a reset comes after this read, the next write finds it. This write then does not count,
	// because it goes to the stream of the previous generation.
	known := p.ledger.last()
	entry, err := p.log.Version(ctx, p.log.Ledger())
	switch {
	case err != nil:
		return fmt.Errorf("read generation: %w", err)
	case entry > known:
		err = p.catchUp(ctx, known, entry)
	default:
		err = p.fence(p.log.Ledger(), known, entry)
	}
	if err != nil {
		return err
	}
	return p.put(ctx, at, failing, leave)
}

// Put is Write for a run that ends at an unchanged position: it does not read from the store, and
// writes at the version that this run knows.
func (p *Place) Put(ctx context.Context, at Checkpoint, failing Failing, leave bool) error {
	return p.told(p.put(ctx, at, failing, leave))
}

func (p *Place) put(ctx context.Context, at Checkpoint, failing Failing, leave bool) error {
	if p.seat != nil {
		return p.step(ctx, at, &failing, leave)
	}
	for p.Position != at.Position || !p.failing.equal(failing) || p.unsettled != nil {
		body, _, err := p.append(ctx, func() recorded {
			return recorded{Checkpoint: at, Failing: failing.First, FailingCount: failing.Count}
		})
		if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
			return p.fence(p.Stream, conflict.Expected, conflict.Actual)
		}
		if err != nil {
			return fmt.Errorf("write checkpoint: %w", err)
		}
		p.Checkpoint, p.failing = body.Checkpoint, Failing{body.Failing, body.FailingCount}
	}
	return nil
}

// append appends a message to the stream of checkpoints at the version that this run knows, and
// returns it. If the last write had an unknown outcome, append repeats that one instead of the
// next.
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
	if _ = p.outcome.Of(err); !p.outcome.IsUnknown() { // an attempt that failed definitely does not tell of the one before
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
