package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// parked is the first message of a dead-letter stream, and each later one that says
// that the handler failed again.
type parked struct {
	Consumer       string                      `json:"consumer"`
	MessageID      uuid.UUID                   `json:"messageId"`
	Type           string                      `json:"type"`
	Stream         messagestore.StreamName     `json:"stream"`
	Position       messagestore.Version        `json:"position"`
	GlobalPosition messagestore.GlobalPosition `json:"globalPosition"`
	Time           time.Time                   `json:"time"`
	Data           json.RawMessage             `json:"data,omitempty"`
	Metadata       *messagestore.Metadata      `json:"metadata,omitempty"`

	// Omitted says that data and metadata are not here, because the message would
	// have been too large or too deep with them: they are where stream and position
	// say.
	Omitted bool `json:"omitted,omitempty"`

	// Interrupted says that a redrive was stopped, and gave back what it had claimed.
	Interrupted bool `json:"interrupted,omitempty"`

	Error         string    `json:"error"`
	Attempts      int       `json:"attempts"`
	FirstFailedAt time.Time `json:"firstFailedAt"`
}

func (parked) MessageType() string { return "Parked" }

func newParked(consumer string, m *messagestore.Message, err error) parked {
	return parked{
		Consumer:       consumer,
		MessageID:      m.ID,
		Type:           m.Type,
		Stream:         m.Stream,
		Position:       m.Position,
		GlobalPosition: m.GlobalPosition,
		Time:           m.Time,
		Data:           m.Data,
		Metadata:       &m.Metadata,
		Error:          errorText(err),
	}
}

// recorded returns the message that was parked.
func (p *parked) recorded() *messagestore.Message {
	m := &messagestore.Message{
		ID:             p.MessageID,
		Stream:         p.Stream,
		Position:       p.Position,
		GlobalPosition: p.GlobalPosition,
		Time:           p.Time,
		Type:           p.Type,
		Data:           p.Data,
	}
	if p.Metadata != nil {
		m.Metadata = *p.Metadata
	}
	return m
}

// deadLetter returns the stream for the message with the given id.
func (c *Consumer) deadLetter(id uuid.UUID) messagestore.StreamName {
	return c.deadLetters().Stream(c.name).With(id.String())
}

func (c *Consumer) deadLetters() messagestore.Category { return c.category.WithType("deadLetter") }

// park writes a message to its dead-letter stream. That it is parked there already
// is an answer: the consumer ended between parking it and recording its position.
// If it was redriven since, it is parked anew. Nothing is parked that the store has lost,
// nor by a run that is fenced.
func (r *run) park(ctx context.Context, it *item) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := r.check(ctx, r.place, it.message.Mark()); err != nil {
		return fmt.Errorf("park: %w", err)
	}
	p := newParked(r.name, it.message, it.lastErr)
	p.Attempts = it.attempts
	p.FirstFailedAt = it.firstFailed.UTC()
	for version := messagestore.NoStream; ; {
		err := r.writeParked(ctx, version, it.message, p)
		if err == nil {
			break
		}
		if !errors.Is(err, messagestore.ErrVersionConflict) {
			return fmt.Errorf("park: %w", err)
		}
		l, readErr := r.readLetter(ctx, r.deadLetter(it.message.ID))
		switch {
		case readErr != nil:
			return fmt.Errorf("park: %w", readErr)
		case l.open:
			return nil
		case l.version <= version:
			return fmt.Errorf("park: %w", err) // nobody was first: it is no conflict
		}
		version = l.version
		p.Attempts = l.Attempts + it.attempts
		if !l.FirstFailedAt.IsZero() {
			p.FirstFailedAt = l.FirstFailedAt
		}
	}
	r.config.Logger.Error().Str("consumer", r.name).Str("type", p.Type).Str("stream", string(p.Stream)).
		Int64("position", int64(p.Position)).Int("attempts", p.Attempts).Str("error", p.Error).Msg("message parked")
	return nil
}

// writeParked writes p, with as much of m as the store takes: another client may
// have written m by other rules than ours.
func (c *Consumer) writeParked(ctx context.Context, expected messagestore.Version, m *messagestore.Message, p parked) error {
	bare := p
	bare.Data, bare.Metadata, bare.Omitted = nil, nil, true
	return c.writeLetter(ctx, expected, m, messagestore.Follow(m, p), messagestore.Follow(m, bare), causedBy(m, bare), messagestore.Envelope{Body: bare})
}

// causedBy is [messagestore.Follow] for what may not grow with m.
func causedBy(m *messagestore.Message, body messagestore.Body) messagestore.Envelope {
	return messagestore.Envelope{Body: body, Metadata: messagestore.Metadata{
		CausationStream:         m.Stream,
		CausationPosition:       m.Position,
		CausationGlobalPosition: m.GlobalPosition,
	}}
}

// writeLetter writes the first of the choices that the store takes to m's
// dead-letter stream.
func (c *Consumer) writeLetter(ctx context.Context, expected messagestore.Version, m *messagestore.Message, choices ...messagestore.Envelope) error {
	var err error
	for _, choice := range choices {
		_, err = c.store.Write(ctx, c.deadLetter(m.ID), expected, choice)
		if !errors.Is(err, messagestore.ErrInvalid) {
			break
		}
	}
	return err
}
