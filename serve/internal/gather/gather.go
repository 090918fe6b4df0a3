// Package gather sends what is written to a connection at about the same moment in one call of the
// system. HTTP/2 as net/http has it sends each header and each frame of each call alone, and a call
// of the system costs more than all else that a small call does.
package gather

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// maxWaiting is how many bytes wait for those that are being sent. Then Write waits too.
	maxWaiting = 64 << 10

	// kept is how large a buffer a connection keeps that has nothing to send.
	kept = 8 << 10

	// closeTimeout is for how long Close waits for a peer that takes nothing.
	closeTimeout = 100 * time.Millisecond
)

// Conn returns a connection over c. Its Write returns before the bytes are sent, and the error of an
// earlier one. Close sends what was written. If the peer takes nothing for as long as patience, the
// connection ends; other deadlines of writes have no effect.
func Conn(c net.Conn, patience time.Duration) net.Conn {
	g := &conn{Conn: c, patience: patience}
	g.changed.L = &g.mu
	return g
}

// Listener returns a listener whose connections are such.
func Listener(l net.Listener, patience time.Duration) net.Listener { return listener{l, patience} }

type listener struct {
	net.Listener

	patience time.Duration
}

// Accept returns the next connection.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(c, l.patience), nil
}

type conn struct {
	net.Conn

	patience time.Duration

	mu             sync.Mutex
	changed        sync.Cond
	waiting, spare []byte
	sending        bool      // a goroutine is
	began          time.Time // the call under way
	closing        bool
	err            error
}

// Write has p sent.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) >= maxWaiting && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	c.waiting = append(c.waiting, p...)
	if !c.sending {
		c.sending, c.began = true, time.Now()
		go c.send()
	}
	return len(p), nil
}

// send sends what waits, until nothing does. What is written meanwhile goes next.
func (c *conn) send() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for err := error(nil); len(c.waiting) > 0 && err == nil; c.changed.Broadcast() {
		batch := c.waiting
		c.waiting, c.spare = c.spare, nil
		if err = c.sendAll(batch); err != nil {
			c.err = err
			_ = c.Conn.Close() // whoever reads learns of it
		}
		if cap(batch) <= kept {
			c.spare = batch[:0]
		}
	}
	c.sending = false
	c.changed.Broadcast()
}

// sendAll sends a batch for as long as the peer takes some of it. The caller holds mu.
func (c *conn) sendAll(batch []byte) error {
	for {
		if c.began = time.Now(); !c.closing {
			_ = c.Conn.SetWriteDeadline(c.began.Add(c.patience))
		}
		c.mu.Unlock()
		n, err := c.Conn.Write(batch)
		c.mu.Lock()
		if batch = batch[n:]; n == 0 || c.closing || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// Close closes the connection when all is sent, or the peer has not taken it for a moment.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending && !c.closing {
		_ = c.Conn.SetWriteDeadline(c.began.Add(closeTimeout))
	}
	c.closing = true
	for c.sending {
		c.changed.Wait()
	}
	if c.err == nil {
		c.err = net.ErrClosed
	}
	return c.Conn.Close()
}

// SetWriteDeadline has no effect.
func (*conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the deadline of reads.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }
