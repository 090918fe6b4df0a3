package intents

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
func (r *recorder) begin(c Record) Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.op++
	c.Op, c.At = r.op, now()
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
