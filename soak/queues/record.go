package queues

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// The calls that are recorded.
const (
	Insert   = "insert"
	Stage    = "stage"    // insertions in a transaction with a row for each, that are appended in COMMIT
	Take     = "take"     // of the store: ends deliveries, and reserves items
	Extend   = "extend"   // of a session
	Leave    = "leave"    // of a session
	Complete = "complete" // by a handler or a caller of Receive: what it is told
	Finish   = "finish"   // a completion in a transaction
	Change   = "change"   // by an operator
	Stop     = "stop"     // of a process, by the nemesis
	Kill     = "kill"     // of a process or the server, by the nemesis
	Cut      = "cut"      // of the connections of a process
	Trim     = "trim"     // of a stream
	Drain    = "drain"    // from the end of the faults until nothing was left to do
)

// The answers to them.
const (
	OK      = "ok"
	Lost    = "lost"
	Unknown = "unknown" // it may have happened
	Failed  = "failed"  // it did not happen
	Undone  = "undone"  // it was rolled back
	Reused  = "reused"  // it was rolled back, for an id or a unique name has another content
)

// Server is the target of a kill that is of no process.
const Server = "server"

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
	Alone   bool    `json:"alone,omitempty"`  // a call of Receive
	Ends    []End   `json:"ends,omitempty"`
	Items   []Given `json:"items,omitempty"`
	Target  string  `json:"target,omitempty"`
	Sent    int64   `json:"sent,omitempty"` // when COMMIT was sent, 0 if it was not
	Note    string  `json:"note,omitempty"`
}

// A New is an item that is inserted. Of one that is staged there is more.
type New struct {
	ID     string `json:"id"`
	Stream string `json:"stream"`
	N      int    `json:"n,omitempty"`      // the content
	Unique bool   `json:"unique,omitempty"` // its stream is of a unique name
	Back   bool   `json:"back,omitempty"`   // its savepoint was rolled back
}

// An End is a delivery that ends.
type End struct {
	Position int64  `json:"p"`
	Version  int    `json:"v"`
	Kind     string `json:"k,omitempty"`  // as the store has it: c, r, f, u, x, t
	Delay    int64  `json:"d,omitempty"`  // in microseconds
	Told     string `json:"is,omitempty"` // d, l or o
}

// A Given is an item that a take was given.
type Given struct {
	Position int64  `json:"p"`
	Version  int    `json:"v"`
	Failures int    `json:"f,omitempty"`
	ID       string `json:"id"`
	Stream   string `json:"stream"`
}

// A Call is a record with its answer.
type Call struct {
	Record
	Process string
	End     int64 // of the answer; Never if there is none
	Answer  Record
}

// Never is the end of a call whose process did not live to see it.
const Never = int64(1)<<62 - 1

const ending = ".calls"

// A recorder appends to the file of one process. It is safe for concurrent use.
type recorder struct {
	mu   sync.Mutex
	file *os.File
	op   int64
}

func newRecorder(dir, process string) (*recorder, error) {
	file, err := os.OpenFile(filepath.Join(dir, process+ending), os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // to be read
	return &recorder{file: file}, err
}

func now() int64 { return time.Now().UnixMicro() }

// begin writes a call down. A process that cannot must not go on.
func (r *recorder) begin(c Record) Record { return r.since(now(), c) }

// since writes a call down that was made before, and changed nothing if it has no answer.
func (r *recorder) since(at int64, c Record) Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.op++
	c.Op, c.At = r.op, at
	r.write(c)
	return c
}

// end writes the answer down.
func (r *recorder) end(c, answer Record) {
	answer.Op, answer.Call, answer.At = c.Op, c.Call, now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(answer)
}

// write writes a line at once, so that a kill tears the last one at most.
func (r *recorder) write(c Record) {
	line, err := json.Marshal(c)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("writing a history: %v", err))
	}
}

func (r *recorder) Close() error { return r.file.Close() }

// readCalls returns the calls of all processes in dir.
func readCalls(dir string) ([]*Call, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+ending))
	if err != nil {
		return nil, err
	}
	var all []*Call
	for _, path := range paths {
		process := strings.TrimSuffix(filepath.Base(path), ending)
		open := map[int64]*Call{}
		err := eachLine(path, func(r Record) {
			if c := open[r.Op]; c != nil {
				c.Answer, c.End = r, r.At
				delete(open, r.Op)
				return
			}
			c := &Call{Record: r, Process: process, End: Never}
			open[r.Op] = c
			all = append(all, c)
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// eachLine reads a file of JSON lines, without the last one if that was torn.
func eachLine[T any](path string, f func(T)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r := bufio.NewReader(file)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		var v T
		if err == nil {
			err = json.Unmarshal(line, &v)
		}
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		f(v)
	}
}

func writeLines[T any](path string, all []T) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffered := bufio.NewWriter(file)
	encoder := json.NewEncoder(buffered)
	for _, v := range all {
		if err := encoder.Encode(v); err != nil {
			return err
		}
	}
	return buffered.Flush()
}
