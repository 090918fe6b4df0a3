package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// Started starts a generation: it says where a consumer without a checkpoint in it begins. Each
// generation has its own stream of checkpoints, so a checkpoint from before a reset does not count.
type Started struct {
	Start messagestore.GlobalPosition `json:"start"`

	// After is the id of the last message before Start, if it is known.
	After uuid.UUID `json:"after,omitzero"`

	// Reset says that an operator moved the consumer.
	Reset bool `json:"reset,omitempty"`

	// Paused says that an operator paused the consumer: its members take no messages.
	Paused bool `json:"paused,omitempty"`

	// Of and Began are set only in an entry that begins or ends a pause, and so starts no
	// generation. Of is the number of the current generation, and Began is when that was started.
	// All other fields are the same as in the entry before, because only the last entry is read.
	Of    *messagestore.Version `json:"of,omitempty"`
	Began time.Time             `json:"began,omitzero"`
}

// MessageType is Started.
func (Started) MessageType() string { return "Started" }

// A Generation is the state of the ledger after its last entry.
type Generation struct {
	Started
	Version messagestore.Version // its number: the version of the entry that started it
	Entry   messagestore.Version // of the last entry
	At      time.Time            // when it began
	Since   time.Time            // when the last entry was written; if the consumer is paused, when that began
	First   bool                 // this call began the consumer's first generation
}

// None reports whether the consumer has no generation: it has never started.
func (g *Generation) None() bool { return g.Entry == messagestore.NoStream }

// Begin returns the checkpoint with which a consumer that has none in g begins.
func (g *Generation) Begin() Checkpoint { return Checkpoint{g.Start, g.After} }

// start returns the current generation. If there is none yet, it starts the first.
func (l Log) start(ctx context.Context) (Generation, error) {
	for {
		current, err := l.Generation(ctx)
		if err != nil || !current.None() {
			return current, err
		}
		var first Started
		if l.First != nil {
			if first.Start, err = l.First(ctx); err != nil {
				return Generation{}, fmt.Errorf("find where to start: %w", err)
			}
		}
		writing, cancel := context.WithTimeout(ctx, CallTimeout)
		written, err := l.Write(writing, l.Ledger(), messagestore.NoStream, first)
		cancel()
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // another process was first: read its entry
		}
		if err != nil {
			return Generation{}, fmt.Errorf("write generation: %w", err)
		}
		return Generation{Started: first, Version: written.Version, Entry: written.Version, First: true}, nil
	}
}

// Pause begins or ends a pause of the consumer, and returns the current generation. It reports
// whether that changed anything: nothing is written if the consumer already is in that state, or if
// there is no generation.
func (l Log) Pause(ctx context.Context, paused bool) (current Generation, changed bool, err error) {
	for {
		current, err = l.Generation(ctx)
		if err != nil || current.None() || current.Paused == paused {
			return current, false, err
		}
		next := current.Started
		next.Paused, next.Of, next.Began = paused, &current.Version, current.At
		written, err := l.Write(ctx, l.Ledger(), current.Entry, next)
		switch {
		case errors.Is(err, messagestore.ErrVersionConflict):
			continue // the consumer was reset, paused or resumed meanwhile
		case err != nil:
			return current, false, err
		}
		current.Started, current.Entry, current.Since = next, written.Version, written.Time
		return current, true, nil
	}
}

// Generation returns the current generation, which is [Generation.None] if the consumer has never
// started.
func (l Log) Generation(ctx context.Context) (Generation, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	m, err := l.Last(ctx, l.Ledger())
	if errors.Is(err, messagestore.ErrNotFound) {
		return Generation{Version: messagestore.NoStream, Entry: messagestore.NoStream}, nil
	}
	if err != nil {
		return Generation{}, fmt.Errorf("read generation: %w", err)
	}
	var body struct {
		Start *messagestore.GlobalPosition `json:"start"`
		After uuid.UUID                    `json:"after"`
		Reset bool                         `json:"reset"`

		Paused bool                  `json:"paused"`
		Of     *messagestore.Version `json:"of"`
		Began  time.Time             `json:"began"`
	}
	if err := decode(m, Started{}.MessageType(), &body); err != nil {
		return Generation{}, err
	}
	switch {
	case body.Start == nil:
		return Generation{}, corrupt(m, "it has no start")
	case *body.Start < 0:
		return Generation{}, corrupt(m, fmt.Sprintf("start %d is less than 0", *body.Start))
	case body.Of != nil && (*body.Of < 0 || *body.Of >= m.Position):
		return Generation{}, corrupt(m, fmt.Sprintf("generation %d, which it continues, is not before it", *body.Of))
	}
	g := Generation{
		Started: Started{Start: *body.Start, After: body.After, Reset: body.Reset, Paused: body.Paused, Of: body.Of, Began: body.Began},
		Version: m.Position, Entry: m.Position, At: m.Time, Since: m.Time,
	}
	if body.Of != nil {
		g.Version, g.At = *body.Of, body.Began
	}
	return g, nil
}
