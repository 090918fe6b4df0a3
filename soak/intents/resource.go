package intents

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/dibs-go/dibs/soak/crew"
)

// A Write is a write that the resource was asked for.
type Write struct {
	At       int64  `json:"at"`
	Key      string `json:"key"` // the intent's stream
	Token    int64  `json:"token"`
	From     string `json:"from"` // the process
	Accepted bool   `json:"accepted"`
}

// Of the resource.
const (
	resourceFile   = "resource.log"
	resourceSocket = "resource.sock"
)

// A resource is outside of the store, in a process of its own. All it knows of leases is the last fencing
// token of each key.
type resource struct {
	mu   sync.Mutex
	log  *os.File
	last map[string]int64
}

// serve takes writes on the socket until the process ends.
func serve(dir, socket string) error {
	log, err := os.OpenFile(filepath.Join(dir, resourceFile), os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // to be read
	if err != nil {
		return err
	}
	defer log.Close()
	listener, err := net.Listen("unix", socket) //nolint:noctx // for the process's life
	if err != nil {
		return err
	}
	defer listener.Close()
	r := &resource{log: log, last: map[string]int64{}}
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
		var w Write
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
func (r *resource) write(w *Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.At = crew.Now()
	if w.Accepted = w.Token >= r.last[w.Key]; w.Accepted {
		r.last[w.Key] = w.Token
	}
	line, err := json.Marshal(w)
	if err == nil {
		_, err = r.log.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("writing the resource's log: %v", err))
	}
}

// A customer asks the resource for writes. It is for one goroutine.
type customer struct {
	socket string
	conn   net.Conn
	in     *json.Decoder
	out    *json.Encoder
}

func (c *customer) write(w Write) error {
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
