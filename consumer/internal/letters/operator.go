package letters

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// Drop closes an open letter: see deadletter.Entries.Drop.
func (l *Letters) Drop(ctx context.Context, id uuid.UUID, reason string) (*Letter, error) {
	dropped, err := l.drop(ctx, id, reason)
	if err != nil {
		return nil, l.failed("drop dead letter", err)
	}
	return dropped, nil
}

func (l *Letters) drop(ctx context.Context, id uuid.UUID, reason string) (*Letter, error) {
	if err := errors.Join(l.consumer.Validate(), CheckReason(reason)); err != nil {
		return nil, err
	}
	for {
		s, err := l.read(ctx, l.consumer.DeadLetter(id))
		if err != nil {
			return nil, err
		}
		if s.corrupt != nil {
			s.ID = id
		} else if !s.open {
			return nil, l.notParked(id)
		}
		of := &messagestore.Message{Stream: s.Stream, Position: s.Position, GlobalPosition: s.GlobalPosition}
		_, err = l.write(ctx, s.DeadLetter, s.version, about(of, redriven{Attempts: s.Attempts, Dropped: reason}))
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // after a redrive, or another drop
		}
		return &s.Letter, err
	}
}

// CheckReason returns nil, or the error with which [Letters.Drop] and [Letters.RequestPark] refuse a reason.
func CheckReason(reason string) error {
	switch {
	case reason == "":
		return messagestore.NewInvalidError("reason", nil, "there is none")
	case len(reason) > text.Max:
		return messagestore.NewInvalidError("reason", reason, fmt.Sprintf("it is longer than %d bytes", text.Max))
	case !utf8.ValidString(reason) || text.Shorten(reason) != reason:
		return messagestore.NewInvalidError("reason", reason, "it is not one line of UTF-8")
	}
	return nil
}

// parkRequested asks the consumer to park a message. It is settled once the message is behind
// the consumer's checkpoint.
type parkRequested struct {
	MessageID      uuid.UUID                   `json:"messageId"`
	Stream         messagestore.StreamName     `json:"stream"`
	Position       messagestore.Version        `json:"position"`
	GlobalPosition messagestore.GlobalPosition `json:"globalPosition"`
	Letter         messagestore.Version        `json:"letter"` // the version of the dead letter's stream
	Reason         string                      `json:"reason"`
}

func (parkRequested) MessageType() string { return "ParkRequested" }

// RequestPark asks the consumer to park a message: see deadletter.Entries.RequestPark.
func (l *Letters) RequestPark(ctx context.Context, m *messagestore.Message, reason string) (requested bool, err error) {
	if requested, err = l.requestPark(ctx, m, reason); err != nil {
		return false, l.failed("request park", err)
	}
	return requested, nil
}

func (l *Letters) requestPark(ctx context.Context, m *messagestore.Message, reason string) (bool, error) {
	if err := errors.Join(l.consumer.Validate(), CheckReason(reason)); err != nil {
		return false, err
	}
	if m == nil || m.Stream.Category() != l.consumer.Category {
		return false, messagestore.NewInvalidError("message", m, "it is not of the consumer's category")
	}
	for {
		s, err := l.read(ctx, l.consumer.DeadLetter(m.ID))
		if err != nil || s.open {
			return false, err
		}
		version, err := l.store.Version(ctx, l.consumer.Requests())
		if err != nil {
			return false, err
		}
		_, err = l.store.Write(ctx, l.consumer.Requests(), version, parkRequested{
			MessageID: m.ID, Stream: m.Stream, Position: m.Position, GlobalPosition: m.GlobalPosition, Letter: s.version, Reason: reason,
		})
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue
		}
		return err == nil, err
	}
}
