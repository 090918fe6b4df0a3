package sagas

import "github.com/dibs-go/dibs/soak/crew"

// The calls that are recorded.
const (
	Begin = "begin" // of a saga, by a customer
	Tell  = "tell"  // what a person writes: a reply from outside, a cancel, resume or resolution
	Wait  = "wait"  // for the end of a saga; State is what the customer is told
	Set   = "set"   // of timers
	Post  = "post"  // of messages for the relay
	Write = "write" // to a saga's stream, by a runner
	Do    = "do"    // a function of a step
	Undo  = "undo"  // an undo of a step
	Ring  = "ring"  // a timer, to its handler
	Send  = "send"  // to the sink: OK if the sink took it
)

// The answers to them.
const (
	OK      = crew.OK
	Unknown = "unknown" // it may have happened
	Failed  = crew.Failed
)

// A Record is one line of a history: a call before it is made, or its answer.
type Record struct {
	Op       int64    `json:"op"`           // the number of the call in its file
	At       int64    `json:"at"`           // of the call before it, of the answer after it
	Call     string   `json:"call"`         // the same in both
	Answer   string   `json:"is,omitempty"` // "" in a call
	Saga     string   `json:"saga,omitempty"`
	Step     string   `json:"step,omitempty"`
	State    string   `json:"state,omitempty"` // the state that a customer is told
	IDs      []string `json:"ids,omitempty"`   // of messages
	Stream   string   `json:"stream,omitempty"`
	Position int64    `json:"position,omitempty"` // in the stream
	Due      int64    `json:"due,omitempty"`      // when a timer is due
	Note     string   `json:"note,omitempty"`
}

// Head implements [crew.Record].
func (r *Record) Head() crew.Head { return crew.Head{Op: &r.Op, At: &r.At, Call: &r.Call} }

type recorder = crew.Recorder[Record, *Record]
