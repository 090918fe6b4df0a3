package pgproxy

// Retarget makes new connections lead to the server at another address, of the same network.
// Existing connections stay.
func (p *Proxy) Retarget(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.address = address
}

func (p *Proxy) target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}
