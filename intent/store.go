package intent

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// A Store has the methods of [messagestore.Store] that intents need. Every step of an intent is one
// of its writes.
//
// If a store can only write to one stream at a time, its TryWriteStreams returns an error that
// matches [messagestore.ErrNotSupported]: then requests with several keys, and other streams in
// [Lease.Confirm], return that error.
type Store interface {
	// TryWrite appends bodies to stream if the stream is at the expected version. If it is not,
	// TryWrite writes nothing and returns the stream's last message and the store's time, both of
	// the same moment.
	TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error)

	// TryWriteStreams does the same for several streams: either all or nothing is written.
	TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error)

	// Last returns the last message of stream, or an error that matches
	// [messagestore.ErrNotFound].
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)

	// Now returns the time of the clock that stamps messages.
	Now(ctx context.Context) (time.Time, error)
}

// A CategoryStore is a [Store] that can be read by category, as [messagestore.Store] can. With it a
// manager notices the end of a lease at once; with another store it asks every 50 ms while a caller
// waits. [Manager.List] and [Config.KeyLife] need a CategoryStore.
type CategoryStore interface {
	Store

	// Watch returns a channel of wake-ups: see [messagestore.Store.Watch].
	Watch(category messagestore.Category, interval time.Duration) (bell <-chan messagestore.GlobalPosition, stop func())

	// ReadCategoryPage returns a batch of a category's messages.
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)

	// PositionAt returns the position of the first message of category that was written at t or
	// later.
	PositionAt(ctx context.Context, category messagestore.Category, t time.Time) (messagestore.GlobalPosition, error)

	// Forgets reports whether an operator can remove intents. [Config.KeyLife] needs that.
	Forgets() bool
}

var _ CategoryStore = (*messagestore.Store)(nil)

// pollInterval is how often a manager reads an intent for a waiting caller, if the store is not a
// [CategoryStore].
const pollInterval = 50 * time.Millisecond
