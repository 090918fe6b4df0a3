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
	Stop     = "stop"  // of a process, by the nemesis
	Kill     = "kill"  // of a process, of the server, or of PgBouncer, by the nemesis
	Jump     = "jump"  // of the server's clock
	Freeze   = "freeze"
	Failover = "failover" // to a standby
	Heal     = "heal"     // from the end of the faults until nothing was held
)

// The answers to them.
const (
	Reserved = "reserved"
	Held     = "held"
	Done     = "done"
	Reused   = "reused"
	OK       = "ok"
	Lost     = "lost"    // the lease
	Unknown  = "unknown" // it may have happened
	Failed   = "failed"  // it did not happen
	Free     = "free"    // nothing was held
)

// Targets of the nemesis, beside processes.
const (
	Server  = "server"
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
	Other   bool   `json:"other,omitempty"`  // the request has the other content of the two
	Result  string `json:"result,omitempty"` // that is confirmed, or was
	ByToken int64  `json:"by,omitempty"`     // of the lease that the caller was told of
	By      string `json:"bySession,omitempty"`
	On      string `json:"on,omitempty"`     // the stream of that, of several
	Target  string `json:"target,omitempty"` // of the nemesis
	Note    string `json:"note,omitempty"`
}

// A Key is one of several.
type Key struct {
	Stream string `json:"stream"`
	Token  int64  `json:"token,omitempty"`
}

// keys returns all keys of a call, or of its answer.
func (r *Record) keys() []Key { return append([]Key{{r.Stream, r.Token}}, r.With...) }

// A Call is a record with its answer.
type Call struct {
	Record
	Process string
	End     int64 // of the answer; crew.Never if there is none
	Answer  Record
}

// Head implements [crew.Record].
func (r *Record) Head() crew.Head { return crew.Head{Op: &r.Op, At: &r.At, Call: &r.Call} }

type recorder = crew.Recorder[Record, *Record]

// readCalls returns the calls of all processes in dir.
func readCalls(dir string) (all []*Call, err error) {
	err = crew.EachCall(dir, func(process string, call, answer *Record) {
		c := &Call{Record: *call, Process: process, End: crew.Never}
		if answer != nil {
			c.Answer, c.End = *answer, answer.At
		}
		all = append(all, c)
	})
	return all, err
}
