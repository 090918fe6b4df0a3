package messagestore

import "sync"

// bells wakes the readers of a category in the process of its writer.
type bells struct {
	mu sync.Mutex
	by map[Category]map[chan struct{}]struct{}
}

func (b *bells) ring(category Category) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for bell := range b.by[category] {
		select {
		case bell <- struct{}{}:
		default: // it rings already
		}
	}
}

// Watch returns a channel that receives after a write to category through this
// store, so that a reader need not wait for its next poll. It is a hint: writes by
// other stores and processes do not ring, and several writes may ring once. Stop
// ends it; the channel is never closed.
func (s *Store) Watch(category Category) (bell <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	s.bells.mu.Lock()
	defer s.bells.mu.Unlock()
	if s.bells.by == nil {
		s.bells.by = map[Category]map[chan struct{}]struct{}{}
	}
	if s.bells.by[category] == nil {
		s.bells.by[category] = map[chan struct{}]struct{}{}
	}
	s.bells.by[category][c] = struct{}{}
	return c, func() {
		s.bells.mu.Lock()
		defer s.bells.mu.Unlock()
		delete(s.bells.by[category], c)
		if len(s.bells.by[category]) == 0 {
			delete(s.bells.by, category)
		}
	}
}
