package queues

import "github.com/dibs-go/dibs/soak/crew"

// The calls that are recorded.
const (
	Insert   = "insert"
	Unique   = "unique"   // an insertion of an item of a unique name
	Stage    = "stage"    // insertions in a transaction with a row for each, that are appended in COMMIT
	Take     = "take"     // of the store: ends deliveries, and reserves items
	Extend   = "extend"   // of a session
	Leave    = "leave"    // of a session
	Receive  = "receive"  // of a caller, whose takes have its lease, which is no other's
	Complete = "complete" // by a handler or a caller of Receive: what it is told
	Settle   = "settle"   // another end, by a caller of Receive
	Prolong  = "prolong"  // of a delivery, by a caller of Receive
	Finish   = "finish"   // a completion in a transaction
	Change   = "change"   // by an operator
	Trim     = "trim"     // of a stream
	Handle   = "handle"   // by a handler, until it returns or its context ends
)

// The answers to them.
const (
	OK      = crew.OK
	Lost    = "lost"
	Unknown = "unknown" // it may have happened
	Failed  = crew.Failed
	Undone  = "undone" // it was rolled back
	Reused  = "reused" // it was rolled back, or did not happen, for an id or a unique name has another content
)

// A Record is one line of a history: a call before it is made, or its answer.
type Record struct {
	Op      int64   `json:"op"`           // the number of the call in its file
	At      int64   `json:"at"`           // of the call before it, of the answer after it
	Call    string  `json:"call"`         // the same in both
	Answer  string  `json:"is,omitempty"` // "" in a call
	New     []New   `json:"new,omitempty"`
	Tx      bool    `json:"tx,omitempty"` // in a transaction of the caller's
	Session int64   `json:"session,omitempty"`
	Next    int64   `json:"next,omitempty"` // the session that follows one that is left
	Lease   int64   `json:"lease,omitempty"`
	Ticket  int64   `json:"ticket,omitempty"` // with which a take asked
	Resume  []int64 `json:"resume,omitempty"` // the sessions of earlier attempts at a take
	Ends    []End   `json:"ends,omitempty"`
	Items   []Given `json:"items,omitempty"`
	Had     int64   `json:"had,omitempty"`  // the position of the item that has the unique name
	Sent    int64   `json:"sent,omitempty"` // when COMMIT was sent, 0 if it was not
	Note    string  `json:"note,omitempty"`
}

// A New is an item that is inserted. It has more fields if it is staged or has a unique name.
type New struct {
	ID     string `json:"id"`
	Stream string `json:"stream"`
	N      int    `json:"n,omitempty"`      // the content
	Unique bool   `json:"unique,omitempty"` // its stream is of a unique name
	Back   bool   `json:"back,omitempty"`   // its savepoint was rolled back
	Until  string `json:"until,omitempty"`  // until when it has its unique name, if it is not staged
}

// An End is a delivery that ends.
type End struct {
	Position int64  `json:"p"`
	Version  int    `json:"v"`
	Kind     string `json:"k,omitempty"`  // as the store has it: c, r, f, u, x, t
	Delay    int64  `json:"d,omitempty"`  // in microseconds
	Told     string `json:"is,omitempty"` // d, l or o
}

// A Given is an item that a take got.
type Given struct {
	Position int64  `json:"p"`
	Version  int    `json:"v"`
	Failures int    `json:"f,omitempty"`
	ID       string `json:"id"`
	Stream   string `json:"stream"`
}

// Head implements [crew.Record].
func (r *Record) Head() crew.Head { return crew.Head{Op: &r.Op, At: &r.At, Call: &r.Call} }

type recorder = crew.Recorder[Record, *Record]
