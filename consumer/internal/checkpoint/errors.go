package checkpoint

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// The errors of this package match these with [errors.Is]. Package consumer documents them.
var (
	ErrFenced  = errors.New("consumer fenced")
	ErrAhead   = errors.New("position is ahead of the store")
	ErrCorrupt = errors.New("position is corrupt")
	ErrPaused  = errors.New("the consumer is paused: an operator has to resume it")
)

// ErrEpoch ends a run if the store may have lost the writes of its handlers. The next run goes on
// from the last checkpoint.
var ErrEpoch = errors.New("the store has another epoch: messages since the last checkpoint are redelivered")

// A FencedError names the stream to which another process wrote.
type FencedError struct {
	Stream   messagestore.StreamName // of checkpoints, or the ledger of generations
	Expected messagestore.Version    // the last version that this process wrote or read
	Actual   messagestore.Version    // the version that another process wrote since

	// TakenOver says that the lease of the process was over, and that others have its slots now.
	TakenOver bool

	// Generation is the generation that has begun since, nil if there was none or it is corrupt.
	Generation *Started
}

// StartsOver reports whether the process can join the group again: its slots were taken over, or an
// operator has reset the consumer.
func (e *FencedError) StartsOver() bool {
	return e.TakenOver || e.Generation != nil
}

// Error names the reason, the next step, the stream and the versions.
func (e *FencedError) Error() string {
	reason, step := "another process wrote to it", "call CatchUp while no other process runs the consumer"
	switch {
	case e.TakenOver:
		reason, step = "the lease was over, and other replicas go on", "it starts over as a newcomer"
	case e.StartsOver():
		reason, step = fmt.Sprintf("an operator reset the consumer to position %d", e.Generation.Start), "it starts over there"
	}
	return fmt.Sprintf("consumer fenced: %s: %s, in %s: expected version %v, found %v", reason, step, e.Stream, e.Expected, e.Actual)
}

// Is reports whether target is [ErrFenced].
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// An AheadError names the message or the checkpoint that the store has lost.
type AheadError struct {
	Stream   messagestore.StreamName     // of checkpoints, or the ledger of generations
	Position messagestore.GlobalPosition // the checkpoint, as this process knows it
	Expected messagestore.Version        // of the stream: the last version that this process wrote or read
	Actual   messagestore.Version        // of the stream

	// Behind is the id of the last message before the position. Found is the id of the message that
	// is there now. They are zero if not known, or if the place is empty.
	Behind uuid.UUID
	Found  uuid.UUID
}

// Error names the stream, the position and the versions.
func (e *AheadError) Error() string {
	if e.Actual < e.Expected {
		return fmt.Sprintf("position %d is ahead of the store, which has lost messages of %s: expected version %v, found %v",
			e.Position, e.Stream, e.Expected, e.Actual)
	}
	text := fmt.Sprintf("position %d in %s is ahead of the store, which has lost messages", e.Position, e.Stream)
	switch {
	case e.Behind != uuid.Nil && e.Found != uuid.Nil:
		return fmt.Sprintf("%s: it was right behind message %s, and the store has %s there", text, e.Behind, e.Found)
	case e.Behind != uuid.Nil:
		return fmt.Sprintf("%s: it was right behind message %s", text, e.Behind)
	}
	return text
}

// Is reports whether target is [ErrAhead].
func (e *AheadError) Is(target error) bool { return target == ErrAhead }

// A CorruptError names a stored message that is not a checkpoint, or not a generation.
type CorruptError struct {
	Stream   messagestore.StreamName
	Position messagestore.Version // of the message in the stream
	Reason   string
}

// Error names the message and its fault.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("position is corrupt: %s@%d: %s", e.Stream, e.Position, e.Reason)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
