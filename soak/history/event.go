package history

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// A Kind says whether an event begins an operation, or how it ended.
type Kind string

// The kinds of events.
const (
	Invoke Kind = "invoke" // about to be done
	OK     Kind = "ok"     // done
	Fail   Kind = "fail"   // definitely not done: nothing has changed or ever will by it
	Info   Kind = "info"   // nobody knows
)

// A Func is a kind of operation. Beside each is the content of its events: of the invoke, and after the
// semicolon of the end. A fail has a Class and perhaps a Note.
type Func string

// What writers do.
const (
	// Write is one call of Write or WriteStreams: Appends with Stream, Expected and
	// Messages (ID, Value, Hash); of an OK, Appends with Stream, Version, Global and
	// Duplicate, in the same order. A fail of class Conflict has Actual, and as its only
	// append the stream that conflicted.
	Write Func = "write"

	// WriteTx is Write in a transaction of the caller's own, from before its first
	// statement to after its commit or rollback. It writes to each stream once.
	WriteTx Func = "write-tx"

	// Version asks for the version of a stream: one append with Stream; Actual.
	Version Func = "version"

	// Read reads a stream or a category: one append with Stream, or a Category; one
	// append for each stream met, with Messages as they were read (ID, Value, Hash,
	// Position, Global).
	Read Func = "read"

	// Resolve finds the outcome of a write of unknown outcome: Ref, and Appends with
	// Stream and the Messages' IDs; an OK of class Written, with Appends as of Write, or
	// of class NotWritten. An info says that it is still unknown.
	Resolve Func = "resolve"
)

// The operations of consumers and handlers. All of these have Consumer and Category; all but Run have Run.
const (
	// Run is one life of a consumer, from before Run is called until it has returned:
	// Alone, Interval, Batch, and as Position the start position of a new consumer; a fail of
	// class Ahead or another. Its number is the Run of the consumer's other events. A consumer has a
	// run for each set of slots that it takes.
	Run Func = "run"

	// Fetch is a page that a consumer was answered, an OK without an invoke: Position is
	// where the page says to go on.
	Fetch Func = "fetch"

	// Handle is one call of the handler: one append with Stream and the Message (ID,
	// Value, Hash, Position, Global), Attempt from 1, Key if the message has one; OK if
	// it returned nil, Fail if not.
	Handle Func = "handle"

	// Park gives up on a message: one append with Stream and the Message.
	Park Func = "park"

	// Position records a consumer's position: Position, the first that is not done with; the message
	// of the state of its group that it writes, in one append with Stream and ID; and as Target the
	// member, unless none is left.
	Position Func = "position"

	// Reserve tries to reserve a key: Key, Value of the command, one append with the
	// reservation's Stream and, as its message, the source command (ID); an OK of class
	// Won or Duplicate, a fail of class KeyReused or another.
	Reserve Func = "reserve"

	// Effect is an effect outside the store, an OK without an invoke: Key.
	Effect Func = "effect"
)

// What the harness does.
const (
	// Fault is a fault from its beginning to its end: Class is its name, Target its
	// target.
	Fault Func = "fault"

	// Failover is the loss of a primary to an asynchronous standby, or of the messages
	// written since a backup: the invoke is from before the copy stopped to follow, so
	// that all acknowledged before is in the copy; the end is from after the new primary
	// accepts writes, with Appends of one Stream for each category's Name and, as Global,
	// its head on the new primary before the first write there.
	Failover Func = "failover"

	// Overtake is the time after a Failover in which only writers reach the new primary,
	// for it to grow past the consumers' positions: Appends of the OK as Failover's, with
	// the heads when all others are let there.
	Overtake Func = "overtake"

	// Heal is from the end of the last fault until everything is quiet; a fail if that
	// took too long.
	Heal Func = "heal"
)

// Classes of answers. Any other word may be used; the checker knows these.
const (
	Conflict   = "conflict"    // the stream is at another version
	IDConflict = "id-conflict" // the id is used for something else
	RolledBack = "rolled-back" // by the caller's own will
	Refused    = "refused"     // bad input
	Written    = "written"     // resolved: it happened
	NotWritten = "not-written" // resolved: it never will
	Won        = "won"         // reserved
	Duplicate  = "duplicate"   // reserved before, by an equal command
	KeyReused  = "key-reused"  // reserved before, by a different command
	Ahead      = "ahead"       // the position is ahead of the store
	Epoch      = "epoch"       // the store has another epoch, and the consumer begins again
)

// An Event is one line of a history.
type Event struct {
	Time int64  // nanoseconds of CLOCK_MONOTONIC; the writer sets it
	Proc string // whose file it is in; the reader sets it
	Kind Kind
	Func Func
	Op   uint64 // which operation of the process

	Appends []Append

	Ref    Ref    // the operation that this one is about
	Class  string // how it ended, or which fault it is
	Target string // the target of a fault: a process, a server
	Note   string // an error's text, for the reader of the story

	// Actual is the version that was answered, or met by a write that conflicted.
	Actual messagestore.Version

	Consumer string
	Category messagestore.Category
	Alone    bool   // of a run: no other process joins its group, and a failover may undo the states of that
	Run      uint64 // the operation that the consumer runs by
	Interval int    // of messages, between records of a position
	Batch    int    // of messages, read at once
	Attempt  int    // of the handler, from 1
	Position messagestore.GlobalPosition

	Key   string // an idempotence key
	Value uint64 // of the command that wants the key
}

// An Append is the part of an operation on one stream.
type Append struct {
	Stream   messagestore.StreamName
	Expected messagestore.Version
	Messages []Message

	// The reply: of the last message, as in messagestore.Written.
	Version   messagestore.Version
	Global    messagestore.GlobalPosition
	Duplicate bool
}

// A Message is as much of a message as tells it from any other.
type Message struct {
	ID    uuid.UUID
	Value uint64 // in its data, and in no other message that was not sent as its copy
	Hash  uint64 // of its content: see Hash

	// Where it was when it was read.
	Position messagestore.Version
	Global   messagestore.GlobalPosition
}

// A Ref names an operation of any process.
type Ref struct {
	Proc string
	Op   uint64
}

// String returns the name, as in "writer-3.1:17".
func (r Ref) String() string {
	return fmt.Sprintf("%s:%d", r.Proc, r.Op)
}

// Hash returns a hash of a message's content: its type, its data byte for byte, and its metadata as
// canonical JSON, so that equal metadata have equal hashes in any spelling. It fails for metadata that are
// not JSON. All are as the sender gave them.
func Hash(messageType string, data, metadata json.RawMessage) (uint64, error) {
	h := fnv.New64a()
	h.Write([]byte(messageType))
	h.Write([]byte{0})
	h.Write(data)
	h.Write([]byte{0})
	if len(metadata) > 0 {
		canonical, err := exactjson.Canonical(metadata)
		if err != nil {
			return 0, fmt.Errorf("hashing a message of type %q: %w", messageType, err)
		}
		h.Write(canonical)
	}
	return h.Sum64(), nil
}
