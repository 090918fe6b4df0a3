package work

import (
	"maps"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
)

// Notes holds the notes of a session's deliveries that have not ended. The zero value is empty. It
// is safe for concurrent use.
type Notes struct {
	mu      sync.Mutex
	of      queuing.Notes
	version int       // of the current notes
	known   int       // the version that the store has
	at      time.Time // of the last request for them
}

// noteInterval is the shortest time between two calls that store notes.
const noteInterval = time.Second

// Set sets the note of a delivery. An empty note removes it.
func (n *Notes) Set(d queuing.Delivery, note string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of[d] == note {
		return
	}
	n.version++
	if n.of == nil {
		n.of = queuing.Notes{}
	}
	if n.of[d] = note; note == "" {
		delete(n.of, d)
	}
}

// Ended removes the note of a delivery, so that a stored copy is not shown any more.
func (n *Notes) Ended(d queuing.Delivery) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.of, d)
}

// News returns the notes if they changed since they were stored and it is time to store them again.
// Otherwise it returns nil.
func (n *Notes) News() (queuing.Notes, int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.version == n.known || time.Since(n.at) < noteInterval {
		return nil, n.known
	}
	n.at = time.Now()
	return maps.Clone(n.of), n.version
}

// Stored says that the store has the notes of a version.
func (n *Notes) Stored(version int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = max(n.known, version)
}

// Again stores all notes again, for another session.
func (n *Notes) Again() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.of) > 0 {
		n.version++
	}
}
