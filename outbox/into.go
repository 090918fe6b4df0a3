package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// Into returns a sink that writes each message to another store, with its id, type, data and
// metadata, to the stream that name returns. A nil name keeps the message's stream. The function
// name must always return the same stream for a message.
//
// The other store stores each message once, even if it is sent several times, because it recognises
// the message's id. If the store refuses a message, the message is dead: it breaks a rule
// ([messagestore.ErrInvalid]), or another message has its id ([messagestore.ErrIDConflict]). Any
// other error is caused by the store, and the message is sent again.
//
// The store must be another one than the relay's, because a store accepts an id only once. Two
// stores over one database count as one. You close the store. If store is nil, the error matches
// [messagestore.ErrInvalid]. Into writes nothing.
func Into(store *messagestore.Store, name func(m *Message) messagestore.StreamName) (Sink, error) {
	if store == nil {
		return nil, fmt.Errorf("invalid sink into another store: %w", messagestore.NewInvalidError("store", nil, "must not be nil"))
	}
	return &storeSink{store, name}, nil
}

type storeSink struct {
	store *messagestore.Store
	name  func(m *Message) messagestore.StreamName
}

// Send writes m, unless the store already has it.
func (s *storeSink) Send(ctx context.Context, m *Message) error {
	if err := given(m); err != nil {
		return fmt.Errorf("into another store: %w", err)
	}
	stream := m.Stream
	if s.name != nil {
		stream = s.name(m)
	}
	_, err := s.store.Write(ctx, stream, messagestore.AnyVersion, messagestore.Envelope{ID: m.ID, Body: m.Body(), Metadata: m.Metadata})
	wrong, _ := errors.AsType[*messagestore.InvalidError](err)
	switch {
	case err == nil:
		return nil
	case wrong != nil && wrong.Field == "store": // the zero Store: it is not the message's fault
	case errors.Is(err, messagestore.ErrInvalid), errors.Is(err, messagestore.ErrIDConflict):
		return handler.Refuse(fmt.Errorf("into another store: %w", err))
	}
	return fmt.Errorf("into another store: %w", err)
}
