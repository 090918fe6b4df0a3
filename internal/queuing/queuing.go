// Package queuing has the interface that a driver implements for package queue: the state of
// queues. The tests of package internal/queuetest specify everything that a driver promises.
//
// A queue reads one category, and each message of the category is an item of the queue. The driver
// keeps a cursor, up to which the queue has seen all messages of the category, and a row for each
// item before the cursor that is not finished: such an item is open. So an item is beyond the
// cursor, open or finished. Several queues may read one category; each gets every message.
//
// An item is delivered to a session, under a version. The version rises whenever the item is given
// back, so position and version name a delivery. Together with the session they are the fence: for
// another version or session, the answer is that the delivery is lost. Nobody can guess a session's
// number, so a call that reaches another database by mistake ends nothing there. The item's log has
// an entry for each delivery that did not finish the item.
//
// Only one item of a stream is out at a time, in the order of the stream. An item behind an open
// one of its stream is held until that one is finished, or is dead and its [Policy] does not hold
// the items behind it.
//
// Takes with [Take].Wakes make a queue of streams. In it only the first message of each stream is
// an item, which lasts until it is completed. A delivery of it is a turn: the worker reads the
// stream, and ends the turn with [Wait] or [Suspend] while there is more to come. Later messages of
// the stream wake the item if they have certain types.
//
// [Keeper.QueuePark] makes a queue of parked messages, which follows no category. Its items are the
// parked messages, and takes with [Take].Slots deliver the items that an operator has offered
// again. Its cursor is [NoCursor].
package queuing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Driver is a driver of a store that keeps queues.
type Driver interface {
	messagestore.Driver
	Keeper
}

// A Keeper keeps the state of queues in the same database as the messages. All methods except
// QueueFinish are transactions of their own: within a transaction of the caller's they return
// [messagestore.ErrNotSupported].
//
// If two calls change the same queue, the second sees all changes of the first. Every change is
// atomic. A call that returns an error matching [messagestore.ErrOutcomeUnknown] may have changed
// the queue. All methods except QueueTake may then be called again with the same arguments: what
// the first call has done stays done. QueueChange, QueuePark and QueueRemove then tell only what
// the second call has changed. QueueTake needs a new session: see [Taken].
//
// A queue uses the store's clock. That clock may be ahead for a while, or be set back. If a take
// finds the clock more than [ClockTolerance] behind the time of the queue's last change, the
// delays, leases and places in the line that were computed from that time are counted from now on.
// The date of a message does not change. Versions decide about deliveries, so only promises about
// time depend on the clock.
type Keeper interface {
	// QueueTake finishes deliveries, gives back the items of sessions that are over, and reserves
	// items for a session, in this order.
	//
	// If a session ends with one item out, that is a failure of the item, and so are the item's
	// earlier ends of session. If it ends with several items out, that is not a failure of any
	// item. The item is offered again at once the first time, and then after 2, 4, 8 seconds, up to
	// an hour. From the second end on, an item is reserved alone: by a session that has nothing out
	// and reserves nothing more until the item's delivery ends. While such an item is due and no
	// other session waits for it, a session with items out reserves none until they have ended.
	QueueTake(ctx context.Context, t Take) (Taken, error)

	// QueueReady reports whether a take may find something, without changing anything and without
	// waiting for another call. It may report true although there is nothing, but never the
	// reverse.
	QueueReady(ctx context.Context, q Queue) (Ready, error)

	// QueueExtend restarts the leases of sessions, and returns the deliveries that their sessions
	// have lost: all of those whose session was over.
	QueueExtend(ctx context.Context, e Extension) (lost []Delivery, err error)

	// QueueLeave ends a session. Its items are offered again at once, without a failure, except
	// that the kept deliveries move to the next session, if that is not 0.
	QueueLeave(ctx context.Context, l Leave) error

	// QueueFinish completes deliveries of a session without waiting for another call, and in the
	// caller's transaction if the driver has one. It returns [Done] or [Lost] for each: Lost for
	// all if the queue does not know the session, for example in another database with the same
	// positions. A later take that reports them as [Committed] releases the items held behind them.
	// A queue of streams is refused: only a take ends its deliveries, because a completion that is
	// rolled back would lose the messages that woke the item meanwhile.
	QueueFinish(ctx context.Context, q Queue, session int64, deliveries []Delivery) ([]Ending, error)

	// QueueChange applies an operator's action to the items that are in a state for it, and returns
	// their positions.
	QueueChange(ctx context.Context, c Change) (changed []messagestore.GlobalPosition, err error)

	// QueuePark adds a message to a queue of parked messages: as a dead item, or as a suspended one
	// if it is still to be parked. It reports whether it changed anything. An open item stays
	// unchanged, except that an item that is still to be parked becomes parked or finished. So
	// however many processes park a message, it is one item. A finished message is parked again. A
	// message that was removed is not parked. A queue that follows its category is refused.
	QueuePark(ctx context.Context, p Parking) (parked bool, err error)

	// QueueRemove ends a queue. If a worker ever took from it, the queue's name stays: from then on
	// takes and changes refuse it with [ErrRemoved], so that no worker that still runs starts again
	// with the first message of the category. Nothing stays of a queue of parked messages. If the
	// queue has items that are not finished, QueueRemove does nothing unless r says otherwise. A
	// queue that does not exist or was removed is not an error.
	QueueRemove(ctx context.Context, r Removal) (RemovedQueue, error)

	// QueueItem returns the facts about an item. The error matches [messagestore.ErrNotFound] if
	// the queue's category has no message at the position and no item is open there. It also does
	// if the message is no item: in a queue of streams because it is not the first of its stream,
	// in a queue of parked messages because it was never parked.
	QueueItem(ctx context.Context, q Queue, position messagestore.GlobalPosition) (Item, error)

	// QueueItems returns unfinished items in a state, in order of position. A list ends before its
	// messages exceed [MaxListBytes] of data, but has at least one item. To get all, ask again from
	// after the last item until a list is empty.
	QueueItems(ctx context.Context, l List) ([]Item, error)

	// QueueStatus returns the state of one queue, from at most [MaxCount] of its open items. The
	// error matches [messagestore.ErrNotFound] if Queues would not return it.
	QueueStatus(ctx context.Context, q Queue) (Status, error)

	// Queues returns, by name, the queues that were ever changed or taken from and are not removed.
	Queues(ctx context.Context) ([]Status, error)
}

// Of returns the driver of a store that keeps queues. For any other store the error matches
// [messagestore.ErrNotSupported].
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

	// MaxListBytes bounds the data of a list, except that one item may exceed it: see
	// [Keeper.QueueItems].
	MaxListBytes = 4 << 20

	// MaxCount is how many open items [Keeper.QueueStatus] counts at most.
	MaxCount = 10_000

	// MaxQueues is how many queues a category may have, not counting removed ones: a trim checks
	// each message against all of them. A call that would make one more fails with
	// [ErrTooManyQueues].
	MaxQueues = 100

	// MaxFailures bounds [Policy].MaxFailures.
	MaxFailures = 32_767

	// MaxWait bounds [Take].Wait.
	MaxWait = 15 * time.Minute

	// MinLease and MaxLease bound [Take].Lease.
	MinLease = 10 * time.Millisecond
	MaxLease = 24 * time.Hour

	// MaxDelay is the longest [Finish].Delay of a worker: 100 years. No driver checks it.
	MaxDelay = 100 * 365 * 24 * time.Hour

	// MaxNoteBytes bounds a note of [Extension].Notes.
	MaxNoteBytes = 1024

	// MaxErrorBytes is more than any [Finish].Error of a worker has. No driver checks it.
	MaxErrorBytes = 4096

	// MaxWakes bounds [Take].Wakes.
	MaxWakes = 100

	// MaxResume bounds [Take].Resume.
	MaxResume = 100

	// Slots is how many slots a category has: see [Take].Slots.
	Slots = 32

	// NoCursor is the cursor of a queue of parked messages: it is beyond all messages.
	NoCursor messagestore.GlobalPosition = 1 << 62

	// Patience is how long an item is kept for the first in line.
	Patience = 200 * time.Millisecond

	// ClockTolerance is how far a clock may go back before a take moves the queue's times. After a
	// smaller step the queue's time stands still until the clock has caught up.
	ClockTolerance = time.Second

	// OrphanInterval is how often a take checks whether an item is held behind a finished one.
	OrphanInterval = time.Second
)

// A Queue has a name, and always reads the same category.
type Queue struct {
	Name     string
	Category messagestore.Category
}

// ValidateQueue refuses a queue that no store can have. The error names all mistakes, and matches
// [messagestore.ErrInvalid].
func ValidateQueue(q Queue) error {
	err := q.Category.Validate()
	if strings.ContainsAny(q.Name, "-+") || strings.ContainsFunc(q.Name, unicode.IsSpace) || len(q.Name) > 255 || text.TypeRule(q.Name) != "" {
		err = errors.Join(err, messagestore.NewInvalidError("queue name", q.Name, "must be 1 to 255 bytes of visible text, without white space, - and +"))
	}
	return err
}

// ParkedPrefix begins the name of a queue of messages that a consumer of a category has parked. The
// consumer's name follows.
func ParkedPrefix(category messagestore.Category) string {
	return strings.NewReplacer("%", "%25", "+", "%2B").Replace(string(category)) + ":parked:"
}

// A Delivery names one delivery of an item.
type Delivery struct {
	Position messagestore.GlobalPosition
	Version  int // how often the item was given back before
}

// String returns position.version.
func (d Delivery) String() string { return fmt.Sprintf("%d.%d", d.Position, d.Version) }

// Notes describe the progress of deliveries.
type Notes map[Delivery]string

// JSON returns an object with the notes, by position.version. It returns nil for nil.
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

	// Behind completes an item of version 0 that is held, and was worked on after the previous item
	// of its stream. The completion of that item comes before it in the same call, as Complete or
	// Behind: both are finished together, or this one is [Lost]. A worker finds such items with
	// [Keeper.QueueItems]. A queue of streams has no such items.
	Behind Kind = 'b'

	// Wait and Suspend end a successful turn in a queue of streams. The item is offered again after
	// the delay, or as soon as a message after [Finish].Seen wakes it. With [MaxDelay] only a
	// message brings it back. The item's failures restart at 0. Its log gets no entry, because an
	// item may have thousands of turns. A suspended item is listed as suspended, with the error,
	// until it is offered.
	Wait    Kind = 'w'
	Suspend Kind = 's'
)

// A Finish ends a delivery.
type Finish struct {
	Delivery
	Kind  Kind
	Delay time.Duration // of Retry, Defer, Wait and Suspend; 0 or less is now
	Error string        // for the log; Retry, Bury and Suspend also set the item's error; Wait replaces the item's error, also by ""

	// Session is the session that has the item out. A delivery of another session is not ended, and
	// neither was it by an identical earlier call. For a finished item the answer does not depend on
	// the session, because nothing is kept of it.
	//
	// Defaults to the session of the take, which may have renewed another since an earlier call.
	Session int64

	// Seen, for Wait and Suspend, is the global position up to which the caller had read the
	// stream. A message up to there does not wake the item, even if the queue's cursor reaches it
	// later.
	Seen messagestore.GlobalPosition
}

// An Ending is the answer of a call about a delivery.
type Ending byte

const (
	// Done: the delivery has ended as asked, by this call or an identical earlier one.
	Done Ending = 'd'

	// Lost: the delivery had ended differently before, because its session was over or an operator
	// changed the item. Nothing was changed.
	Lost Ending = 'l'

	// Open answers [Committed] if the item is still out: the transaction was not committed, or not
	// yet.
	Open Ending = 'o'
)

// A Policy says how a queue treats its items. Each take has one, so when an item is given back, the
// policy of the process that gives it back applies.
type Policy struct {
	MaxFailures int  // with so many failures an item is dead; 1 to MaxFailures
	Hold        bool // a dead item keeps later items of its stream held
	MaxOut      int  // how many items may be out in all sessions; 0 for no limit

	// Rate is how many items all sessions together reserve in a second at most. Burst is how many
	// they may reserve at once after a pause. 0 means no limit.
	Rate  float64
	Burst int
}

// A Take is a call for items.
type Take struct {
	Queue
	Policy

	// Wakes makes the queue a queue of streams, and lists the types of the messages that wake an
	// item: at most [MaxWakes]. Messages of other types change nothing. A message that wakes an
	// item has it offered now, even if the item was to be offered later or the date of its first
	// message has not come; a dead item is not woken.
	//
	// A queue has streams or items for ever, from its first take on: a take of the other kind is
	// refused.
	//
	// Defaults to a queue of items.
	Wakes []string

	// Slots makes the queue a queue of parked messages: if bit i is set, the take reserves items of
	// streams that belong to member i of a group of [Slots], by
	// [messagestore.StreamName.GroupMember]. The take leaves the items of other slots alone. If no
	// message was ever parked, the queue does not exist, and the take does not make it.
	//
	// Defaults to a queue that follows its category.
	Slots uint32

	// Session has the reserved items until its lease is over. The lease lasts for Lease, from the
	// last extension or from the last take that began it or restarted it: a take that reserves
	// items does, if less than 67% of Lease is left.
	Session int64
	Lease   time.Duration

	// Finishes end deliveries before items are reserved: deliveries of this session or of the
	// sessions that they name.
	Finishes []Finish

	// Want is how many items the caller wants. With 0 the take reserves none.
	Want int

	// Others are other callers, with sessions of their own under the same Lease. After the Want items
	// of Session, the next items are for the first of the Others, and so on. While others stand in
	// line, the Others get nothing. All wants together are at most [MaxItems]. A take with Wakes,
	// Slots or Resume has no Others.
	Others []Other

	// If nothing is found, the caller gets a ticket, which keeps its place in the line for this
	// time, while it asks again. With 0 it gets no ticket.
	Wait time.Duration

	// Ticket is the caller's place in the line from an earlier take, or 0.
	Ticket int64

	// Resume are other sessions, at most [MaxResume], of earlier attempts at the same call, whose
	// answers were lost. What they have out moves to Session after the Finishes, under the same
	// versions and with a new lease. The sessions end, and their places in the line. If anything
	// moved, the take returns all of it, whatever Want says, and reserves nothing more. Nothing
	// moves from a session that was over. A queue of streams or of parked messages refuses it.
	Resume []int64
}

// An Other is a caller who shares a take.
type Other struct {
	Session int64
	Want    int
}

// Wants returns how many items the caller and the others want.
func (t Take) Wants() int {
	all := t.Want
	for _, o := range t.Others {
		all += o.Want
	}
	return all
}

// SessionOf returns the session that has the item at an index of [Taken].Items.
func (t Take) SessionOf(index int) int64 {
	index -= t.Want
	for _, o := range t.Others {
		if index >= 0 && index < o.Want {
			return o.Session
		}
		index -= o.Want
	}
	return t.Session
}

// Taken is the answer to a [Take]. If the answer is lost, the caller continues with a new session,
// to which it moves the deliveries that it knows by [Keeper.QueueLeave]; the others are offered
// again. Or it takes again, with the old session in [Take].Resume. It repeats the same finishes. If
// the lost call ended a delivery, the answer for it is Done.
type Taken struct {
	Endings []Ending // one for each of the Finishes, in their order

	// Items are the reserved ones: first those that were due, in the order of the times from which
	// they were offered, then those that nobody had met, in the order of the category. One delivery
	// in eight is of an item that nobody had met, if there is one, although others are due. Items
	// that moved here from other sessions are in the order of the category.
	Items []Taking

	// Ticket is the new place in the line, or 0.
	Ticket int64

	// More says that another take may find something at once.
	More bool

	// Wake is the time after which something may become available without a write to the category;
	// less than 0 if nothing will.
	Wake time.Duration

	// Since is the time, in the process that took, from which the lease of the items counts.
	//
	// Defaults to the time of the call.
	Since time.Time
}

// A Taking is an item that was reserved.
type Taking struct {
	Message  *messagestore.Message
	Version  int
	Failures int

	// Session has the item, if each take has a session of its own: see [Remote].
	//
	// Defaults to the session of the take.
	Session int64
}

// Delivery returns the position and version.
func (t Taking) Delivery() Delivery { return Delivery{t.Message.GlobalPosition, t.Version} }

// Ready says whether a take may find something. If not, Wake is the time after which it may; it is
// less than 0 if only a write can change that.
type Ready struct {
	Ready bool
	Wake  time.Duration

	Parked bool // it is a queue of parked messages
	Asked  bool // and some messages are still to be parked
}

// An Extension extends a session, or several.
type Extension struct {
	Queue
	Session    int64
	Lease      time.Duration
	Deliveries []Delivery // at most one of each item, and at most [MaxItems] if they have Sessions

	// Sessions are those of the Deliveries, one for each. They are extended too.
	//
	// Defaults to Session for all.
	Sessions []int64

	// Notes replace all earlier notes of the session; nil leaves them unchanged. Each belongs to a
	// delivery and has at most MaxNoteBytes. It is shown while the session has the item out under
	// that version. Notes end with the session.
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

// An Action is an operator's request.
type Action string

const (
	// RetryNow offers later, suspended and dead items now. A dead item's failures restart at 0, and
	// it takes its place in its stream again: it is held while another item of the stream is out,
	// and behind an earlier one that is to be offered or is [Item].Closed. Later items are held
	// behind it. If a dead item would be held behind an item that a transaction is completing, it
	// stays dead: ask again.
	RetryNow Action = "retry"

	Drop   Action = "drop"   // later, suspended, held and dead items are finished
	Cancel Action = "cancel" // an item in any state, also beyond the cursor, is finished; one that is out is lost to its worker
	Pause  Action = "pause"  // nothing is reserved
	Resume Action = "resume"
)

// ErrRemoved is returned by a call for a queue that was removed: it will always fail.
var ErrRemoved error = removedError{}

type removedError struct{}

func (removedError) Error() string { return "the queue was removed" }

func (removedError) Is(target error) bool { return target == calling.ErrLasting }

// ErrTooManyQueues is returned by a call that would make one more queue in a category that has
// [MaxQueues]. Nothing was changed, and the call fails until a queue of the category is removed.
var ErrTooManyQueues error = calling.LastingError(fmt.Sprintf("the category has %d queues, which is the limit: remove those that nothing works on", MaxQueues))

// MaxWaiting bounds the count of [RemovedQueue].Waiting.
const MaxWaiting = 100_000

// A Removal ends a queue.
type Removal struct {
	Queue
	Unfinished bool // also if there are items that are not finished

	// FreeName also frees the name: a worker that begins or still runs then has a new queue, which
	// starts with the first message of the category. It frees the name of a queue that was removed
	// before, too. The name of a queue that was never taken from, or that kept parked messages, is
	// always free.
	FreeName bool
}

// RemovedQueue is the answer to a [Removal].
type RemovedQueue struct {
	Done     bool // the queue is not there any more
	NameKept bool // its name is refused

	// The counts of items that were not finished. Waiting is counted up to MaxWaiting; it is not
	// counted if the queue was never taken from.
	Waiting, Out, Later, Suspended, Held, Dead int64
}

// Unfinished returns how many items were not finished.
func (r RemovedQueue) Unfinished() int64 {
	return r.Waiting + r.Out + r.Later + r.Suspended + r.Held + r.Dead
}

// A Parking parks one message.
type Parking struct {
	Queue
	Position messagestore.GlobalPosition
	Failures int    // 0 to MaxFailures
	Error    string // the failure, or the reason of the operator who asks

	// Asked asks the consumer that has the message to park it: its item is suspended until then.
	// Finished withdraws that, because the consumer has finished the message first. Only one of the
	// two may be set.
	Asked    bool
	Finished bool
}

// A Change is an operator's request. Pause and Resume have no positions.
type Change struct {
	Queue
	Action    Action
	Positions []messagestore.GlobalPosition
	Reason    string // for the log
}

// A State says where an item is.
type State string

const (
	Waiting  State = "waiting" // beyond the cursor
	Out      State = "out"     // reserved
	Later    State = "later"   // offered at a time, which may have come
	Held     State = "held"    // behind another item of its stream
	Dead     State = "dead"
	Finished State = "finished"

	// Suspended is an item that [Suspend] gave back and that is not offered yet: a message, its
	// time or an operator offers it. In a queue of parked messages it is a message that is still to
	// be parked.
	Suspended State = "suspended"
)

// An Item has the facts about an item.
type Item struct {
	Message  *messagestore.Message // nil for an open item whose message was removed
	Position messagestore.GlobalPosition
	State    State
	Version  int
	Failures int
	Session  int64                       // Out
	Until    time.Time                   // Out: when its session is over unless it is extended; it may have passed
	Due      time.Time                   // Later and Suspended; for a held item the time before which it is not offered; for a waiting or finished one its message's date
	Behind   messagestore.GlobalPosition // Held; also Finished, while it keeps the place of later items
	Closed   bool                        // Dead, and later items of its stream are held
	Error    string                      // of the last failure or suspension, or of a Wait since; the log has the other reasons
	Note     string                      // Out: about its progress
	Log      []Entry                     // of QueueItem only, in order
}

// An Entry of an item's log says how a delivery or a state ended, if it did not finish the item as
// [Complete] does and did not end as [Wait] and [Suspend] do.
type Entry struct {
	Version int
	What    What
	Time    time.Time
	Session int64
	Text    string // the error, or the operator's reason
}

// What is the way in which a delivery or a state ended.
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

// String returns the words for w, such as "session over".
func (w What) String() string {
	if text, ok := whats[w]; ok {
		return text
	}
	return fmt.Sprintf("What(%q)", byte(w))
}

// WhatOf returns the What with these words, 0 if there is none.
func WhatOf(words string) What {
	for w, text := range whats {
		if text == words {
			return w
		}
	}
	return 0
}

// A List asks for unfinished items of one state.
type List struct {
	Queue
	State State // Out, Later, Suspended, Held or Dead; for Waiting the messages beyond the cursor
	From  messagestore.GlobalPosition
	Limit int
}

// A Status is the state of a queue.
type Status struct {
	Queue
	Streams                bool // it is a queue of streams, by its first take
	Parked                 bool // it is a queue of parked messages
	Paused                 bool
	Cursor                 messagestore.GlobalPosition
	Partial                bool // of QueueStatus: there are MaxCount open items or more, and the first by position are counted
	Out, Later, Held, Dead int64
	Suspended              int64
	Due                    int64     // of Later, the items whose time has come
	Sessions               int64     // that are not over
	Time                   time.Time // of the store's clock, when this was the state

	// Changed is the time of the last change, zero if nothing was changed. If it is after Time, the
	// clock was ahead then, or was set back since; the next take corrects that.
	Changed time.Time

	Waiting             bool      // something is beyond the cursor
	Oldest              time.Time // when the oldest item that is neither finished nor dead was written; zero for none
	Taken, Back, Buried int64     // counts of deliveries since the queue began

	// Finished counts the items that were finished since the queue began: by a completion, by an
	// operator, or because the message was removed. A completion in a caller's transaction counts
	// from its commit on. If the status is Partial, items that are out and were not counted count
	// too, and Oldest is of the open items that were counted.
	Finished int64
}

// DueField is the field of a message's metadata with the time before which the item is not offered,
// in microseconds since 1970 as a JSON number.
const DueField = "dueAt"
