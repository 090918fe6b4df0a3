package pgproxy

// Sever closes all existing connections, also lost and forsaken ones, like a keepalive that finds
// the other side gone. The proxy goes on.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}
