package pgproxy

// Sever closes all connections there are, lost and forsaken ones too: as a keepalive does that
// finds the other side gone. The proxy goes on.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}
