package testserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// A Fault is the fate of a message.
type Fault int

// The faults. Close is like the end of a process: a reader sees the end of the stream. Reset is
// like the restart of a machine: reads and writes fail (over TCP; a Unix socket is closed). Both
// affect both sides. The proxy answers a request for encryption itself; its fault either passes it
// or ends the connection.
const (
	// Pass forwards the message: no fault.
	Pass Fault = iota

	// Drop drops only this message. If it is a CancelRequest, its connection is closed.
	Drop

	// Drip forwards the message byte by byte.
	Drip

	// Hold keeps the message, and everything that its sender sends after it, until [Proxy.Release].
	// Then it arrives even if its sender is gone; the other side does not learn of that before.
	Hold

	// Lose drops the message, everything that its sender sends after it, and the sender's end. The
	// connection stays.
	Lose

	// Forsake drops the message and closes the server's side. The client's side stays open, so the
	// client does not notice.
	Forsake

	CloseBefore // instead of it
	CloseWithin // after half of the message
	CloseAfter  // after it
	ResetBefore // like CloseBefore, by reset
	ResetWithin
	ResetAfter
)

// A Rule returns the fault for each message that arrives at the proxy, in order of arrival, over
// all connections. It is called by one goroutine at a time, must not call methods of the proxy, and
// is not called for a closed connection.
type Rule func(Message) Fault

// A Proxy forwards messages between clients and a PostgreSQL server, or frames between clients and
// servers of HTTP/2, and applies its rule to each. It knows where messages begin and end, so a test
// can cut a connection, or delay or drop a message, at any of them:
//
//	p, err := testserver.NewProxy("tcp", "127.0.0.1:5432")
//	...
//	defer p.Close()
//	p.SetRule(func(m testserver.Message) testserver.Fault {
//		if m.Name == "CommandComplete" {
//			return testserver.CloseBefore // it was done, and the client never hears of it
//		}
//		return testserver.Pass
//	})
//
// Nothing here waits for a clock. A Proxy is safe for concurrent use.
type Proxy struct {
	network  string
	frames   bool // of HTTP/2
	listener net.Listener
	ctx      context.Context //nolint:containedctx // the proxy's life
	end      context.CancelFunc
	running  sync.WaitGroup

	mu        sync.Mutex
	addresses []string // each of which gets a connection in turn
	rule      Rule
	recording bool
	record    []Message
	release   chan struct{} // Release closes and replaces it
	conns     map[*conn]struct{}
	count     int
}

// NewProxy returns a proxy that listens on a free port, on this machine only, and connects to the server
// at address, of network "tcp" or "unix". The caller closes it.
//
// It does not support TLS: it refuses a client's request for it, so the server must not require it.
func NewProxy(network, address string) (*Proxy, error) { return newProxy(network, false, address) }

// NewHTTPProxy returns a proxy for HTTP/2 without TLS. It connects to each of the servers at these
// addresses in turn, so a client that is cut off, or whose server is away, comes to another one. Its
// messages are the connection's preface, which has the name PRI, and the frames after it.
func NewHTTPProxy(addresses ...string) (*Proxy, error) { return newProxy("tcp", true, addresses...) }

func newProxy(network string, frames bool, addresses ...string) (*Proxy, error) {
	ctx, end := context.WithCancel(context.Background())
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		end()
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{
		network: network, frames: frames, addresses: addresses, listener: listener, ctx: ctx, end: end,
		release: make(chan struct{}), conns: map[*conn]struct{}{},
	}
	p.running.Go(p.accept)
	return p, nil
}

// Port returns the proxy's port on 127.0.0.1.
func (p *Proxy) Port() uint16 {
	return netip.MustParseAddrPort(p.listener.Addr().String()).Port()
}

// SetRule replaces the rule, from the next message on. nil forwards everything.
func (p *Proxy) SetRule(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// Record begins a list of arriving messages, without their bodies. stop ends the list and returns
// it. There is one list at a time.
func (p *Proxy) Record() (stop func() []Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recording, p.record = true, nil
	return func() []Message {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.recording = false
		return slices.Clone(p.record)
	}
}

// Release delivers the held messages. The rule applies again to later messages.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.release)
	p.release = make(chan struct{})
}

// Close closes all connections, drops held messages, and returns when the proxy's goroutines have
// ended. You may call it again.
func (p *Proxy) Close() error {
	p.end()
	err := p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		c.close()
	}
	p.mu.Unlock()
	p.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // it is closed
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// serve forwards the messages of one connection.
func (p *Proxy) serve(client net.Conn) {
	c := &conn{proxy: p, client: client}
	defer c.close()
	if !p.add(c) {
		return
	}
	defer p.remove(c)

	toServer := &side{from: client}
	fromClient := &reader{from: FromClient, frames: p.frames, source: bufio.NewReader(toServer)}
	m, code, err := fromClient.begin()
	for ; err == nil && (code == sslRequest || code == gssRequest); m, code, err = fromClient.begin() {
		if fault, _ := c.ask(m); fault != Pass {
			return
		}
		if _, err := client.Write([]byte{'N'}); err != nil {
			return
		}
	}
	if err != nil {
		return
	}
	server, err := new(net.Dialer).DialContext(p.ctx, p.network, p.target(c.number))
	if err != nil || !c.reached(server) {
		return
	}
	toServer.reached(server)
	toClient := &side{from: server}
	toClient.reached(client)
	var pump sync.WaitGroup
	pump.Go(func() {
		c.pump(&reader{from: FromServer, frames: p.frames, source: bufio.NewReader(toClient)}, toClient)
		c.serverEnded()
	})
	c.pass(m, fromClient.raw, toServer) // it was read before there was a server
	c.pump(fromClient, toServer)
	c.clientEnded()
	pump.Wait()
}

func (p *Proxy) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.count++
	c.number = p.count
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// ask returns the fault for a message, and for Hold the channel that releases it.
func (p *Proxy) ask(m Message) (Fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recording {
		kept := m
		kept.Body = nil
		p.record = append(p.record, kept)
	}
	if p.rule == nil {
		return Pass, nil
	}
	return p.rule(m), p.release
}

// Retarget makes new connections lead to the server at another address, of the same network.
// Existing connections stay.
func (p *Proxy) Retarget(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses = []string{address}
}

func (p *Proxy) target(conn int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addresses[conn%len(p.addresses)]
}

// Sever closes all existing connections, also lost and forsaken ones, like a keepalive that finds
// the other side gone. The proxy goes on.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}
