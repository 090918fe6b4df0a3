// Package queuing is what package queue asks of a driver: the state of queues. Package internal/queuetest says, as tests,
// everything that a driver promises.
//
// A queue reads one category, and each message of it is an item of the queue. What the driver keeps is a
// cursor, up to which all messages of the category were looked at, and a row for each item behind the cursor
// that is not finished: it is open. So an item is beyond the cursor, or open, or finished. Several
// queues may read one category; each gets every message.
//
// An item is delivered to a session, under a version. Whatever gives it back raises the version, so position and version name a
// delivery, and with the session they are the fence: a call about another version, or of another session, is told that the
// delivery is lost. A session is a number that nobody can guess, so a call that reaches another database ends nothing there. What
// became of each delivery that did not finish its item is in the item's log.
//
// Of a stream one item is out at a time, in the order of the stream. An item behind another of its stream that is
// open is held, until that one is finished or dead.
//
// In a queue of streams, which takes with [Take].Wakes make, only the first message of each stream is an item, and it
// lasts until it is completed. A delivery of it is a turn, in which the worker reads the stream, and which it ends with
// [Wait] or [Suspend] while there is more to come. Later messages of the stream of certain types wake the item.
//
// A queue of parked messages, which [Driver.QueuePark] makes, follows no category: its items are the messages that were parked, and
// takes with [Take].Slots deliver those that an operator has offered again. Its cursor is [NoCursor].
package queuing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Driver keeps the state of queues beside the messages. All methods but Finish are steps of their own: in a
// transaction of the caller's they return [messagestore.ErrNotSupported].
//
// Of two calls for one queue that change something, the second sees all of the first. Every change is atomic. A call
// whose error matches [messagestore.ErrOutcomeUnknown] may have changed the queue; all methods but QueueTake may be
// called again for the same with the same answer, and QueueTake does if the session is another one: see [Taken].
//
// The time of a queue is that of the store's clock. A clock may be ahead for a while, or be set back: where a take finds the clock
// behind the time of the queue's last change by more than [ClockTolerance], the delays, leases and places in the line that were
// computed by that time are counted from now on. The date of a message stays as it is. What decides about deliveries are
// versions, so no promise but those about time hangs on the clock.
type Driver interface {
	messagestore.Driver

	// QueueTake finishes deliveries, gives back what sessions that are over have out, and reserves items for a
	// session, in this order.
	//
	// The end of a session is a failure of an item that it had out alone, and with it count the ends before; of several it is a
	// failure of none. It gives back at once the first time, and then after 2, 4, 8 seconds of ends, up to an hour. From the second
	// end on an item is reserved alone: by a session that has nothing out, and that reserves nothing more until the item's delivery
	// ends. A session that has items out reserves none until it has none, while such an item is due and no other session waits so.
	QueueTake(ctx context.Context, t Take) (Taken, error)

	// QueueReady reports whether a take may find something, without changing anything and without waiting for
	// another call. It may be wrong in one way: true though there is nothing.
	QueueReady(ctx context.Context, q Queue) (Ready, error)

	// QueueExtend has a session last its lease from now on, and returns which of the deliveries are not the session's
	// any more: all of them if the session was over.
	QueueExtend(ctx context.Context, e Extension) (lost []Delivery, err error)

	// QueueLeave ends a session. What it has out is offered again at once, and counts no failure; but what is kept
	// goes to the next session, if that is not 0.
	QueueLeave(ctx context.Context, l Leave) error

	// QueueFinish completes deliveries of a session without waiting for another call, in the caller's transaction if the
	// driver is over one. It tells [Done] or [Lost] of each: Lost of all if the queue does not know the session, as in another
	// database whose positions are alike. A take that reports them as [Committed] lets
	// go what is held behind them. A queue of streams is refused: a take ends its deliveries, for a completion that
	// is rolled back would lose what woke the item meanwhile.
	QueueFinish(ctx context.Context, q Queue, session int64, deliveries []Delivery) ([]Ending, error)

	// QueueChange does what an operator asks for, to the items that are in a state for it, and returns their
	// positions.
	QueueChange(ctx context.Context, c Change) (changed []messagestore.GlobalPosition, err error)

	// QueuePark has a queue of parked messages know a message: as a dead item, or as a suspended one that is to be parked. It reports
	// whether it did: a message that is an open item stays as it is, but that one to be parked is parked, or is finished. So however many
	// processes park a message, it is one item. A message that is finished, or was, is parked anew. A message that is not there, and
	// so was removed, is not parked. A queue that follows its category is refused.
	QueuePark(ctx context.Context, p Parking) (parked bool, err error)

	// QueueRemove ends a queue: nothing of it is kept but its name, which takes and changes refuse from then on with
	// [ErrRemoved], so that no worker that still runs begins again with the first message of the category. A queue whose
	// items are not all finished is left as it is, unless the removal says otherwise. A queue that is not there, or is
	// removed, is no error.
	QueueRemove(ctx context.Context, r Removal) (RemovedQueue, error)

	// QueueItem returns what is known of an item. A position at which the queue's category has no message, and in a queue
	// of streams no first one, is [messagestore.ErrNotFound].
	QueueItem(ctx context.Context, q Queue, position messagestore.GlobalPosition) (Item, error)

	// QueueItems returns open items in a state, in order of position. A list ends before its messages would have more than
	// [MaxListBytes] of data, but has one item at least: whoever wants all asks on from the last until a list is empty.
	QueueItems(ctx context.Context, l List) ([]Item, error)

	// Queues returns the queues that were ever taken from or changed and are not removed, by name.
	Queues(ctx context.Context) ([]Status, error)
}

// Of returns the driver of a store that keeps queues. For another the error matches [messagestore.ErrNotSupported].
func Of(store interface {
	Driver() (messagestore.Driver, error)
},
) (Driver, error) {
	driver, err := store.Driver()
	if err != nil {
		return nil, err
	}
	keeps, is := driver.(Driver)
	if !is {
		return nil, fmt.Errorf("%w: the store's driver keeps no queues", messagestore.ErrNotSupported)
	}
	return keeps, nil
}

// Limits of one call.
const (
	// MaxItems is how many items one call reserves, finishes or lists at most.
	MaxItems = 1000

	// MaxListBytes bounds the data of a list, but for one item: see [Driver.QueueItems].
	MaxListBytes = 4 << 20

	// MaxQueues is how many queues a category has at most, without those that were removed: a trim asks each of them for
	// each message. A call that would make one more is refused with [ErrTooManyQueues].
	MaxQueues = 100

	// MaxFailures bounds [Policy].MaxFailures.
	MaxFailures = 32_767

	// MaxWait bounds [Take].Wait.
	MaxWait = 15 * time.Minute

	// MaxLease bounds [Take].Lease, and MinLease does from below.
	MaxLease = 24 * time.Hour
	MinLease = 10 * time.Millisecond

	// MaxDelay bounds [Finish].Delay: 100 years.
	MaxDelay = 100 * 365 * 24 * time.Hour

	// MaxNoteBytes bounds a note of [Extension].Notes.
	MaxNoteBytes = 1024

	// MaxErrorBytes bounds [Finish].Error.
	MaxErrorBytes = 4096

	// MaxWakes bounds [Take].Wakes.
	MaxWakes = 100

	// Slots is how many slots a category has: see [Take].Slots.
	Slots = 32

	// NoCursor is the cursor of a queue of parked messages: beyond all messages.
	NoCursor messagestore.GlobalPosition = 1 << 62

	// Patience is for how long an item is kept for the first in line.
	Patience = 200 * time.Millisecond

	// ClockTolerance is by how much a clock may go back, and a queue stands still for so long.
	ClockTolerance = time.Second

	// OrphanInterval is how often a take looks whether an item is held behind one that is finished.
	OrphanInterval = time.Second
)

// A Queue is named, and reads one category for ever.
type Queue struct {
	Name     string
	Category messagestore.Category
}

// ValidateQueue refuses a queue that no store has. The error names all mistakes, and matches [messagestore.ErrInvalid].
func ValidateQueue(q Queue) error {
	err := q.Category.Validate()
	if strings.ContainsAny(q.Name, "-+") || strings.ContainsFunc(q.Name, unicode.IsSpace) || len(q.Name) > 255 || text.TypeRule(q.Name) != "" {
		err = errors.Join(err, messagestore.NewInvalidError("queue name", q.Name, "it is 1 to 255 bytes of visible text, without white space, - and +"))
	}
	return err
}

// A Delivery names one delivery of an item.
type Delivery struct {
	Position messagestore.GlobalPosition
	Version  int // how often the item was given back before
}

// String returns position.version.
func (d Delivery) String() string { return fmt.Sprintf("%d.%d", d.Position, d.Version) }

// Notes are on the progress of deliveries.
type Notes map[Delivery]string

// JSON returns an object with the notes, by position.version; nil for nil.
func (n Notes) JSON() []byte {
	if n == nil {
		return nil
	}
	by := make(map[string]string, len(n))
	for d, note := range n {
		by[d.String()] = note
	}
	text, _ := json.Marshal(by) // of strings
	return text
}

// A Kind says how a delivery ends.
type Kind byte

const (
	Complete  Kind = 'c' // the item is finished
	Retry     Kind = 'r' // a failure: offered again after the delay, or dead
	Defer     Kind = 'f' // no failure: offered again after the delay
	Unhandled Kind = 'u' // no failure: it was not worked on
	Bury      Kind = 'x' // a failure, and dead
	Committed Kind = 't' // the item was finished by QueueFinish, in a transaction that was committed

	// Behind completes an item of version 0 that is held and was worked on after the item before it in its stream, whose completion
	// comes before it in the same call, as Complete or Behind: it is finished with that one, or is [Lost]. A worker finds
	// such items with [Driver.QueueItems]. A queue of streams has none.
	Behind Kind = 'b'

	// Wait and Suspend end a turn of a queue of streams that went well: the item is offered again after the delay, or as soon as
	// a message wakes it that is behind [Finish].Seen. With [MaxDelay] nothing else brings it back. The item's failures
	// count anew, and its log has no entry, since an item may have thousands of turns. A suspended item is listed as one
	// until it is offered, with the error.
	Wait    Kind = 'w'
	Suspend Kind = 's'
)

// A Finish ends a delivery.
type Finish struct {
	Delivery
	Kind  Kind
	Delay time.Duration // of Retry, Defer, Wait and Suspend; 0 or less is now
	Error string        // for the log; of Retry, Bury and Suspend it is the item's too; of Wait it takes the place of the item's, also as ""

	// Session is the one that has the item out. A delivery of another is not ended. An item that is finished already is told
	// so whatever the session, since nothing is kept of it.
	//
	// Defaults to the session of the take.
	Session int64

	// Seen is, of Wait and Suspend, the global position up to which the caller had read the stream. A message up to there does
	// not wake the item, even if the queue's cursor comes to it later.
	Seen messagestore.GlobalPosition
}

// An Ending is what a call tells of a delivery.
type Ending byte

const (
	// Done says that the delivery was ended so, by this call or by an earlier one for the same.
	Done Ending = 'd'

	// Lost says that the delivery had ended otherwise before: its session was over, or an operator changed the
	// item. Nothing was changed.
	Lost Ending = 'l'

	// Open answers [Committed] where the item is out still: the transaction was not committed, or not yet.
	Open Ending = 'o'
)

// A Policy is how a queue treats its items. It travels with each take, so the policy of the process that gives an
// item back holds.
type Policy struct {
	MaxFailures int  // with so many failures an item is dead; 1 to MaxFailures
	Hold        bool // a dead item keeps later ones of its stream held
	MaxOut      int  // how many items may be out, of all sessions; 0 for any number

	// Rate is how many items are reserved in a second at most, by all sessions, and Burst how many at once after a
	// pause. 0 is any number.
	Rate  float64
	Burst int
}

// A Take is a call for items.
type Take struct {
	Queue
	Policy

	// Wakes makes the queue one of streams, and has the types of the messages that wake an item: at most [MaxWakes]. A
	// message of another type changes nothing. What wakes an item has it offered now, whatever made it later, and also
	// before the date of its first message; a dead item is not woken.
	//
	// A queue is one of streams or of items for ever, from its first take on: a take of the other kind is refused.
	//
	// Defaults to a queue of items.
	Wakes []string

	// Slots makes the take one of a queue of parked messages: bit i takes items whose stream is of member i of a group of [Slots], by
	// [messagestore.StreamName.GroupMember]. An item of another slot stays, whatever else the take wants. Where no message was
	// ever parked there is no queue, and the take makes none.
	//
	// Defaults to a queue that follows its category.
	Slots uint32

	// Session has what is reserved until its lease is over: Lease from now on, or from the last extension.
	Session int64
	Lease   time.Duration

	// Finishes end deliveries, of this session or of those that they name, before items are reserved.
	Finishes []Finish

	// Want is how many items are wanted. 0 reserves none.
	Want int

	// Wait is for how long the caller will ask again if nothing is found: then a ticket keeps its place in the
	// line for so long. 0 leaves none.
	Wait time.Duration

	// Ticket is the caller's place in the line from an earlier take, or 0.
	Ticket int64
}

// Taken is the answer to a [Take]. If it is lost, the caller continues with a new session, to which it has
// [Driver.QueueLeave] move the deliveries that it knows; the others are offered again. It asks for the same finishes
// again: a delivery that the lost call ended is told so.
type Taken struct {
	Endings []Ending // of each finish
	Items   []Taking // in the order in which they became available

	// Ticket is the place in the line that was made, or 0.
	Ticket int64

	// More says that another take may find something at once.
	More bool

	// Wake is after how much time something may become available without a write to the category; less than 0 if
	// nothing will.
	Wake time.Duration
}

// A Taking is an item that was reserved.
type Taking struct {
	Message  *messagestore.Message
	Version  int
	Failures int
}

// Delivery returns the position and version.
func (t Taking) Delivery() Delivery { return Delivery{t.Message.GlobalPosition, t.Version} }

// Ready is whether a take may find something, and if not, after how much time; less than 0 for not by itself.
type Ready struct {
	Ready bool
	Wake  time.Duration

	Parked bool // the queue is one of parked messages
	Asked  bool // and there are some that are to be parked
}

// An Extension extends a session.
type Extension struct {
	Queue
	Session    int64
	Lease      time.Duration
	Deliveries []Delivery // of each item one

	// Notes are all that the session has, in place of those before; nil leaves those. A note is of at most MaxNoteBytes
	// and of a delivery. It is shown while the session has the item out under that version. They end with the session.
	Notes Notes
}

// A Leave ends a session.
type Leave struct {
	Queue
	Session int64
	Next    int64 // gets the kept deliveries under Lease; 0 if none
	Lease   time.Duration
	Keep    []Delivery
}

// An Action is what an operator asks for.
type Action string

const (
	// RetryNow has later, suspended and dead items offered now. The failures of a dead one count anew, and it takes its place in its
	// stream again: it is held while another of the stream is out, or while an earlier one is open, and later ones are held behind
	// it. A dead one that would be held behind an item that a transaction is completing is left as it is: ask again.
	RetryNow Action = "retry"

	Drop   Action = "drop"   // later, suspended, held and dead items are finished
	Cancel Action = "cancel" // an item in any state, also beyond the cursor, is finished; one that is out is lost to its worker
	Pause  Action = "pause"  // nothing is reserved
	Resume Action = "resume"
)

// ErrRemoved is matched by the error of a call for a queue that was removed: no other attempt helps.
var ErrRemoved error = removedError{}

type removedError struct{}

func (removedError) Error() string { return "the queue was removed" }

func (removedError) Is(target error) bool { return target == failure.ErrLasting }

// ErrTooManyQueues is matched by the error of a call that would make a queue of a category that has [MaxQueues]. Nothing was
// changed, and no other attempt helps until a queue of the category is removed.
var ErrTooManyQueues error = failure.LastingError(fmt.Sprintf("the category has %d queues, and no more are made: remove those that nothing works on", MaxQueues))

// MaxWaiting bounds the count of [RemovedQueue].Waiting.
const MaxWaiting = 100_000

// A Removal ends a queue.
type Removal struct {
	Queue
	Unfinished bool // also if there are items that are not finished

	// FreeName keeps no name: a worker that begins, or still runs, has a new queue, from the first message of the category on.
	// The name of a queue that was removed before is free, too. The name of a queue that was never taken from always is.
	FreeName bool
}

// RemovedQueue is the answer to a [Removal].
type RemovedQueue struct {
	Done     bool // the queue is not there any more
	NameKept bool // its name is refused

	// The items that were not finished. Waiting is counted up to MaxWaiting, and not of a queue that was never taken from.
	Waiting, Out, Later, Suspended, Held, Dead int64
}

// Unfinished returns how many items were not finished.
func (r RemovedQueue) Unfinished() int64 {
	return r.Waiting + r.Out + r.Later + r.Suspended + r.Held + r.Dead
}

// A Parking is of one message.
type Parking struct {
	Queue
	Position messagestore.GlobalPosition
	Failures int    // 0 to MaxFailures
	Error    string // the failure, or the reason of the operator that asks

	// Asked says that the message is to be parked, by the consumer that has it: its item is suspended until then. Finished
	// withdraws that, since the consumer has finished the message first. One of them is set at most.
	Asked    bool
	Finished bool
}

// A Change is what an operator asks for. Pause and Resume have no positions.
type Change struct {
	Queue
	Action    Action
	Positions []messagestore.GlobalPosition
	Reason    string // for the log
}

// A State is where an item is.
type State string

const (
	Waiting  State = "waiting" // beyond the cursor
	Out      State = "out"     // reserved
	Later    State = "later"   // offered at a time, which may have come
	Held     State = "held"    // behind another of its stream
	Dead     State = "dead"
	Finished State = "finished"

	// Suspended is an item that [Suspend] gave back and that is not offered again yet: a message, its time or an operator
	// does that. In a queue of parked messages it is one that is to be parked.
	Suspended State = "suspended"
)

// An Item is what is known of an item.
type Item struct {
	Message  *messagestore.Message // nil for an open item whose message was removed
	Position messagestore.GlobalPosition
	State    State
	Version  int
	Failures int
	Session  int64                       // Out
	Until    time.Time                   // Out: when its session is over, unless that is extended; it may have passed
	Due      time.Time                   // Later and Suspended, and of a held item the time before which it is not offered
	Behind   messagestore.GlobalPosition // Held
	Closed   bool                        // Dead, and later items of its stream are held
	Error    string                      // of the last failure or suspension, or of a Wait since; what gave it back without one is in the log
	Note     string                      // Out: on its progress
	Log      []Entry                     // of QueueItem only, in order
}

// An Entry of an item's log says how a delivery, or a state, ended that did not finish the item as [Complete] does, nor
// ended as [Wait] and [Suspend] do.
type Entry struct {
	Version int
	What    What
	Time    time.Time
	Session int64
	Text    string // the error, or the operator's reason
}

// What ended a delivery or a state.
type What byte

const (
	Failed      What = 'r'
	Deferred    What = 'f'
	GivenBack   What = 'u'
	Buried      What = 'x'
	SessionOver What = 'e'
	Retried     What = 'R' // by an operator
	Dropped     What = 'D'
	Cancelled   What = 'C'
	Removed     What = 'M' // its message was removed
)

var whats = map[What]string{
	Failed: "failed", Deferred: "deferred", GivenBack: "given back", Buried: "buried", SessionOver: "session over",
	Retried: "retried", Dropped: "dropped", Cancelled: "cancelled", Removed: "message removed",
}

// String returns it in words: "session over".
func (w What) String() string {
	if text, ok := whats[w]; ok {
		return text
	}
	return fmt.Sprintf("What(%q)", byte(w))
}

// A List asks for open items of one state.
type List struct {
	Queue
	State State // Out, Later, Suspended, Held or Dead; for Waiting the messages beyond the cursor
	From  messagestore.GlobalPosition
	Limit int
}

// A Status is how a queue stands.
type Status struct {
	Queue
	Streams                bool // it is one of streams, by its first take
	Parked                 bool // it is one of parked messages
	Paused                 bool
	Cursor                 messagestore.GlobalPosition
	Out, Later, Held, Dead int64
	Suspended              int64
	Due                    int64     // of Later, those whose time has come
	Sessions               int64     // that are not over
	Time                   time.Time // of the store's clock, at which all this was so

	// Changed is the time of the last change, and zero for none. If it is after Time, the clock was ahead then, or was set back
	// since; the next take sees to it.
	Changed time.Time

	Waiting             bool      // something is beyond the cursor
	Oldest              time.Time // the item that was written first and is open, but dead; zero for none
	Taken, Back, Buried int64     // counts of deliveries since the queue began

	// Finished counts the items that were finished since the queue began: by a completion, also one of a caller's
	// transaction from its commit on, by an operator, or because the message was removed.
	Finished int64
}

// DueField is the field of a message's metadata with the time before which its item is not offered, in microseconds
// since 1970 as a JSON number.
const DueField = "dueAt"
