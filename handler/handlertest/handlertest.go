// Package handlertest tests handlers: it makes messages for a function that a test calls directly,
// and it runs scenarios: given events, when a command, then events. [New] runs a scenario over a
// store in memory, without a database, and [Over] runs one over the test's own store, for handlers
// with SQL.
//
//	err := accounts.deposit(t.Context(), handlertest.Message(t, Deposit{Amount: 10}, nil))
package handlertest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// Config says where and when a message was recorded. Nil means all defaults.
type Config struct {
	// Stream is the message's stream.
	//
	// Defaults to "test-1".
	Stream messagestore.StreamName

	// Position is the message's position in its stream. If it is below 0, the test fails.
	//
	// Defaults to 0, the first.
	Position messagestore.Version

	// GlobalPosition is the message's global position. If it is below 0, the test fails.
	//
	// Defaults to one more than Position.
	GlobalPosition messagestore.GlobalPosition

	// ID is the message's id.
	//
	// Defaults to a new id.
	ID uuid.UUID

	// Time is when the message was recorded.
	//
	// Defaults to now.
	Time time.Time

	// Metadata is the message's metadata.
	//
	// Defaults to none.
	Metadata messagestore.Metadata
}

// Message returns body in the form that a handler gets: encoded, recorded and decoded again. If a
// store would refuse the body, t fails.
func Message[T messagestore.Body](t testing.TB, body T, config *Config) handler.Message[T] {
	t.Helper()
	recorded := Stored(t, body, config)
	decoded, err := messagestore.Decode[T](recorded)
	if err != nil {
		t.Fatalf("handlertest: %v", err)
	}
	return handler.Message[T]{Body: decoded, Message: recorded}
}

// Stored returns body in the form that a consumer gets. If a store would refuse the body, t fails.
func Stored(t testing.TB, body messagestore.Body, config *Config) *messagestore.Message {
	t.Helper()
	var c Config
	if config != nil {
		c = *config
	}
	if c.Stream == "" {
		c.Stream = "test-1"
	}
	switch {
	case c.Position < 0:
		t.Fatalf("handlertest: the position of a message is not %d: the first is 0", c.Position)
	case c.GlobalPosition < 0:
		t.Fatalf("handlertest: the global position of a message is not %d: the first is 1", c.GlobalPosition)
	}
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		t.Fatalf("handlertest: %v", err)
	}
	_, err = store.Write(context.Background(), c.Stream, messagestore.NoStream, messagestore.Envelope{ID: c.ID, Body: body, Metadata: c.Metadata})
	if err != nil {
		t.Fatalf("handlertest: %v", err)
	}
	recorded, err := store.Last(context.Background(), c.Stream)
	if err != nil {
		t.Fatalf("handlertest: %v", err)
	}
	recorded.Position = c.Position
	if recorded.GlobalPosition = c.GlobalPosition; c.GlobalPosition == 0 {
		recorded.GlobalPosition = messagestore.GlobalPosition(c.Position) + 1
	}
	if !c.Time.IsZero() {
		recorded.Time = c.Time.UTC().Truncate(time.Microsecond)
	}
	return recorded
}
