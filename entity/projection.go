package entity

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/internal/messagetype"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrUnknownType is matched by the error of a strict projection for a message of a type
// that no function is registered for.
var ErrUnknownType = errors.New("unknown message type")

// A Projection has a function for each type of message, which applies the message to a T.
// Register before use; afterwards it is safe for concurrent use.
type Projection[T any] struct {
	strict bool

	mu       sync.Mutex
	routes   map[string]func(T, *messagestore.Message) (T, error) // not written to once sealed
	mistakes []error

	sealed atomic.Bool
	wrong  atomic.Bool // there are mistakes
}

// NewProjection returns a projection with nothing registered. A message of a type that it
// has no function for does not change the entity.
func NewProjection[T any]() *Projection[T] {
	return &Projection[T]{routes: map[string]func(T, *messagestore.Message) (T, error){}}
}

// NewStrictProjection returns a projection with nothing registered. A message of a type
// that it has no function for is an error that matches [ErrUnknownType].
func NewStrictProjection[T any]() *Projection[T] {
	p := NewProjection[T]()
	p.strict = true
	return p
}

// On registers the function for messages of type E. The function returns the entity as it
// is after the message. Its result depends on its arguments alone, and it changes nothing
// else: it is called again for the same message, whenever the entity is loaded.
//
// Mistakes in registering are kept, as a [handler.Mux] keeps them:
// [Projection.Validate] returns them.
//
// [handler.Mux]: https://pkg.go.dev/github.com/dibs-go/dibs/handler#Mux
func On[T any, E messagestore.Body](p *Projection[T], f func(entity T, event E) T) {
	if f == nil {
		OnMessage[T, E](p, nil)
		return
	}
	OnMessage(p, func(entity T, event E, _ *messagestore.Message) T { return f(entity, event) })
}

// OnMessage is [On] for a function that looks at the message's envelope too: its
// time, position or metadata.
func OnMessage[T any, E messagestore.Body](p *Projection[T], f func(entity T, event E, m *messagestore.Message) T) {
	goType := reflect.TypeFor[E]().String()
	name, err := messagetype.Of[E]()
	wrong, _ := errors.AsType[*messagestore.InvalidError](err)

	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case wrong != nil:
		p.mistake(invalid(goType, wrong.Rule))
	case f == nil:
		p.mistake(invalid(name, "its function is nil"))
	case p.sealed.Load():
		p.mistake(invalid(name, "it is registered after the projection was used"))
	case p.routes[name] != nil:
		p.mistake(invalid(name, "the type is registered twice"))
	default:
		p.routes[name] = func(entity T, m *messagestore.Message) (T, error) {
			event, err := messagestore.Decode[E](m)
			if err != nil {
				return entity, fmt.Errorf("decode into %s: %w", goType, errors.Unwrap(err))
			}
			return f(entity, event, m), nil
		}
	}
}

func invalid(name, rule string) error {
	var value any
	if name != "" {
		value = name
	}
	return messagestore.NewInvalidError("projection", value, rule)
}

// mistake keeps err. The caller holds p.mu.
func (p *Projection[T]) mistake(err error) {
	p.mistakes = append(p.mistakes, err)
	p.wrong.Store(true)
}

// Validate returns the mistakes made in registering, or that nothing is registered
// at all. Each is a [*messagestore.InvalidError].
func (p *Projection[T]) Validate() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mistakes) == 0 && len(p.routes) == 0 {
		return invalid("", "nothing is registered")
	}
	return errors.Join(p.mistakes...)
}

// Apply returns entity as it is after m. With an error, which names m, the entity is the
// one given. The first call ends registration.
func (p *Projection[T]) Apply(entity T, m *messagestore.Message) (T, error) {
	p.seal()
	if p.wrong.Load() {
		return entity, fmt.Errorf("apply %s: %w", m, p.Validate())
	}
	apply, ok := p.routes[m.Type]
	if !ok {
		if p.strict {
			return entity, fmt.Errorf("apply %s: %w", m, ErrUnknownType)
		}
		return entity, nil
	}
	applied, err := apply(entity, m)
	if err != nil {
		return entity, fmt.Errorf("apply %s: %w", m, err)
	}
	return applied, nil
}

func (p *Projection[T]) seal() {
	if p.sealed.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed.Store(true)
}
