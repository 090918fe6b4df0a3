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
	"github.com/dibs-go/dibs/internal/report"
)

// A Driver keeps messages in one kind of database. Only the drivers of this module implement it: it
// has a method for each need of the packages above, and grows with them. Applications use a
// [Store]. Package storetest tests everything that a driver promises. A driver that
// runs functions in transactions of its database library is a [TransactDriver] too.
//
// The store has validated all arguments. A driver is safe for concurrent use, unless it is opened
// over a transaction, which has one user. If the database, or the handle that the driver uses, does
// not support a call, that call and all later calls of its kind return an error that matches
// [ErrNotSupported].
type Driver interface {
	// Append adds records to the end of one stream as one atomic step.
	//
	// It looks up the records' ids first. If all are recorded, in this stream, one after the other,
	// with equal type, data and metadata ([Encoded.Same]), it returns their positions with
	// Duplicate set, at any version of the stream. If only some are, or they differ, it returns an
	// [*IDConflictError].
	//
	// Then, if the stream is not at the expected version, it adds nothing and returns a
	// [*VersionConflictError].
	//
	// If two appends are to streams of one category, no reader of the category sees the later one
	// before the earlier one.
	//
	// An error means that nothing was or will be written, unless it is an [*OutcomeUnknownError].
	Append(ctx context.Context, a Append) (Written, error)

	// AppendAll is Append for several streams, each named once. Either all appends happen or
	// nothing does. An append without records only checks its stream's version. The error is about
	// the first append, in the order given, that fails. If one id is recorded already, all records
	// of all appends must be.
	AppendAll(ctx context.Context, appends []Append) ([]Written, error)

	// TryAppend is AppendAll, but instead of a [*VersionConflictError] it returns what it found in
	// the streams, read in the same atomic step. If two calls create one stream, the second finds
	// the first, however they reach the database.
	//
	// In a caller's transaction above READ COMMITTED it returns the error, because the snapshot is
	// too old to show the other write.
	TryAppend(ctx context.Context, appends []Append) ([]Written, *Conflict, error)

	// Over returns a driver over a transaction of the caller, of the type that the database's
	// library uses: a pgx.Tx or a *sql.Tx. It makes no round trip. The driver has one user, like
	// the transaction. The transaction may also be the one of a function of Transact, with that
	// function's context. Any other value is not supported.
	Over(ctx context.Context, tx any) (Driver, error)

	// Stage appends one record as the last step of the transaction that the driver is over; the
	// append is not [Append.Conditional]. Nothing waits for it before COMMIT, which writes it or
	// fails. A database in which one transaction writes at a time may append it at once. The record
	// is left out if it is recorded already with its content, or if it expects no stream and the
	// stream begins with its type and data. It is supported only over a transaction of the caller.
	Stage(ctx context.Context, a Append) error

	// ReadStream returns messages of one stream, in order. A stream that does not exist has no
	// messages and is not an error. It sees every append that returned before it was called.
	ReadStream(ctx context.Context, q StreamQuery) ([]*Message, error)

	// ReadCategory returns messages of one category, in order, and how far it has
	// looked. See [CategoryPage].
	ReadCategory(ctx context.Context, q CategoryQuery) (CategoryPage, error)

	// Last returns the last message of a stream, of the given type if that is not
	// "", or [ErrNotFound].
	Last(ctx context.Context, stream StreamName, messageType string) (*Message, error)

	// Version returns the version of a stream, [NoStream] for an empty one.
	Version(ctx context.Context, stream StreamName) (Version, error)

	// Find returns the messages of a stream with one of these ids, in order of position. It first
	// waits for the appends to the stream's category that are under way, abandoned ones included. A
	// message that it does not find was not written and will not be. In a transaction of the caller
	// this holds once the transaction is committed.
	Find(ctx context.Context, stream StreamName, ids []uuid.UUID) ([]*Message, error)

	// Categories returns the names of the categories that contain the text containing, in byte
	// order. The text "" is in all of them. It does not read every message.
	Categories(ctx context.Context, containing string) ([]Category, error)

	// Count returns how many messages ReadCategory would return for q, page after page. It stops
	// counting at q.Limit, which has no bound here.
	Count(ctx context.Context, q CategoryQuery) (int64, error)

	// Report counts messages by stream, type or category, without reading them out. It sees every
	// append that returned before it was called. [report.Of] fills in the percentages.
	Report(ctx context.Context, q report.Query) (report.Report, error)

	// Heads returns, for each category in the order given, the global position of the last message
	// that ReadCategory would return, 0 if there is none. A process calls it once for all its
	// waiting readers. It sees every append that returned before it was called, unless an earlier
	// message's transaction is open; it reads no message. A call has at most 1,000 categories. A
	// driver over a transaction need not support it.
	Heads(ctx context.Context, categories []Category) ([]GlobalPosition, error)

	// Listen calls heard for the writes of all processes, as soon as they can be read, until ctx is
	// done or it fails, and returns the reason. A call is a hint: it may be missing or come twice.
	// Each names a category and the position of a message that can be read there by now, or 0 if no
	// position is known. When it has begun to listen it calls heard with the category "", for
	// everything written before. It may be called again after any error that does not match
	// [ErrNotSupported].
	Listen(ctx context.Context, heard func(category Category, head GlobalPosition)) error

	// TrimCheckpoints removes old checkpoints of a consumer, for a user that may remove nothing
	// else. It keeps the last keep messages of the stream, and removes at most some 10,000 in one
	// call. It returns how many it removed. The version of the stream stays, and so do the
	// positions of the messages that are left. If a message to remove is not of the type Recorded,
	// it removes nothing and the error matches [ErrInvalid]; a driver may refuse the stream for a
	// message that it would keep, too.
	TrimCheckpoints(ctx context.Context, stream StreamName, keep int) (removed int64, err error)

	// Now returns the time of the clock that stamps messages: the database server's, or the
	// process's where the database has no clock of its own. All processes on one store read one
	// clock. It is the time of the call, also in a transaction that began earlier.
	Now(ctx context.Context) (time.Time, error)

	// Epoch returns a text that changes when a restored backup or a failover may have lost
	// committed messages; it may also change when nothing was lost. It is "" if none can be lost.
	// It warns even a client that cannot tell by the messages it sees, because only its own writes
	// were lost.
	Epoch(ctx context.Context) (string, error)

	// Check is [Store.Check] if write is set, else [Store.CheckReading]. It asks the database each
	// time and changes nothing there.
	Check(ctx context.Context, write bool) error

	// Connections returns how many connections calls share, 0 for any number. It makes no round
	// trip.
	Connections() int

	// Forgets reports whether an operator can remove the keys of intents and reservations, as dibs
	// forget does. It makes no round trip.
	Forgets() bool

	// Close closes the database's handle if the driver has opened it itself.
	Close() error
}

// A Conflict describes the streams of a write that found other versions than it expected. All of it
// is of one moment, at which no other write to these streams was under way.
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

	// Past are types of messages that may have been written since the expected version. If every
	// message since then has one of these types and is still there, the stream counts as at the
	// expected version, and the records go to its end. Otherwise it is a conflict.
	Past []string

	// After is the id of the message at the expected version. If no message or another message is
	// there, it is a conflict. With [uuid.Nil] any message may be there.
	After uuid.UUID
}

// Conditional reports whether the append depends on more than the stream's version: on the types of
// messages, on the id of one, or on whether the stream exists.
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

// Same reports whether m, with its metadata in stored form, equals r: the same id, type, data and
// metadata, compared as JSON with exact numbers. It is for databases that cannot compare JSON.
func (r Encoded) Same(m *Message, metadata json.RawMessage) bool {
	return m.ID == r.ID && m.Type == r.Type && exactjson.Equal(m.Data, r.Data) && exactjson.Equal(metadata, r.Metadata)
}

// Written says where a write put its messages.
type Written struct {
	Stream StreamName

	// Version is the position of the last message written, and so the stream's
	// version after the write. With Duplicate, other messages may have come since.
	Version Version

	// GlobalPosition is the last message's. It is 0 if the write was only a check.
	GlobalPosition GlobalPosition

	// Time is the last message's, by the store's clock. It is zero if the write was only a check.
	Time time.Time

	// IDs are the messages', in order.
	IDs []uuid.UUID

	// Duplicate: an earlier write with the same ids wrote the messages, and this one changed
	// nothing. It is false if the answer was lost and the store looked the messages up, because
	// then nothing shows which write wrote them.
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

// A Filter selects messages of a category. The zero value lets all through; otherwise a message
// must meet every field that is set.
type Filter struct {
	// Types are the message types to let through. An empty list lets all through.
	Types []string

	// Correlation lets messages through that have a correlation stream of this category.
	Correlation Category

	// GroupSize splits the category among that many members of a consumer group, by
	// [StreamName.GroupMember]; GroupMember, from 0, is the member to read for. Size 0 does not
	// split.
	GroupSize   int
	GroupMember int
}

// IsZero reports whether f lets everything through.
func (f Filter) IsZero() bool {
	return len(f.Types) == 0 && f.Correlation == "" && f.GroupSize == 0 && f.GroupMember == 0
}

// Matches reports whether f lets m through. It is for databases that cannot filter.
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
		return NewInvalidError("filter types", len(f.Types), fmt.Sprintf("must be at most %d", maxFilterTypes))
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
		return NewInvalidError("group size", f.GroupSize, fmt.Sprintf("must be between 1 and %d, or 0 for no group", maxGroupSize))
	case f.GroupMember < 0:
		return NewInvalidError("group member", f.GroupMember, "must be at least 0")
	case f.GroupSize == 0 && f.GroupMember != 0:
		return NewInvalidError("group member", f.GroupMember, "must not be set without a group size")
	case f.GroupSize > 0 && f.GroupMember >= f.GroupSize:
		return NewInvalidError("group member", f.GroupMember, fmt.Sprintf("must be less than the group size, %d", f.GroupSize))
	}
	return nil
}

// A CategoryPage is the answer to a [CategoryQuery].
type CategoryPage struct {
	Messages []*Message

	// Next is where to go on: every message before it that the filter lets through has been
	// returned, and no new one will appear there. It also passes messages that the filter excludes,
	// so that you do not look at them again. At the end of the category it is the position after
	// the last message looked at, or the query's From if there was none.
	Next GlobalPosition

	// First and Last are the first and the last message looked at, whether the filter lets them
	// through or not; Next is right behind Last. They are zero if no message was looked at. If they
	// are the first and the last of Messages, a driver may leave them to the store.
	First, Last Mark

	// More is set if the page ended before the category did.
	More bool
}

// A Mark identifies a message even if the store loses it, by a restored backup or a failover, and
// then uses its position again: for another message, or for the same one at another time.
type Mark struct {
	ID             uuid.UUID
	Stream         StreamName
	Position       Version // in its stream
	GlobalPosition GlobalPosition
	Time           time.Time
}

// IsZero reports whether m marks no message.
func (m Mark) IsZero() bool { return m.ID == uuid.Nil }

// Limits. They are the same for every driver, so that messages can be moved between databases.
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
