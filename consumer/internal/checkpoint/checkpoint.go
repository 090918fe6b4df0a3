// Package checkpoint stores how far a consumer is, and finds out whether that still
// holds: whether another process has taken over, an operator has reset the consumer, or
// the store was rolled back.
//
// A consumer has a ledger of generations, each with a start. Each generation has a stream of
// checkpoints, which the members of the consumer's group share. All is written at expected
// versions. A [Consumer] names these streams.
package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// CallTimeout bounds one call of the store, so that a dead connection does not block a consumer for
// as long as TCP waits.
const CallTimeout = 15 * time.Second

// A Store has the methods of a [messagestore.Store] that this package needs.
type Store interface {
	Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error)
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error)
	Now(ctx context.Context) (time.Time, error)
	Epoch(ctx context.Context) (string, error)
}

// A Log has the stored positions of one consumer.
type Log struct {
	Store
	Consumer

	// First finds where a consumer without a generation begins. Nil means position 0.
	First func(ctx context.Context) (messagestore.GlobalPosition, error)
}

// A Checkpoint is a stored position: the messages before it are handled, parked or
// skipped.
type Checkpoint struct {
	Position messagestore.GlobalPosition `json:"position"`

	// After is the id of the last message before the position. It shows whether the store still has
	// that message. It is missing at position 0, and in the checkpoints of other clients.
	After uuid.UUID `json:"after,omitzero"`
}

// recorded is the message that stores a checkpoint. If it has a group, the checkpoint is the
// group's lowest.
type recorded struct {
	Checkpoint
	Failing      []Failure `json:"failing,omitempty"`
	FailingCount int       `json:"failingCount,omitempty"` // without a group: how many messages are failing, the list included
	Group        *Group    `json:"group,omitempty"`
}

// MessageType returns the type that other clients of message-db use, too.
func (Checkpoint) MessageType() string { return "Recorded" }

// Decode returns the checkpoint in a message, or a [*CorruptError].
func Decode(m *messagestore.Message) (Checkpoint, error) {
	r, err := decodeRecorded(m)
	return r.Checkpoint, err
}

// DecodeGroup returns the group stored with a checkpoint, or a [*CorruptError].
func DecodeGroup(m *messagestore.Message) (Group, error) {
	r, err := decodeRecorded(m)
	if err != nil || r.Group == nil {
		group := single(r.Checkpoint)
		group.Failing = r.Failing
		return group, err
	}
	return *r.Group, nil
}

func decodeRecorded(m *messagestore.Message) (recorded, error) {
	var body struct {
		Position *messagestore.GlobalPosition `json:"position"`
		After    uuid.UUID                    `json:"after"`
		Failing  json.RawMessage              `json:"failing"`
		Count    json.RawMessage              `json:"failingCount"`
		Group    *Group                       `json:"group"`
	}
	var wrong *CorruptError
	switch err := decode(m, Checkpoint{}.MessageType(), &body); {
	case errors.As(err, &wrong) && m.Type == (Checkpoint{}).MessageType():
		return recorded{}, corrupt(m, `it is not like {"position": 3}`) // an operator has no use for the names of Go's types
	case err != nil:
		return recorded{}, err
	case body.Position == nil:
		return recorded{}, corrupt(m, "it has no position")
	case *body.Position < 0:
		return recorded{}, corrupt(m, fmt.Sprintf("position %d is less than 0", *body.Position))
	}
	if body.Group != nil {
		if rule := body.Group.mistake(*body.Position); rule != "" {
			return recorded{}, corrupt(m, rule)
		}
	}
	r := recorded{Checkpoint: Checkpoint{*body.Position, body.After}, Failing: decodeFailing(body.Failing), Group: body.Group}
	if r.Group != nil {
		r.Group.Failing = r.Failing
	}
	_ = json.Unmarshal(body.Count, &r.FailingCount) // as with the list
	return r, nil
}

// checkAfter returns a [*CorruptError] if the checkpoint in the last message of a stream does not
// name the message before its position, although an earlier one, or the start of the generation,
// does: a consumer that has written a name once writes one each time, so another program has
// written this checkpoint. Earlier checkpoints up to the known version are not read again.
func (l Log) checkAfter(ctx context.Context, last *messagestore.Message, at, start Checkpoint, known messagestore.Version) error {
	const rule = "it does not name the message before its position, and one before it did"
	switch {
	case at.After != uuid.Nil:
		return nil
	case start.After != uuid.Nil:
		return corrupt(last, rule)
	}
	for m, err := range l.ReadStream(ctx, last.Stream, max(known, 0)) {
		if err != nil {
			return fmt.Errorf("read checkpoints: %w", err)
		}
		if m.Position >= last.Position {
			break
		}
		if group, err := DecodeGroup(m); err == nil && group.Lowest().After != uuid.Nil {
			return corrupt(last, rule)
		}
	}
	return nil
}

// CheckAfter is the check at the start of a run.
func (l Log) CheckAfter(ctx context.Context, last *messagestore.Message, at, start Checkpoint) error {
	return l.checkAfter(ctx, last, at, start, messagestore.NoStream)
}

func decode(m *messagestore.Message, messageType string, into any) error {
	if m.IsTombstone() {
		return corrupt(m, "the stream was deleted")
	}
	if m.Type != messageType {
		return corrupt(m, fmt.Sprintf("its type is %s, not %s", text.Shorten(m.Type), messageType))
	}
	if err := json.Unmarshal(m.Data, into); err != nil {
		return corrupt(m, text.Shorten(err.Error()))
	}
	return nil
}

func corrupt(m *messagestore.Message, reason string) error {
	return &CorruptError{Stream: m.Stream, Position: m.Position, Reason: reason}
}
