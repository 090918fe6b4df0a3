// Package history has the calls that the clients of a store write down: each before it is made, and its outcome after it.
// An event is a line of a process's file as package crew writes it, and a row of the table calls as package promise
// reads it: so the names here are those of the columns and of the JSON that the queries of package check look into.
package history

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/crew"
)

// The calls of writers and readers. Beside each is the content of its events: of the call, and after the semicolon of
// the answer.
const (
	// Write is one call of Write or WriteStreams: Appends with Stream, Expected and Messages (ID, Value, Hash); Appends
	// with Stream, Version, Global and Duplicate, in the same order. A conflict has Actual, and as its only append the
	// stream that conflicted.
	Write = "write"

	// WriteTx is Write in a transaction of the caller's own, from before its first statement to after its commit or
	// rollback. It writes to each stream once.
	WriteTx = "write-tx"

	// Version asks for the version of a stream: one append with Stream; Actual.
	Version = "version"

	// Read reads a stream or a category: one append with Stream and as Expected the first position, or a Category; one
	// append for each stream met, with Messages as they were read (ID, Value, Hash, Position, Global).
	Read = "read"

	// Resolve finds the outcome of a write of unknown outcome: Ref, and Appends with Stream and the Messages' IDs;
	// Appends as of Write where it was written. Unknown says that it still is.
	Resolve = "resolve"
)

// The calls of consumers and handlers. All of these have Consumer and Category; all but Run have Run.
const (
	// Run is one life of a consumer, from before Run is called until it has returned: Alone, Interval, Batch, and as
	// Position the start position of a new consumer. Its number is the Run of the consumer's other events. A consumer has
	// a life for each set of slots that it takes.
	Run = "run"

	// Fetch is a page that a consumer was answered, without an answer here: Position is where the page says to go on.
	Fetch = "fetch"

	// Handle is one call of the handler: one append with Stream and the Message (ID, Value, Hash, Position, Global),
	// Attempt from 1, Key if the message has one; OK if it returned nil.
	Handle = "handle"

	// Park gives up on a message: one append with Stream and the Message.
	Park = "park"

	// Position stores a consumer's checkpoint: Position, the first that is not done with; the message of the state of its
	// group that it writes, in one append with Stream and ID; and as Target the member, unless none is left.
	Position = "position"

	// Reserve tries to reserve a key: Key, Value of the command, one append with the reservation's Stream and, as its
	// message, the source command (ID).
	Reserve = "reserve"

	// Effect is an effect outside the store, without an answer: Key.
	Effect = "effect"
)

// The answers. A write, or a call that parks or stores a position, that ended as anything but OK and Unknown has changed
// nothing, and never will. One without an answer is of unknown outcome too.
const (
	OK         = crew.OK
	Unknown    = "unknown"
	Failed     = crew.Failed
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

// An Event is one line of a history: a call, or its answer.
type Event struct {
	Op     int64  `json:"op"`
	At     int64  `json:"at"`
	Call   string `json:"call"`
	Answer string `json:"is,omitempty"`

	Appends []Append `json:"appends,omitempty"`
	Ref     *Ref     `json:"ref,omitempty"`    // the call that this one is about
	Target  string   `json:"target,omitempty"` // the member of a group
	Note    string   `json:"note,omitempty"`   // an error's text

	// Actual is the version that was answered, or met by a write that conflicted.
	Actual messagestore.Version `json:"actual,omitempty"`

	Consumer string                      `json:"consumer,omitempty"`
	Category messagestore.Category       `json:"category,omitempty"`
	Alone    bool                        `json:"alone,omitempty"`    // of a run: no other process joins its group, and a failover may undo the states of that
	Run      int64                       `json:"run,omitempty"`      // the call that the consumer runs by
	Interval int                         `json:"interval,omitempty"` // of messages, between records of a position
	Batch    int                         `json:"batch,omitempty"`    // of messages, read at once
	Attempt  int                         `json:"attempt,omitempty"`  // of the handler, from 1
	Position messagestore.GlobalPosition `json:"position,omitempty"`

	Key   string `json:"key,omitempty"`   // an idempotence key
	Value uint64 `json:"value,omitempty"` // of the command that wants the key
}

// Head implements [crew.Record].
func (e *Event) Head() crew.Head { return crew.Head{Op: &e.Op, At: &e.At, Call: &e.Call} }

// An Append is the part of a call on one stream.
type Append struct {
	Stream   messagestore.StreamName `json:"stream"`
	Expected messagestore.Version    `json:"expected,omitempty"`
	Messages []Message               `json:"messages,omitempty"`

	// The answer: of the last message, as in messagestore.Written.
	Version   messagestore.Version        `json:"version,omitempty"`
	Global    messagestore.GlobalPosition `json:"global,omitempty"`
	Duplicate bool                        `json:"duplicate,omitempty"`
}

// A Message is as much of a message as tells it from any other.
type Message struct {
	ID    uuid.UUID `json:"id"`
	Value uint64    `json:"value,omitempty"` // in its data, and in no other message that was not sent as its copy
	Hash  int64     `json:"hash,omitempty"`  // of its content: see Hash

	// Where it was when it was read.
	Position messagestore.Version        `json:"position,omitempty"`
	Global   messagestore.GlobalPosition `json:"global,omitempty"`
}

// A Ref names a call of any process.
type Ref struct {
	Process string `json:"process"`
	Op      int64  `json:"op"`
}

// String returns the name, as in "writer-3-1:17".
func (r Ref) String() string { return fmt.Sprintf("%s:%d", r.Process, r.Op) }

// A Recorder writes the events of one process.
type Recorder = crew.Recorder[Event, *Event]

// Hash returns a hash of a message's content: its type, its data byte for byte, and its metadata as canonical JSON, so
// that equal metadata have equal hashes in any spelling. It fails for metadata that are not JSON. All are as the sender
// gave them.
func Hash(messageType string, data, metadata json.RawMessage) (int64, error) {
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
	return int64(h.Sum64()), nil //nolint:gosec // any 64 bits
}
