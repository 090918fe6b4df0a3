package testserver

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
)

// A conn is a client's connection and its connection to the server.
type conn struct {
	proxy  *Proxy
	number int
	client net.Conn

	over atomic.Bool // the connection was cut: messages that still arrive are dropped
	lost [2]bool     // messages from this side are dropped; each pump reads its own element

	mu     sync.Mutex
	server net.Conn // nil until it is connected
	closed bool
}

// reached sets the server's connection, unless the client's has been closed meanwhile.
func (c *conn) reached(server net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = server
	if c.closed {
		server.Close()
	}
	return !c.closed
}

func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
}

// A side is a direction: messages are read from one connection and written to the other. Messages
// that arrive together are written together, because each write wakes the reader.
type side struct {
	from net.Conn
	to   net.Conn      // nil until it is connected
	out  *bufio.Writer // to there
}

// Read flushes the buffered messages before it waits for more.
func (s *side) Read(p []byte) (int, error) {
	s.flush()
	return s.from.Read(p)
}

func (s *side) reached(to net.Conn) { s.to, s.out = to, bufio.NewWriter(to) }

func (s *side) flush() {
	if s.out != nil {
		_ = s.out.Flush() // reading will show that the other side is gone
	}
}

// pump forwards the messages of one side until that side ends. It keeps reading after the other
// side is gone.
func (c *conn) pump(r *reader, s *side) {
	defer s.flush()
	for {
		m, err := r.next()
		if err != nil {
			return
		}
		c.pass(m, r.raw, s)
	}
}

func (c *conn) ask(m Message) (Fault, <-chan struct{}) {
	if c.over.Load() || c.proxy.ctx.Err() != nil {
		return Lose, nil
	}
	m.Conn = c.number
	return c.proxy.ask(m)
}

// pass applies the rule to a message.
func (c *conn) pass(m Message, raw []byte, s *side) {
	if c.lost[m.From] {
		return
	}
	fault, release := c.ask(m)
	if fault == Pass {
		_, _ = s.out.Write(raw)
		return
	}
	s.flush() // the messages before
	switch fault {
	case Pass: // above
	case Drop:
		if m.Name == "CancelRequest" { // otherwise its sender would wait for an end that never comes
			c.cut(false)
		}
	case Drip:
		for i := range raw {
			_, _ = s.to.Write(raw[i : i+1])
		}
	case Hold:
		select {
		case <-release:
			_, _ = s.to.Write(raw)
		case <-c.proxy.ctx.Done():
		}
	case Lose:
		c.lost[m.From] = true
	case Forsake:
		c.over.Store(true)
		c.server.Close()
	case CloseBefore, ResetBefore:
		c.cut(fault == ResetBefore)
	case CloseWithin, ResetWithin:
		_, _ = s.to.Write(raw[:len(raw)/2])
		c.cut(fault == ResetWithin)
	case CloseAfter, ResetAfter:
		_, _ = s.to.Write(raw)
		c.cut(fault == ResetAfter)
	}
}

// cut ends the connection on both sides.
func (c *conn) cut(reset bool) {
	c.over.Store(true)
	if reset {
		linger(c.client)
		c.client.Close()
		linger(c.server)
		c.server.Close()
		return
	}
	c.server.Close()
	// The client's connection stays open for reading: closing it with unread bytes would reset it.
	closeWrite(c.client)
}

// clientEnded tells the server that the client is gone.
func (c *conn) clientEnded() {
	if !c.lost[FromClient] {
		closeWrite(c.server)
	}
}

// serverEnded tells the client that the server is gone, unless the proxy itself has cut the
// connection.
func (c *conn) serverEnded() {
	if !c.lost[FromServer] && !c.over.Load() {
		closeWrite(c.client)
	}
}

func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// linger makes the next Close reset the connection.
func linger(c net.Conn) {
	if c, ok := c.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
}
