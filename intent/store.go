package intent

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// A Store is the part of [messagestore.Store] that intents need. Every step of an intent is one
// of its writes.
//
// [Config.KeyLife] needs a store that has [messagestore.Store.Forgets] too, and returns true from it.
//
// A store that can write to one stream at a time returns an error that matches
// [messagestore.ErrNotSupported] from TryWriteStreams: then requests of several keys, and
// other streams in [Lease.Confirm], are refused with it.
type Store interface {
	// TryWrite appends bodies to stream if it is at the expected version. If it is not, it
	// writes nothing and returns the stream's last message and the store's time, of one moment.
	TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error)

	// TryWriteStreams does the same for several streams: all of it is written, or nothing.
	TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error)

	// Last returns the last message of stream, or an error that matches
	// [messagestore.ErrNotFound].
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)

	// Now returns the time of the clock that stamps messages.
	Now(ctx context.Context) (time.Time, error)
}

// A CategoryStore is a [Store] that can be read by category, as [messagestore.Store] can. A
// manager over one hears of the end of a lease at once; over another it asks every
// 50 ms while a caller waits. [Manager.List] needs one.
type CategoryStore interface {
	Store

	// Watch returns a channel of wake-ups: see [messagestore.Store.Watch].
	Watch(category messagestore.Category, interval time.Duration) (bell <-chan messagestore.GlobalPosition, stop func())

	// ReadCategoryPage returns a batch of a category's messages.
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)

	// PositionAt returns the position from which messages of category were written at t or
	// later.
	PositionAt(ctx context.Context, category messagestore.Category, t time.Time) (messagestore.GlobalPosition, error)
}

var _ CategoryStore = (*messagestore.Store)(nil)

// pollInterval is how often a manager looks at an intent that a caller waits for, over a store
// that is no [CategoryStore].
const pollInterval = 50 * time.Millisecond
