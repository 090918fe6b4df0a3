package entity

import (
	"container/list"
	"sync"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A cache holds the most recently used states. A nil *cache holds none. Entities are copied on
// their way in and out, so that the cache shares nothing with a caller.
type cache[T any] struct {
	size int

	mu     sync.Mutex
	recent *list.List // of *entry[T], the most recently used in front
	byName map[messagestore.StreamName]*list.Element
}

type entry[T any] struct {
	stream messagestore.StreamName
	state  state[T]
}

func newCache[T any](size int) *cache[T] {
	return &cache[T]{size: size, recent: list.New(), byName: map[messagestore.StreamName]*list.Element{}}
}

// get returns a copy of the entity of stream, if it is in the cache.
func (c *cache[T]) get(stream messagestore.StreamName) (state[T], bool) {
	if c == nil {
		return empty[T](), false
	}
	c.mu.Lock()
	element, ok := c.byName[stream]
	if !ok {
		c.mu.Unlock()
		return empty[T](), false
	}
	c.recent.MoveToFront(element)
	known := entryOf[T](element).state
	c.mu.Unlock()
	known.entity = clone(known.entity)
	return known, true
}

// put stores a copy of loaded, unless a later version is known. It does not store an empty stream,
// because that saves nothing.
func (c *cache[T]) put(stream messagestore.StreamName, loaded state[T]) {
	if c == nil || loaded.version == messagestore.NoStream {
		return
	}
	loaded.entity = clone(loaded.entity)
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.byName[stream]; ok {
		c.recent.MoveToFront(element)
		known := entryOf[T](element)
		if loaded.version >= known.state.version {
			known.state = loaded
		}
		return
	}
	c.byName[stream] = c.recent.PushFront(&entry[T]{stream, loaded})
	if c.recent.Len() > c.size {
		c.remove(c.recent.Back())
	}
}

// drop removes stream, if its cached entity ends with the message last.
func (c *cache[T]) drop(stream messagestore.StreamName, last uuid.UUID) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.byName[stream]; ok && entryOf[T](element).state.last == last {
		c.remove(element)
	}
}

func (c *cache[T]) remove(element *list.Element) {
	c.recent.Remove(element)
	delete(c.byName, entryOf[T](element).stream)
}

func entryOf[T any](element *list.Element) *entry[T] {
	return element.Value.(*entry[T]) //nolint:errcheck // the list holds nothing else
}
