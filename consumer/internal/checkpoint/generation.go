package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// Resized starts a generation: a group size, and where members begin that have no
// checkpoint in it. Checkpoints of one size mean nothing to another, which splits the
// category differently. So each generation has streams of its own, and a size that
// returns does not find its old ones.
type Resized struct {
	Size  int                         `json:"size"`
	Start messagestore.GlobalPosition `json:"start"`

	// After is the id of the last message before Start, if it is known.
	After uuid.UUID `json:"after,omitzero"`

	// Reset says that an operator moved the consumer.
	Reset bool `json:"reset,omitempty"`

	// Paused says that an operator paused the consumer: its members take no messages.
	Paused bool `json:"paused,omitempty"`

	// Of is the number of the generation that goes on, and Began when that was started, in an entry
	// that only begins or ends a pause. Such an entry has all else as the entry before it, since the
	// last entry alone is read.
	Of    *messagestore.Version `json:"of,omitempty"`
	Began time.Time             `json:"began,omitzero"`
}

// MessageType is Resized.
func (Resized) MessageType() string { return "Resized" }

// A Generation is the state of the ledger, as its last entry has it.
type Generation struct {
	Resized
	Version messagestore.Version // its number: the version of the entry that started it
	Entry   messagestore.Version // of the last entry
	At      time.Time            // when it began
	Since   time.Time            // when the last entry was written: for a paused consumer, since when it is
	First   bool                 // of a consumer that had none, and begun by this call
}

// Begin is where members begin that have no checkpoint in g.
func (g *Generation) Begin() Checkpoint { return Checkpoint{g.Start, g.After} }

// join returns the current generation. It starts one if there is none, or if the group has
// another size.
func (l Log) join(ctx context.Context, size int) (Generation, error) {
	for {
		current, err := l.Generation(ctx)
		if err != nil || current.Size == size {
			return current, err
		}
		lowest, err := l.lowest(ctx, current)
		if err != nil {
			return Generation{}, err
		}
		next := Resized{Size: size, Start: lowest.Position, After: lowest.After, Paused: current.Paused}
		if current.Size == 0 && l.First != nil {
			if next.Start, err = l.First(ctx); err != nil {
				return Generation{}, fmt.Errorf("find where to start: %w", err)
			}
		}
		writing, cancel := context.WithTimeout(ctx, CallTimeout)
		written, err := l.Write(writing, l.Ledger(), current.Entry, next)
		cancel()
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // another member was first: read its entry
		}
		if err != nil {
			return Generation{}, fmt.Errorf("write generation: %w", err)
		}
		return Generation{Resized: next, Version: written.Version, Entry: written.Version, First: current.Size == 0}, nil
	}
}

// Pause begins a pause of the consumer, or ends it, and returns the generation that goes on. It reports
// whether that changed anything: nothing is written if the consumer is as it is asked to be, or if there
// is no generation.
func (l Log) Pause(ctx context.Context, paused bool) (current Generation, changed bool, err error) {
	for {
		current, err = l.Generation(ctx)
		if err != nil || current.Size == 0 || current.Paused == paused {
			return current, false, err
		}
		next := current.Resized
		next.Paused, next.Of, next.Began = paused, &current.Version, current.At
		written, err := l.Write(ctx, l.Ledger(), current.Entry, next)
		switch {
		case errors.Is(err, messagestore.ErrVersionConflict):
			continue // the group was resized or reset meanwhile
		case err != nil:
			return current, false, err
		}
		current.Resized, current.Entry, current.Since = next, written.Version, written.Time
		return current, true, nil
	}
}

// Generation returns the current generation, of size 0 if there is none.
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
		Size  int                          `json:"size"`
		Start *messagestore.GlobalPosition `json:"start"`
		After uuid.UUID                    `json:"after"`
		Reset bool                         `json:"reset"`

		Paused bool                  `json:"paused"`
		Of     *messagestore.Version `json:"of"`
		Began  time.Time             `json:"began"`
	}
	if err := decode(m, Resized{}.MessageType(), &body); err != nil {
		return Generation{}, err
	}
	switch {
	case body.Size < 1 || body.Size > messagestore.MaxGroupSize:
		return Generation{}, corrupt(m, fmt.Sprintf("group size %d is not between 1 and %d", body.Size, messagestore.MaxGroupSize))
	case body.Start == nil:
		return Generation{}, corrupt(m, "it has no start")
	case *body.Start < 0:
		return Generation{}, corrupt(m, fmt.Sprintf("start %d is less than 0", *body.Start))
	case body.Of != nil && (*body.Of < 0 || *body.Of >= m.Position):
		return Generation{}, corrupt(m, fmt.Sprintf("generation %d, which it continues, is not before it", *body.Of))
	}
	g := Generation{
		Resized: Resized{Size: body.Size, Start: *body.Start, After: body.After, Reset: body.Reset, Paused: body.Paused, Of: body.Of, Began: body.Began},
		Version: m.Position, Entry: m.Position, At: m.Time, Since: m.Time,
	}
	if body.Of != nil {
		g.Version, g.At = *body.Of, body.Began
	}
	return g, nil
}

// lowest returns the checkpoint of the member of a generation that is furthest behind:
// all members have finished the messages before it.
func (l Log) lowest(ctx context.Context, of Generation) (lowest Checkpoint, err error) {
	for member := range of.Size {
		at, _, err := l.last(ctx, l.Checkpoints(of.Version, member), of.Begin())
		if err != nil {
			return Checkpoint{}, err
		}
		if member == 0 || at.Position < lowest.Position {
			lowest = at.Checkpoint
		}
	}
	return lowest, nil
}
