package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A State says where an item is.
type State string

// The states of items. An item is beyond the queue's cursor, or open, or finished.
const (
	Waiting   State = State(queuing.Waiting)   // beyond the cursor: no worker has met it
	Out       State = State(queuing.Out)       // delivered
	Later     State = State(queuing.Later)     // offered at a time, which may have come
	Held      State = State(queuing.Held)      // behind another item of its key
	Dead      State = State(queuing.Dead)      // given up, until a person retries or drops it
	Finished  State = State(queuing.Finished)  // by a worker, or by an operator
	Suspended State = State(queuing.Suspended) // offered by a message, its time or an operator, like a saga's item
)

// An Item has the facts about an item.
type Item struct {
	Message  *messagestore.Message // nil for an open item whose message was removed
	Position messagestore.GlobalPosition
	State    State
	Version  int                         // how often it was given back
	Failures int                         // that count against [Config].MaxFailures
	Session  int64                       // Out: the worker's
	Until    time.Time                   // Out: when the worker's lease is over, unless it is extended; it may have passed
	Due      time.Time                   // Later and Suspended; for a held item the time before which it is not offered
	Behind   messagestore.GlobalPosition // Held: the item for which it waits
	Closed   bool                        // Dead, and later items of its key are held
	Error    string                      // of the last failure or suspension; the log has the other reasons
	Note     string                      // Out: from [Job.Progress]
	Log      []LogEntry                  // only from [Queue.Item] and [Queue.Await], in order
}

// A LogEntry says how a delivery or a state of an item ended without its worker finishing the item.
type LogEntry struct {
	Version int

	// What is the reason: failed, deferred, given back, buried, or session over; retried, dropped
	// or cancelled by an operator; or message removed.
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

// A Status is the state of a queue.
type Status struct {
	Name     string
	Category messagestore.Category

	Streams bool // a stream is one item, as in the queue of a saga
	Parked  bool // its items are a consumer's parked messages
	Paused  bool

	// Cursor is the position up to which workers have met all messages. Waiting says that there are
	// messages beyond it.
	Cursor  messagestore.GlobalPosition
	Waiting bool

	// Partial says that the queue has 10,000 open items or more, so that [Queue.Status] has counted
	// the first 10,000, in order of position: there may be more in each state, and more were due.
	// Then Finished may be too high, by those that are out and were not counted, and Oldest is of
	// the counted ones. [All] counts all items, and is never partial.
	Partial bool

	Out, Later, Suspended, Held, Dead int64

	Due      int64     // of Later, the items whose time has come
	Sessions int64     // workers' sessions that are not over
	Oldest   time.Time // when the oldest item that is open and not dead was written; zero for none
	Time     time.Time // of the store's clock, when this was the state

	// Changed is the time of the last change, zero if nothing was changed. If it is after Time, the
	// clock was ahead then, or was set back since; the next worker that asks for items corrects
	// that.
	Changed time.Time

	// Counts since the queue began: deliveries, deliveries that gave the item back, items that
	// became dead, and finished items, including those finished by an operator or because the
	// message was removed.
	Taken, Back, Buried, Finished int64
}

func statusOf(s queuing.Status) Status {
	return Status{
		Name: s.Name, Category: s.Category, Streams: s.Streams, Parked: s.Parked, Paused: s.Paused, Partial: s.Partial, Cursor: s.Cursor, Waiting: s.Waiting,
		Out: s.Out, Later: s.Later, Suspended: s.Suspended, Held: s.Held, Dead: s.Dead, Due: s.Due, Sessions: s.Sessions,
		Oldest: s.Oldest, Time: s.Time, Changed: s.Changed, Taken: s.Taken, Back: s.Back, Buried: s.Buried, Finished: s.Finished,
	}
}

// All returns the states of a store's queues by name, relays and sagas included. It counts all open
// items, which takes about half a second for a million of them. It leaves out
// queues that nothing was ever reserved from or changed in, and removed ones. The error matches
// [messagestore.ErrNotSupported] if the store's driver keeps no queues.
func All(ctx context.Context, store *messagestore.Store) ([]Status, error) {
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
