package messagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/exactjson"
)

// A Driver keeps messages in one kind of database. Applications use a [Store]; only an author of a
// driver needs this page. Package storetest says, as tests, everything that a driver promises. A
// driver that runs functions in transactions of its database library is a [TransactDriver] too.
//
// The store has validated all arguments of a driver. A driver is safe for concurrent use, unless it
// is opened over a transaction, which has one user. A call that the database, or the handle over
// which the driver is opened, has nothing for returns an error that matches [ErrNotSupported], and
// so does every later call of its kind.
type Driver interface {
	// Append adds records to the end of one stream as one atomic step.
	//
	// Before all else it looks the records' ids up. If all are recorded, in this stream, one
	// after the other, with equal type, data and metadata (as [Encoded.Same] has it), it returns
	// their positions, with Duplicate set, at any version of the stream. If only some are, or
	// with a difference, it returns an [*IDConflictError].
	//
	// Then, if the stream is not at the expected version, it adds nothing and
	// returns a [*VersionConflictError].
	//
	// Of two appends to streams of one category, no reader of the category sees
	// the later one while it can still miss the earlier one.
	//
	// An error means that nothing was or will be written, unless it is an
	// [*OutcomeUnknownError].
	Append(ctx context.Context, a Append) (Written, error)

	// AppendAll is Append for several streams, each named once. All of it happens
	// or none. An append without records checks its stream's version only. The
	// first append in the order given that cannot be decides the error; with ids
	// that are recorded already, all records of all appends must be.
	AppendAll(ctx context.Context, appends []Append) ([]Written, error)

	// TryAppend is AppendAll, but where that returns a [*VersionConflictError] it adds
	// nothing and returns what was met, of the step of that write. Of two calls for one
	// new stream the second meets the first, however they reach the database.
	//
	// In a transaction of the caller's above READ COMMITTED, whose snapshot is too old to show
	// what was met, it returns the conflict.
	TryAppend(ctx context.Context, appends []Append) ([]Written, *Conflict, error)

	// Over returns a driver over a transaction of the caller's, as the database's library has it: a
	// pgx.Tx, or a *sql.Tx. It asks nothing of the database, and has one user, as the transaction
	// does. With the context of a function of Transact it is also that function's transaction. Any
	// other value is not supported.
	Over(ctx context.Context, tx any) (Driver, error)

	// Stage is an append of one record, not [Append.Conditional], as the last step of the
	// transaction that the driver is over. Until the transaction is committed nothing waits for it,
	// and then it happens or the commit fails. A record that is recorded already with its content
	// is left out, as is one for no stream where the stream begins with its type and data. Over no
	// transaction of the caller's it is not supported.
	Stage(ctx context.Context, a Append) error

	// ReadStream returns messages of one stream, in order. A stream that does not
	// exist has none; that is no error. It sees every append that returned before
	// it was called.
	ReadStream(ctx context.Context, q StreamQuery) ([]*Message, error)

	// ReadCategory returns messages of one category, in order, and how far it has
	// looked. See [CategoryPage].
	ReadCategory(ctx context.Context, q CategoryQuery) (CategoryPage, error)

	// Last returns the last message of a stream, of the given type if that is not
	// "", or [ErrNotFound].
	Last(ctx context.Context, stream StreamName, messageType string) (*Message, error)

	// Version returns the version of a stream, [NoStream] for an empty one.
	Version(ctx context.Context, stream StreamName) (Version, error)

	// Find returns those messages of a stream that have one of the ids, in order of position. It
	// first waits for the appends to the stream's category that are under way, abandoned ones
	// included. A message that it does not find was not written and will not be. In a transaction
	// of the caller's that holds once it is committed.
	Find(ctx context.Context, stream StreamName, ids []uuid.UUID) ([]*Message, error)

	// Categories returns the names of the categories that contain the text containing, in byte
	// order. The text "" is in all of them. It does not read every message.
	Categories(ctx context.Context, containing string) ([]Category, error)

	// Count returns how many messages ReadCategory would hand out for q, page after
	// page, and at most q.Limit, which is not bounded here. It stops counting there.
	Count(ctx context.Context, q CategoryQuery) (int64, error)

	// Heads returns the global position of the last message of each category, in the order given, 0
	// for one without messages, so that a process with many readers that wait asks once for them
	// all. It sees every append that returned before it was called, and reads no message. It is
	// asked for at most 1,000 categories. Over a transaction it may be not supported.
	Heads(ctx context.Context, categories []Category) ([]GlobalPosition, error)

	// Listen calls heard for the writes of all processes, as soon as they can be read, until ctx is
	// done or it can go on no longer, and returns why. A call is a hint: it may be missing or come
	// twice. Each names a category and the position of a message that can be read in it by then, or
	// 0 if no position is known. It first calls heard with the category "", once it listens, for
	// everything that was written before. After any error but one that matches [ErrNotSupported] it
	// may be called again.
	Listen(ctx context.Context, heard func(category Category, head GlobalPosition)) error

	// TrimCheckpoints removes the old checkpoints of a consumer, as a user that may remove nothing
	// else: the first messages of a stream of checkpoints but the last keep, and some 10,000 in one
	// call at most. It returns how many. The version of the stream stays, and so do the positions
	// of the messages that are left. If one of the messages to remove is not of the type Recorded,
	// it removes nothing and the error matches [ErrInvalid].
	TrimCheckpoints(ctx context.Context, stream StreamName, keep int) (removed int64, err error)

	// Now returns the time of the clock that stamps messages: the database server's, or the
	// process's where the database has no clock of its own. All processes on one store read one
	// clock. In a transaction too it is the time of the call, not the time at which the transaction
	// began.
	Now(ctx context.Context) (time.Time, error)

	// Epoch returns a text that stays the same for as long as no committed message is lost, by a
	// restored backup or a failover, and "" where none can be. It may be another though nothing was
	// lost. It tells also a client that cannot see it by the messages, since only its own writes
	// were lost.
	Epoch(ctx context.Context) (string, error)

	// Check is [Store.Check] if write is set, and else [Store.CheckReading]. It asks the database
	// each time, and changes nothing in it.
	Check(ctx context.Context, write bool) error

	// Connections returns how many connections calls share, 0 for any number. It asks nothing of
	// the database.
	Connections() int

	// Forgets reports whether an operator can remove the keys of intents and reservations, as dibs
	// forget does. It asks nothing of the database.
	Forgets() bool

	// Close closes the database's handle if the driver has opened it itself.
	Close() error
}

// A Conflict is what a write met in place of the versions that it expected. All of it is of one
// moment, at which no other write to these streams is under way.
type Conflict struct {
	// Time is that moment by the store's clock, in UTC and microseconds.
	Time time.Time

	// Last are the last messages of the write's streams, in the order of the write; nil for a
	// stream without messages.
	Last []*Message
}

// An Append is one stream's part of a write, as a driver gets it.
type Append struct {
	Stream   StreamName
	Expected Version
	Records  []Encoded

	// Past are the types of messages that may have come since the expected version. If all
	// that came are there and of these types, the stream counts as at the expected version,
	// and the records go to its end. One of another type, or a removed one, is the conflict.
	Past []string

	// After is the id that the message at the expected version has; if another message is there,
	// or none, that is the conflict. With [uuid.Nil] any message may be.
	After uuid.UUID
}

// Conditional reports whether the append needs more of its stream than the number of its version:
// messages of some types, the id of one, or that it exists.
func (a Append) Conditional() bool {
	exists, _ := a.Expected.Exists(NoStream)
	return len(a.Past) > 0 || a.After != uuid.Nil || exists
}

// An Encoded is an encoded message that a driver has yet to place.
type Encoded struct {
	ID       uuid.UUID
	Type     string
	Data     json.RawMessage
	Metadata json.RawMessage // nil for none
}

// Same reports whether m, with metadata as it is stored, is r: the same id, type, data and
// metadata, as JSON with exact numbers. A driver whose database cannot compare JSON calls it.
func (r Encoded) Same(m *Message, metadata json.RawMessage) bool {
	return m.ID == r.ID && m.Type == r.Type && exactjson.Equal(m.Data, r.Data) && exactjson.Equal(metadata, r.Metadata)
}

// Written says where a write put its messages.
type Written struct {
	Stream StreamName

	// Version is the position of the last message written, and so the stream's
	// version after the write. With Duplicate, other messages may have come since.
	Version Version

	// GlobalPosition is the last message's. It is 0 if there was only a check.
	GlobalPosition GlobalPosition

	// Time is the last message's, by the store's clock. It is zero if there was only a check.
	Time time.Time

	// IDs are the messages', in order.
	IDs []uuid.UUID

	// Duplicate says that the messages had been written before, by an earlier
	// write with the same ids, and that this one changed nothing. A write whose
	// answer was lost, and that the store looked up, cannot tell: then it is false.
	Duplicate bool
}

// A StreamQuery asks for messages of one stream.
type StreamQuery struct {
	Stream    StreamName
	From      Version // the first position to return, inclusive
	Backwards bool    // from From down, instead of up
	Limit     int     // of messages, at least 1
}

// A CategoryQuery asks for messages of one category, in order.
type CategoryQuery struct {
	Category Category
	From     GlobalPosition // the first to return, inclusive
	Limit    int            // of messages, at least 1
	Filter   Filter
}

// A Filter narrows a category. The zero value lets everything through; all fields that are set
// must hold.
type Filter struct {
	// Types are the message types to let through. None lets all.
	Types []string

	// Correlation lets messages through that have a correlation stream of this category.
	Correlation Category

	// GroupSize splits the category among so many members of a consumer group, by
	// [StreamName.GroupMember], and GroupMember, from 0, is the one to read for.
	// Size 0 does not split.
	GroupSize   int
	GroupMember int
}

// IsZero reports whether f lets everything through.
func (f Filter) IsZero() bool {
	return len(f.Types) == 0 && f.Correlation == "" && f.GroupSize == 0 && f.GroupMember == 0
}

// Matches reports whether f lets m through. Drivers whose database cannot filter
// use it.
func (f Filter) Matches(m *Message) bool {
	if f.Correlation != "" && m.Metadata.CorrelationStream.Category() != f.Correlation {
		return false
	}
	if f.GroupSize > 1 && m.Stream.GroupMember(f.GroupSize) != f.GroupMember {
		return false
	}
	return len(f.Types) == 0 || slices.Contains(f.Types, m.Type)
}

// Validate returns the mistakes in f's correlation, types and group, each an [*InvalidError], or
// nil.
func (f Filter) Validate() error {
	return errors.Join(f.validateCorrelation(), f.validateTypes(), f.validateGroup())
}

func (f Filter) validateCorrelation() error {
	if f.Correlation == "" {
		return nil
	}
	if err := f.Correlation.Validate(); err != nil {
		return fmt.Errorf("correlation: %w", err)
	}
	return nil
}

func (f Filter) validateTypes() error {
	if len(f.Types) > maxFilterTypes {
		return NewInvalidError("filter types", len(f.Types), fmt.Sprintf("at most %d", maxFilterTypes))
	}
	for _, t := range f.Types {
		if err := validateKnownType(t); err != nil {
			return err
		}
	}
	return nil
}

func (f Filter) validateGroup() error {
	switch {
	case f.GroupSize < 0 || f.GroupSize > maxGroupSize:
		return NewInvalidError("group size", f.GroupSize, fmt.Sprintf("it is between 1 and %d, or 0 for no group", maxGroupSize))
	case f.GroupMember < 0:
		return NewInvalidError("group member", f.GroupMember, "it is less than 0")
	case f.GroupSize == 0 && f.GroupMember != 0:
		return NewInvalidError("group member", f.GroupMember, "it needs a group size")
	case f.GroupSize > 0 && f.GroupMember >= f.GroupSize:
		return NewInvalidError("group member", f.GroupMember, fmt.Sprintf("it is not less than the group size, %d", f.GroupSize))
	}
	return nil
}

// A CategoryPage is the answer to a [CategoryQuery].
type CategoryPage struct {
	Messages []*Message

	// Next is where to go on: every message before it that the filter lets
	// through has been returned, and none will appear there. It advances over
	// messages that the filter keeps back, so that a reader of few messages does
	// not look at the same many again. At the end of the category it is the
	// position after the last message looked at, or the query's From if there was
	// none.
	Next GlobalPosition

	// First and Last are the first and the last message looked at, whether the filter
	// lets them through or not; Next is right behind Last. They are zero if none was
	// looked at. Where they are the first and the last of Messages, a driver may leave
	// them to the store.
	First, Last Mark

	// More says that the page ended before the category did.
	More bool
}

// A Mark tells a message from any that a store puts in its place after it went back, by a
// restored backup or a failover: then a position is given out again, to another message or,
// at another time, to the same.
type Mark struct {
	ID             uuid.UUID
	Stream         StreamName
	Position       Version // in its stream
	GlobalPosition GlobalPosition
	Time           time.Time
}

// IsZero reports whether m marks no message.
func (m Mark) IsZero() bool { return m.ID == uuid.Nil }

// Limits, the same for every driver, so that messages can be moved from one to another.
const (
	// MaxWriteMessages bounds the messages of one write.
	MaxWriteMessages = 1000

	// MaxMessageBytes bounds one message: its data and metadata together, as
	// JSON. It is 1 MiB less 64 KiB.
	MaxMessageBytes = 1<<20 - 64<<10

	// maxWriteBytes bounds the messages of one write together.
	maxWriteBytes = 16 << 20

	// MaxReadMessages bounds the messages of one page.
	MaxReadMessages = 10_000

	// maxFilterTypes bounds the types of a [Filter].
	maxFilterTypes = 100

	// maxHeads bounds the categories of one call of Heads of a [Driver].
	maxHeads = 1000

	// MaxWriteStreams bounds the streams of one [Store.WriteStreams].
	MaxWriteStreams = 100
)
