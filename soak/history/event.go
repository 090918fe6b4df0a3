// Package history has the calls that the clients of a store record: each call before it is made,
// and its outcome after it. An event is a line of a process's file, which package crew writes, and
// a row of the table calls, which package promise reads. So the names here are the names of columns
// and JSON fields in the queries of package check.
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

// The calls. The schema of package check has the arguments and answers of each.
const (
	Write    = "write"    // one call of Write or WriteStreams
	WriteTx  = "write-tx" // the same in a transaction of the caller's own
	Version  = "version"
	Read     = "read"
	Resolve  = "resolve"
	Run      = "run"   // one life of a consumer
	Fetch    = "fetch" // a page that it was answered
	Handle   = "handle"
	Park     = "park"
	Position = "position" // the storing of a checkpoint
	Reserve  = "reserve"
	Effect   = "effect" // outside of the store
	End      = "end"    // of a process, in order
)

// The answers. If a write, or a call that parks or stores a position, ended with anything but OK
// and Unknown, it has changed nothing, and never will. Without an answer the outcome is unknown
// too.
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

	// Actual is the version in the answer, or the version that a conflicting write found.
	Actual messagestore.Version `json:"actual,omitempty"`

	Consumer string                      `json:"consumer,omitempty"`
	Category messagestore.Category       `json:"category,omitempty"`
	Alone    bool                        `json:"alone,omitempty"`    // of a run: no other process joins its group, and a failover may undo the states of that
	Run      int64                       `json:"run,omitempty"`      // the call of Run or CatchUp to which it belongs
	Interval int                         `json:"interval,omitempty"` // of messages, between records of a position
	Batch    int                         `json:"batch,omitempty"`    // of messages, read at once
	Attempt  int                         `json:"attempt,omitempty"`  // of the handler, from 1
	Position messagestore.GlobalPosition `json:"position,omitempty"`

	Left   int   `json:"left,omitempty"`   // how many more goroutines there are than at the start of the process
	Usable *bool `json:"usable,omitempty"` // whether the store of the process still worked when the faults were over

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

	// The answer about the last message, as in messagestore.Written.
	Version   messagestore.Version        `json:"version,omitempty"`
	Global    messagestore.GlobalPosition `json:"global,omitempty"`
	Duplicate bool                        `json:"duplicate,omitempty"`
}

// A Message has the fields that identify a message.
type Message struct {
	ID    uuid.UUID `json:"id"`
	Value uint64    `json:"value,omitempty"` // in its data, and in no other message that was not sent as its copy
	Hash  int64     `json:"hash,omitempty"`  // of its content: see Hash

	// The place of the message when it was read.
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

// Hash returns a hash of a message's content: its type, its data byte for byte, and its metadata as
// canonical JSON, so that equal metadata have equal hashes in any spelling. It fails for metadata
// that are not JSON. The arguments must be what the sender passed.
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
