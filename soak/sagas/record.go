package sagas

import "github.com/dibs-go/dibs/soak/crew"

// The calls that are recorded.
const (
	Begin  = "begin"  // of a saga, by a customer
	Tell   = "tell"   // a customer's reply from outside, cancel, resume or resolution
	Wait   = "wait"   // for the end of a saga: what the customer is told
	Set    = "set"    // of timers
	Post   = "post"   // of messages for the relay
	Write  = "write"  // to a saga's stream, by a runner
	Do     = "do"     // a function of a step
	Undo   = "undo"   // an undo of a step
	Ring   = "ring"   // a timer, to its handler
	Send   = "send"   // to the sink: OK if the sink took it
	Stop   = "stop"   // of a process, by the nemesis
	Kill   = "kill"   // of a process or the server, by the nemesis
	Cut    = "cut"    // of the connections of a process
	Jump   = "jump"   // of the server's clock: off until the answer
	Drain  = "drain"  // from the end of the faults until nothing was left to do
	Server = "server" // the target of a kill that is of no process
)

// The answers to them.
const (
	OK      = "ok"
	Unknown = "unknown" // it may have happened
	Failed  = "failed"  // it did not happen
)

// A Record is one line of a history: a call before it is made, or its answer.
type Record struct {
	Op       int64    `json:"op"`           // the number of the call in its file
	At       int64    `json:"at"`           // of the call before it, of the answer after it
	Call     string   `json:"call"`         // the same in both
	Answer   string   `json:"is,omitempty"` // "" in a call
	Saga     string   `json:"saga,omitempty"`
	Step     string   `json:"step,omitempty"`
	State    string   `json:"state,omitempty"` // that a customer is told
	IDs      []string `json:"ids,omitempty"`   // of messages
	Stream   string   `json:"stream,omitempty"`
	Position int64    `json:"position,omitempty"` // in the stream
	Due      int64    `json:"due,omitempty"`      // of a timer
	Target   string   `json:"target,omitempty"`
	Off      int64    `json:"off,omitempty"` // by how much the server's clock is off, in microseconds
	Note     string   `json:"note,omitempty"`
}

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
