package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A State is where an item is.
type State string

// The states of items. An item is beyond the queue's cursor, or open, or finished.
const (
	Waiting   State = State(queuing.Waiting)   // beyond the cursor: no worker has met it
	Out       State = State(queuing.Out)       // delivered
	Later     State = State(queuing.Later)     // offered at a time, which may have come
	Held      State = State(queuing.Held)      // behind another of its key
	Dead      State = State(queuing.Dead)      // given up, until a person retries or drops it
	Finished  State = State(queuing.Finished)  // by a worker, or by an operator
	Suspended State = State(queuing.Suspended) // offered by a message, its time or an operator, as a saga's item is
)

// An Item is what is known of an item.
type Item struct {
	Message  *messagestore.Message // nil for an open item whose message was removed
	Position messagestore.GlobalPosition
	State    State
	Version  int                         // how often it was given back
	Failures int                         // that count against [Config].MaxFailures
	Session  int64                       // Out: the worker's
	Until    time.Time                   // Out: when the worker's lease is over, unless it is extended; it may have passed
	Due      time.Time                   // Later and Suspended, and of a held item the time before which it is not offered
	Behind   messagestore.GlobalPosition // Held: the item for which it waits
	Closed   bool                        // Dead, and later items of its key are held
	Error    string                      // of the last failure or suspension; the log says what else gave the item back
	Note     string                      // Out: of [Job.Progress]
	Log      []LogEntry                  // of [Queue.Item] and [Queue.Await], in order
}

// A LogEntry says how a delivery of an item, or a state of it, ended without finishing the item as its worker does.
type LogEntry struct {
	Version int

	// What ended it: failed, deferred, given back, buried, or session over; or an operator's retried, dropped or cancelled;
	// or message removed.
	What string

	Time    time.Time
	Session int64
	Text    string // the error, or the operator's reason
}

func itemOf(of queuing.Item) Item {
	item := Item{
		Message: of.Message, Position: of.Position, State: State(of.State), Version: of.Version, Failures: of.Failures, Session: of.Session,
		Until: of.Until, Due: of.Due, Behind: of.Behind, Closed: of.Closed, Error: of.Error, Note: of.Note,
	}
	for _, e := range of.Log {
		item.Log = append(item.Log, LogEntry{Version: e.Version, What: e.What.String(), Time: e.Time, Session: e.Session, Text: e.Text})
	}
	return item
}

// A Status is how a queue stands.
type Status struct {
	Name     string
	Category messagestore.Category

	Streams bool // a stream is one item, as in the queue of a saga
	Parked  bool // its items are a consumer's parked messages
	Paused  bool

	// Cursor is the position up to which workers have met all messages. Waiting says that something is beyond it.
	Cursor  messagestore.GlobalPosition
	Waiting bool

	Out, Later, Suspended, Held, Dead int64

	Due      int64     // of Later, those whose time has come
	Sessions int64     // of workers, that are not over
	Oldest   time.Time // the item that was written first and is open, but not dead; zero for none
	Time     time.Time // of the store's clock, at which all this was so

	// Changed is the time of the last change, and zero for none. If it is after Time, the clock was ahead then, or was set
	// back since: the next worker that asks for items sees to it.
	Changed time.Time

	// Counts since the queue began: deliveries, deliveries that gave the item back, items that became dead, and items that were
	// finished, also by an operator, or because the message was removed.
	Taken, Back, Buried, Finished int64
}

func statusOf(s queuing.Status) Status {
	return Status{
		Name: s.Name, Category: s.Category, Streams: s.Streams, Parked: s.Parked, Paused: s.Paused, Cursor: s.Cursor, Waiting: s.Waiting,
		Out: s.Out, Later: s.Later, Suspended: s.Suspended, Held: s.Held, Dead: s.Dead, Due: s.Due, Sessions: s.Sessions,
		Oldest: s.Oldest, Time: s.Time, Changed: s.Changed, Taken: s.Taken, Back: s.Back, Buried: s.Buried, Finished: s.Finished,
	}
}

// All returns how the queues of a store stand, relays and sagas included, by name: those that something was ever reserved from, or
// that were changed, and that are not removed. The error matches [messagestore.ErrNotSupported] for a store whose driver keeps no
// queues.
func All(ctx context.Context, store *messagestore.Store) ([]Status, error) {
	if ctx == nil {
		return nil, messagestore.NewInvalidError("context", nil, "it is nil")
	}
	driver, err := queuing.Of(store)
	if err != nil {
		return nil, fmt.Errorf("queues: %w", err)
	}
	found, err := driver.Queues(ctx)
	if err != nil {
		return nil, fmt.Errorf("queues: %w", err)
	}
	all := make([]Status, len(found))
	for i, s := range found {
		all[i] = statusOf(s)
	}
	return all, nil
}
