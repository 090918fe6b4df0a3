package crew

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dibs-go/dibs/soak/promise"
)

// A Head points to the fields that every record has: the number of its call in the file, its time,
// and its name. A call has the time before it, and its answer the time after it; number and name
// are the same in both.
type Head struct {
	Op, At *int64
	Call   *string
}

// A Record is a line of a history: a call before it is made, or its answer.
type Record[R any] interface {
	*R
	Head() Head
}

// Now returns the time, in microseconds since 1970.
func Now() int64 { return time.Now().UnixMicro() }

// A Recorder appends to the file of one process. It is safe for concurrent use.
type Recorder[R any, P Record[R]] struct {
	mu   sync.Mutex
	file *os.File
	op   int64
}

// NewRecorder makes the file of a process. The caller closes the recorder.
func NewRecorder[R any, P Record[R]](dir, process string) (*Recorder[R, P], error) {
	file, err := os.OpenFile(filepath.Join(dir, process+promise.Ending), os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // to be read
	return &Recorder[R, P]{file: file}, err
}

// Begin records a call. If it cannot, it panics, because the process must not go on.
func (r *Recorder[R, P]) Begin(c R) R { return r.Since(Now(), c) }

// Since records a call that was made before, and that changed nothing if it has no answer.
func (r *Recorder[R, P]) Since(at int64, c R) R {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.op++
	head := P(&c).Head()
	*head.Op, *head.At = r.op, at
	r.write(c)
	return c
}

// End records the answer.
func (r *Recorder[R, P]) End(c, answer R) {
	of, head := P(&c).Head(), P(&answer).Head()
	*head.Op, *head.Call, *head.At = *of.Op, *of.Call, Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(answer)
}

// write writes a line at once, so that a kill tears the last one at most.
func (r *Recorder[R, P]) write(c R) {
	line, err := json.Marshal(c)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("writing a history: %v", err))
	}
}

// Close closes the file.
func (r *Recorder[R, P]) Close() error { return r.file.Close() }

// The calls of the nemesis, which the checkers of all scenarios know.
const (
	Kill  = "kill"  // of a process or the server
	Stop  = "stop"  // of a process
	Cut   = "cut"   // of the connections of a process
	Jump  = "jump"  // of the server's clock, until it is right again
	Drain = "drain" // from the end of the faults until nothing was left to do

	// Faulted is any other fault, by its Name.
	Faulted = "fault"

	// Failover is the loss of a primary to an asynchronous standby, or of the messages written
	// since a backup. It begins before the copy stops following, so that everything acknowledged
	// earlier is in the copy, and ends when the new primary accepts writes. Its answer has the
	// Heads of the new primary before the first write there.
	Failover = "failover"

	// Overtake is the time after a failover in which only writers reach the new primary, so that it
	// grows past the positions of consumers. Its answer has the Heads at the moment when all others
	// may reach it too.
	Overtake = "overtake"
)

// The answers that are the same for all.
const (
	OK     = "ok"
	Failed = "failed" // it did not happen
)

// Server is the target when the server is killed, and not a process.
const Server = "server"

// An Event is a record of the nemesis.
type Event struct {
	Op     int64  `json:"op"`
	At     int64  `json:"at"`
	Call   string `json:"call"`
	Answer string `json:"is,omitempty"`
	Name   string `json:"name,omitempty"` // of a fault
	Target string `json:"target,omitempty"`
	Off    int64  `json:"off,omitempty"` // by how much the clock jumped, in microseconds
	Note   string `json:"note,omitempty"`

	Heads map[string]int64 `json:"heads,omitempty"` // the last global position of each category
}

// Head implements [Record].
func (e *Event) Head() Head { return Head{Op: &e.Op, At: &e.At, Call: &e.Call} }
