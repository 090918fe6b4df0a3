package inbox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// A request is the keys.Key of a received request.
type request[Tx any] struct {
	inbox  *Inbox[Tx]
	of     Request
	stream messagestore.StreamName
	digest string
	id     uuid.UUID // of the message that this call writes: it finds a lost COMMIT
}

func (r request[Tx]) Stream() messagestore.StreamName { return r.stream }

func (r request[Tx]) Begin(_ context.Context, first *messagestore.Message) (keys.Start, error) {
	return keys.Free(first)
}

func (r request[Tx]) Compose(start keys.Start, answer json.RawMessage, writes []messagestore.StreamWrite) ([]messagestore.StreamWrite, error) {
	if err := r.inbox.outside(writes); err != nil {
		return nil, err
	}
	return inFront(r.stream, start.Version, r.id, Received{r.of.Source, r.digest, answer, identified(writes)}, writes), nil
}

func (r request[Tx]) Won(_ context.Context, a keys.Attempt) reservation.Result {
	return won(r.of.ID, r.stream, r.id, Received{}.MessageType(), reservation.Reserved, a)
}

func (r request[Tx]) Met(ctx context.Context, first *messagestore.Message) (reservation.Result, bool, error) {
	result := reservation.Result{Key: r.of.ID, Stream: r.stream, Winner: first}
	if first.Type == (Undone{}).MessageType() {
		result.Outcome = reservation.Undone
		return result, true, nil
	}
	var body Received
	if first.Type != body.MessageType() || json.Unmarshal(first.Data, &body) != nil || body.Digest == "" {
		return reservation.Result{}, false, &reservation.NoReservationError{Stream: r.stream, First: first}
	}
	if body.Digest != r.digest {
		result.Outcome = reservation.KeyReused
		return result, true, nil
	}
	result.Answer = body.Answer
	if first.ID == r.id {
		result.Outcome = reservation.Reserved
		return result, true, nil
	}
	undone, err := r.inbox.undone(ctx, r.stream)
	switch {
	case err != nil:
		return reservation.Result{}, false, err
	case undone != nil:
		result.Outcome, result.Winner = reservation.Undone, undone
	default:
		result.Outcome = reservation.Duplicate
	}
	return result, true, nil
}

// An undo is the keys.Key of a request that is given back.
type undo[Tx any] struct {
	inbox  *Inbox[Tx]
	of     Request
	stream messagestore.StreamName
	id     uuid.UUID // of the message that this call writes
}

func (u undo[Tx]) Stream() messagestore.StreamName { return u.stream }

func (u undo[Tx]) Begin(ctx context.Context, first *messagestore.Message) (keys.Start, error) {
	if first == nil {
		return keys.Start{Version: messagestore.NoStream}, nil
	}
	if first.Type != (Received{}).MessageType() {
		return keys.Start{}, keys.ErrTaken
	}
	undone, err := u.inbox.undone(ctx, u.stream)
	if undone != nil {
		return keys.Start{}, keys.ErrTaken
	}
	return keys.Start{Calls: true, Version: 0}, err
}

func (u undo[Tx]) Compose(start keys.Start, answer json.RawMessage, writes []messagestore.StreamWrite) ([]messagestore.StreamWrite, error) {
	if err := u.inbox.outside(writes); err != nil {
		return nil, err
	}
	return inFront(u.stream, start.Version, u.id, Undone{u.of.Source, answer, identified(writes)}, writes), nil
}

func (u undo[Tx]) Won(_ context.Context, a keys.Attempt) reservation.Result {
	return won(u.of.ID, u.stream, u.id, Undone{}.MessageType(), reservation.Undone, a)
}

func (u undo[Tx]) Met(ctx context.Context, first *messagestore.Message) (reservation.Result, bool, error) {
	undone := first
	switch first.Type {
	case Received{}.MessageType():
		var err error
		if undone, err = u.inbox.undone(ctx, u.stream); undone == nil {
			return reservation.Result{}, false, err
		}
	case Undone{}.MessageType():
	default:
		return reservation.Result{}, false, &reservation.NoReservationError{Stream: u.stream, First: first}
	}
	var body Undone
	if err := json.Unmarshal(undone.Data, &body); err != nil {
		return reservation.Result{}, false, fmt.Errorf("read %s: %w", undone, err)
	}
	outcome := reservation.Duplicate
	if undone.ID == u.id {
		outcome = reservation.Undone
	}
	return reservation.Result{Outcome: outcome, Key: u.of.ID, Stream: u.stream, Winner: undone, Answer: body.Answer}, true, nil
}

// outside refuses writes to the inbox itself.
func (b *Inbox[Tx]) outside(writes []messagestore.StreamWrite) error {
	for _, w := range writes {
		if w.Stream.Category() == b.inbox {
			return messagestore.NewInvalidError("writes", string(w.Stream), "must not name a stream of the inbox itself")
		}
	}
	return nil
}

// won returns the result of a message of the inbox that was committed now.
func won(
	key string, stream messagestore.StreamName, id uuid.UUID, messageType string, outcome reservation.Outcome, a keys.Attempt,
) reservation.Result {
	w := a.Written
	winner := &messagestore.Message{ID: id, Stream: stream, Position: w.Version, GlobalPosition: w.GlobalPosition, Time: w.Time, Type: messageType}
	return reservation.Result{Outcome: outcome, Key: key, Stream: stream, Winner: winner, Answer: a.Answer}
}
