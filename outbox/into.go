package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// Into returns a sink that writes each message to another store, with its id, type, data and metadata,
// to the stream that name returns. A nil name keeps the message's stream. The name of a message is always
// the same.
//
// The other store has each message once, however often it is sent: it knows a message's id. A message that
// the store refuses is dead: it breaks a rule ([messagestore.ErrInvalid]), or another message has its id
// ([messagestore.ErrIDConflict]). Any other error is the store's, and the message is sent again.
//
// The store is another one than the relay's: a store has an id once. Two stores over one database are
// one. The caller closes the store. Into returns an error that matches [messagestore.ErrInvalid] for a store that is
// nil, and writes nothing.
func Into(store *messagestore.Store, name func(m *Message) messagestore.StreamName) (Sink, error) {
	if store == nil {
		return nil, fmt.Errorf("invalid sink into another store: %w", messagestore.NewInvalidError("store", nil, "it is nil"))
	}
	return &storeSink{store, name}, nil
}

type storeSink struct {
	store *messagestore.Store
	name  func(m *Message) messagestore.StreamName
}

// Send writes m, unless the store has it.
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
