package queuing

import (
	"context"
	"iter"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A Repeat names an attempt at a Receive. With [uuid.Nil] the call has an id of its own.
type Repeat struct {
	ID      uuid.UUID
	Attempt int
	Only    bool // it reserves nothing that earlier attempts have not
}

// A Remote is a queue that a server keeps. It stands in for the store of a queue: its queue is
// always the one of the remote's own. Each take of it that reserves items has a session of its own
// ([Taking].Session), and:
//
//   - QueueTake has no Others. It does not wait, and reserves nothing while a call of its own waits at the server for
//     a worker. The channel of Watch receives when that call has ended, and QueueReady reports it.
//     A QueueTake with an unknown outcome is taken up by the next one.
//   - QueueLeave returns once nothing more will come of the calls that waited before the stop of
//     Watch. It ends no session.
//   - What needs the store's database returns [messagestore.ErrNotSupported].
type Remote interface {
	Keeper

	Watch(category messagestore.Category, interval time.Duration) (bell <-chan messagestore.GlobalPosition, stop func())

	// Receive is a take that waits at the server, in line with all callers.
	Receive(ctx context.Context, t Take, repeat Repeat, wait time.Duration) (Taken, error)

	// Insert inserts items, and returns what became of each. If it fails, what became of the first
	// ones may be known.
	Insert(ctx context.Context, items []NewItem) ([]Inserted, error)

	// AwaitItem is QueueItem for a caller that waits for the end of the item. It also returns when
	// it has waited for long enough.
	AwaitItem(ctx context.Context, q Queue, position messagestore.GlobalPosition) (Item, error)

	// SetPolicy stores the policy of the queue.
	SetPolicy(ctx context.Context, p Policy) error

	// Last and ReadStreamBackwards are methods of the store's. Only [messagestore.EndOfStream] is
	// read from.
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	ReadStreamBackwards(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
}

// A NewItem is an item to insert.
type NewItem struct {
	messagestore.Encoded

	Key    string
	Unique string
	Until  int // the UniqueUntil of package queue
}

// Inserted says what became of a new item.
type Inserted struct {
	ID       uuid.UUID                   // of the item that is there
	Position messagestore.GlobalPosition // of the same; 0 with Conflict

	Duplicate bool // it was there
	Reused    bool // another item has its unique name
	Conflict  bool // another message has its id
}
