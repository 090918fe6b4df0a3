package deadletter

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// Drop closes the open letter for the message with an id: the message is not handled, and will
// not be redriven. The letter's stream keeps the reason, and a trim may then remove the message.
// It returns the letter as it was.
//
// The error is a [*NotParkedError] if there is no open letter, and matches
// [messagestore.ErrInvalid] for a reason that is empty, longer than 1024 bytes or not UTF-8. Then
// nothing is changed. A redrive that has begun goes on, and the first outcome stands.
func (l *Entries) Drop(ctx context.Context, id uuid.UUID, reason string) (*Entry, error) {
	dropped, err := l.drop(ctx, id, reason)
	if err != nil {
		return nil, l.failed("drop dead letter", err)
	}
	return dropped, nil
}

func (l *Entries) drop(ctx context.Context, id uuid.UUID, reason string) (*Entry, error) {
	if err := errors.Join(l.consumer.Validate(), CheckReason(reason)); err != nil {
		return nil, err
	}
	for {
		s, err := l.read(ctx, l.consumer.DeadLetter(id))
		if err != nil {
			return nil, err
		}
		if !s.open {
			return nil, l.notParked(id)
		}
		of := &messagestore.Message{Stream: s.Stream, Position: s.Position, GlobalPosition: s.GlobalPosition}
		_, err = l.write(ctx, s.DeadLetter, s.version, about(of, redriven{Attempts: s.Attempts, Dropped: reason}))
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // after a redrive, or another drop
		}
		return &s.Entry, err
	}
}

// CheckReason returns nil, or an error that matches [messagestore.ErrInvalid] if [Entries.Drop] and
// [Entries.RequestPark] would refuse the reason.
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
	Entry          messagestore.Version        `json:"letter"` // the version of the dead letter's stream
	Reason         string                      `json:"reason"`
}

func (parkRequested) MessageType() string { return "ParkRequested" }

// RequestPark asks the consumer to park a message, with a reason that the dead letter keeps. It is
// for the message at which a consumer is stuck.
//
// The request is stored beside the dead letters. The consumer that has the message's part of the
// category carries it out. A running consumer parks the message in place of the next retry, once
// it has found the request, which takes at most its RedriveInterval. A stopped consumer parks the
// message at its next start, without delivering it. A handler that has the message is not
// interrupted. If the message is handled before, nothing is parked, and the consumer logs that.
//
// It reports false if the message is parked already. The error matches [messagestore.ErrInvalid]
// for a message of another category, and for a reason that is empty, longer than 1024 bytes or not
// one line of UTF-8.
func (l *Entries) RequestPark(ctx context.Context, m *messagestore.Message, reason string) (requested bool, err error) {
	if requested, err = l.requestPark(ctx, m, reason); err != nil {
		return false, l.failed("request park", err)
	}
	return requested, nil
}

func (l *Entries) requestPark(ctx context.Context, m *messagestore.Message, reason string) (bool, error) {
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
			MessageID: m.ID, Stream: m.Stream, Position: m.Position, GlobalPosition: m.GlobalPosition, Entry: s.version, Reason: reason,
		})
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue
		}
		return err == nil, err
	}
}
