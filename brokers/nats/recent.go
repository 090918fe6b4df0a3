package natsbroker

import (
	"container/list"
	"sync"
)

// A recent keeps the values of the most recently used keys, up to a bound. It is safe for
// concurrent use.
type recent[K comparable, V any] struct {
	most int

	mu    sync.Mutex
	byKey map[K]*list.Element
	used  *list.List // of entries, the latest first
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func newRecent[K comparable, V any](most int) *recent[K, V] {
	return &recent[K, V]{most: most, byKey: map[K]*list.Element{}, used: list.New()}
}

func (r *recent[K, V]) get(key K) (value V, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, known := r.byKey[key]
	if !known {
		return value, false
	}
	r.used.MoveToFront(e)
	return entryOf[K, V](e).value, true
}

func (r *recent[K, V]) put(key K, value V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, known := r.byKey[key]; known {
		entryOf[K, V](e).value = value
		r.used.MoveToFront(e)
		return
	}
	r.byKey[key] = r.used.PushFront(&entry[K, V]{key, value})
	if r.used.Len() > r.most {
		delete(r.byKey, entryOf[K, V](r.used.Back()).key)
		r.used.Remove(r.used.Back())
	}
}

func (r *recent[K, V]) drop(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, known := r.byKey[key]; known {
		r.used.Remove(e)
		delete(r.byKey, key)
	}
}

func entryOf[K comparable, V any](e *list.Element) *entry[K, V] {
	return e.Value.(*entry[K, V]) //nolint:errcheck,forcetypeassert // the list holds nothing else
}
