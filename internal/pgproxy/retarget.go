package pgproxy

// Retarget has the connections that are made from now on lead to the server at another address, of
// the same network. Connections that there are stay where they are.
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
