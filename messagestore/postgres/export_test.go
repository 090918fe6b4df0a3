package postgres

// Waiting returns how many writes wait for their turn.
func (d *Driver) Waiting() int {
	n := 0
	for _, l := range d.groups.lines {
		l.mu.Lock()
		n += len(l.waiting)
		l.mu.Unlock()
	}
	return n
}

// Flushes returns how many transactions held more than one write, and how many
// writes they held.
func (d *Driver) Flushes() (flushes, writes int64) {
	return d.groups.flushes.Load(), d.groups.flushed.Load()
}
