package intents

import (
	"bufio"
	"encoding/json"
	"net"
	"sync"

	"github.com/dibs-go/dibs/soak/crew"
)

// resourceSocket is the resource's.
const resourceSocket = "resource.sock"

// A write is a write to the resource.
type write struct {
	Stream string // of the intent
	Token  int64
	From   string // the process
}

// A resource is outside of the store, in a separate process. All it knows of leases is the last
// fencing token of each key.
type resource struct {
	mu       sync.Mutex
	recorder *recorder
	last     map[string]int64
}

// serve takes writes on the socket until the process ends.
func serve(dir, socket string) error {
	recorder, err := crew.NewRecorder[Record](dir, "resource")
	if err != nil {
		return err
	}
	defer recorder.Close()
	listener, err := net.Listen("unix", socket) //nolint:noctx // for the process's life
	if err != nil {
		return err
	}
	defer listener.Close()
	r := &resource{recorder: recorder, last: map[string]int64{}}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go r.answer(conn)
	}
}

func (r *resource) answer(conn net.Conn) {
	defer conn.Close()
	in, out := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	for {
		var w write
		if in.Decode(&w) != nil {
			return // the client is gone
		}
		r.write(&w)
		if out.Encode(w) != nil {
			return
		}
	}
}

// write accepts a write unless a later holder of its key was there.
func (r *resource) write(w *write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := "refused"
	if w.Token >= r.last[w.Stream] {
		result, r.last[w.Stream] = "accepted", w.Token
	}
	r.recorder.Begin(Record{Call: Wrote, Stream: w.Stream, Token: w.Token, Session: w.From, Result: result})
}

// A customer asks the resource for writes. It is for one goroutine.
type customer struct {
	socket string
	conn   net.Conn
	in     *json.Decoder
	out    *json.Encoder
}

func (c *customer) write(w write) error {
	if c.conn == nil {
		conn, err := net.Dial("unix", c.socket) //nolint:noctx // it is there
		if err != nil {
			return err
		}
		c.conn, c.in, c.out = conn, json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	}
	if err := c.out.Encode(w); err != nil {
		return err
	}
	return c.in.Decode(&w)
}

func (c *customer) Close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}
