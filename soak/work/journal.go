package work

import "github.com/dibs-go/dibs/soak/history"

// A journal is the history of this process. If it cannot be written the process ends, by a panic: no step may go
// unrecorded. It is safe for concurrent use.
type journal struct{ *history.Recorder }

func (j journal) begin(e *history.Event) (call history.Event) { return j.Begin(*e) }

func (j journal) end(call history.Event, answer string, e *history.Event) {
	e.Answer = answer
	j.End(call, *e)
}

func (j journal) note(e *history.Event) { j.Begin(*e) }
