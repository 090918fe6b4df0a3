// Package keylife declares in a category how long its keys are kept at least. An operator may remove older ones: dibs
// forget reads the declaration.
package keylife

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// Bounds of a KeyLife.
const (
	Min = time.Minute
	Max = 100 * 365 * 24 * time.Hour
)

// Declared is the one message of the stream CATEGORY+life-1, in a category whose first keys have a KeyLife.
type Declared struct {
	Seconds int64 `json:"seconds"`
}

// MessageType returns "KeyLifeDeclared".
func (Declared) MessageType() string { return "KeyLifeDeclared" }

// Stream returns the stream in which the life of a category's keys is declared.
func Stream(category messagestore.Category) messagestore.StreamName {
	return category.WithType("life").Stream("1")
}

// A Store is the part of [messagestore.Store] that a declaration needs. If it can be read by category, a category
// that has keys already is refused.
type Store interface {
	TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error)
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
}

type categoryStore interface {
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
}

// Validate returns nil or an [*messagestore.InvalidError] that names KeyLife: it is out of bounds, or no key of the
// store can be removed. A life of 0 is for ever.
func Validate(life time.Duration, store any) error {
	if life == 0 {
		return nil
	}
	if life < Min || life > Max {
		return invalid(life, fmt.Sprintf("it is between %v and %v", Min, Max))
	}
	if s, ok := store.(interface{ Forgets() bool }); !ok || !s.Forgets() {
		return invalid(life, "no key of this store can be removed, so its keys live for ever: leave it out")
	}
	if _, ok := store.(Store); !ok {
		return invalid(life, "the store has no methods TryWrite and Last, with which it is declared")
	}
	return nil
}

// A Life is declared once in each category. It is safe for concurrent use. A nil *Life is for ever, and declares nothing.
type Life struct {
	life     time.Duration
	store    Store
	mu       sync.Mutex // while one declares
	declared sync.Map   // of category
}

// New returns a life that is valid, or nil for 0.
func New(life time.Duration, store any) *Life {
	if life == 0 {
		return nil
	}
	s, _ := store.(Store) // as Validate demands
	return &Life{life: life.Truncate(time.Second), store: s}
}

// Declare writes the life of the keys of category down, unless that was done. It comes before the first key. A category in
// which another life is declared, or which has keys that live for ever, is an [*messagestore.InvalidError], and a
// declaration that cannot be read a [*CorruptError].
func (l *Life) Declare(ctx context.Context, category messagestore.Category) error {
	if l == nil {
		return nil
	}
	if _, done := l.declared.Load(category); done {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, done := l.declared.Load(category); done {
		return nil
	}
	if err := l.declare(ctx, category); err != nil {
		return err
	}
	l.declared.Store(category, true)
	return nil
}

func (l *Life) declare(ctx context.Context, category messagestore.Category) error {
	stream := Stream(category)
	last, err := l.store.Last(ctx, stream)
	if errors.Is(err, messagestore.ErrNotFound) {
		last, err = l.first(ctx, category, stream)
	}
	if err != nil || last == nil {
		return err
	}
	d, err := messagestore.Decode[Declared](last)
	if err != nil {
		return &CorruptError{stream, last.Position, err.Error()}
	}
	if declared := time.Duration(d.Seconds) * time.Second; declared != l.life {
		return invalid(l.life, fmt.Sprintf("%s has %v", stream, declared))
	}
	return nil
}

// first declares the life in a category without keys. It returns the message that another wrote first.
func (l *Life) first(ctx context.Context, category messagestore.Category, stream messagestore.StreamName) (*messagestore.Message, error) {
	if store, ok := l.store.(categoryStore); ok {
		page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(page.Messages) > 0 { // perhaps after a declaration that was made meanwhile
			last, err := l.store.Last(ctx, stream)
			if !errors.Is(err, messagestore.ErrNotFound) {
				return last, err
			}
			return nil, invalid(l.life, fmt.Sprintf("%s has keys that were promised for ever", category))
		}
	}
	_, met, err := l.store.TryWrite(ctx, stream, messagestore.NoStream, Declared{int64(l.life / time.Second)})
	if err != nil || met == nil {
		return nil, err
	}
	return met.Last[0], nil
}

func invalid(life time.Duration, rule string) error {
	return messagestore.NewInvalidError("KeyLife", life, rule)
}

// A CorruptError names a message that is in the place of a declaration.
type CorruptError struct {
	Stream   messagestore.StreamName
	Position messagestore.Version
	Rule     string
}

// Error names the message's place and the rule that it breaks.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt declaration of the life of keys: %s@%d: %s", e.Stream, e.Position, e.Rule)
}
