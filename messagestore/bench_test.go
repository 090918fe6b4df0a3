package messagestore_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

// A nowhere is a driver that accepts everything and keeps nothing.
type nowhere struct{ messagestore.Driver }

func (nowhere) Append(context.Context, messagestore.Append) (messagestore.Written, error) {
	return messagestore.Written{}, nil
}

type moved struct {
	AccountID string `json:"accountId"`
	Amount    int64  `json:"amount"`
	Reference string `json:"reference"`
}

func (moved) MessageType() string { return "Moved" }

// BenchmarkWrite measures a write before it comes to the driver: a message is checked and
// encoded.
func BenchmarkWrite(b *testing.B) {
	store := must.New(messagestore.New(nowhere{}, nil))
	m := messagestore.Envelope{
		ID:   uuid.Must(uuid.NewV7()),
		Body: moved{"CZ6508000000192000145399", 12_300, "rent of the flat on the second floor for the month of November"},
		Metadata: messagestore.Metadata{
			CausationStream: "account:command-01932b5c-8f4e-7d11-a1b2-c3d4e5f60718", CausationPosition: 7, CausationGlobalPosition: 123_456,
		},
	}
	b.ReportAllocs()
	for b.Loop() {
		must.Do(store.Write(b.Context(), "account-01932b5c-8f4e-7d11-a1b2-c3d4e5f60718", 6, m))(b)
	}
}
