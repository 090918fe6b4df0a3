package work

import (
	"maps"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
)

// Notes are those of a session's deliveries that have not ended. The zero value has none. They are safe for concurrent use.
type Notes struct {
	mu      sync.Mutex
	of      queuing.Notes
	version int       // of what there is
	known   int       // the version that the store has
	at      time.Time // of the last that was asked for
}

// noteInterval is how often notes are stored at most.
const noteInterval = time.Second

// Set has a note shown of a delivery, in place of the one before; an empty one removes it.
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

// Ended forgets a job. What the store has of it is not shown any more.
func (n *Notes) Ended(d queuing.Delivery) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.of, d)
}

// News returns the notes if the store does not have them, and it is time to store them, and else nil.
func (n *Notes) News() (queuing.Notes, int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.version == n.known || time.Since(n.at) < noteInterval {
		return nil, n.known
	}
	n.at = time.Now()
	return maps.Clone(n.of), n.version
}

// Stored says that the store has what there was at a version.
func (n *Notes) Stored(version int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = max(n.known, version)
}

// Again has all stored again, for another session.
func (n *Notes) Again() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.of) > 0 {
		n.version++
	}
}
