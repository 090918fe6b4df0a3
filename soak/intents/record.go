package intents

import "github.com/dibs-go/dibs/soak/crew"

// The calls that are recorded.
const (
	Reserve  = "reserve"
	Extend   = "extend"
	Confirm  = "confirm"
	Transact = "transact" // a confirmation in a transaction with a row
	Release  = "release"
	Resume   = "resume"
	Await    = "await"
	Force    = "force" // a release by an operator
	Work     = "work"  // a look at the lease before an effect, by work that heeds it
	Serve    = "serve" // by a process that others call
	Freeze   = "freeze"
	Failover = "failover" // to a standby
	Wrote    = "write"    // a write to the resource, with the token
)

// The answers to them.
const (
	Reserved = "reserved"
	Held     = "held"
	Done     = "done"
	Reused   = "reused"
	OK       = crew.OK
	Lost     = "lost"    // the lease
	Unknown  = "unknown" // it may have happened
	Failed   = crew.Failed
	Free     = "free" // nothing was held
)

// Targets of the nemesis, in addition to processes.
const (
	Bouncer = "pgbouncer"
	Sync    = "sync"  // a standby that commits wait for
	Async   = "async" // a standby that lacks the last commits: writes of the call may be undone
)

// ofContext is the note of a look at the context of the work, and not at the lease.
const ofContext = "context"

// A Record is one line of a history: a call before it is made, or its answer.
type Record struct {
	Op      int64  `json:"op"`           // the number of the call in its file
	At      int64  `json:"at"`           // of the call before it, of the answer after it
	Call    string `json:"call"`         // the same in both
	Answer  string `json:"is,omitempty"` // "" in a call
	Stream  string `json:"stream,omitempty"`
	Session string `json:"session,omitempty"`
	Token   int64  `json:"token,omitempty"`
	With    []Key  `json:"with,omitempty"`   // further keys of the request, with their tokens
	Other   bool   `json:"other,omitempty"`  // a request has one of two contents; this one has the second
	Result  string `json:"result,omitempty"` // which is confirmed, or was confirmed before
	ByToken int64  `json:"by,omitempty"`     // of the lease that the caller was told of
	By      string `json:"bySession,omitempty"`
	On      string `json:"on,omitempty"` // the stream of that, of several
	Note    string `json:"note,omitempty"`
}

// A Key is one of several.
type Key struct {
	Stream string `json:"stream"`
	Token  int64  `json:"token,omitempty"`
}

// Head implements [crew.Record].
func (r *Record) Head() crew.Head { return crew.Head{Op: &r.Op, At: &r.At, Call: &r.Call} }

type recorder = crew.Recorder[Record, *Record]
