package entity

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/upcast"
)

// ErrUnknownType is returned by a projection for a message if no function is registered for its
// type and the type is not ignored. A newer version of the service may have written the message, so
// a consumer retries the message that it was handling, as after any other failure.
var ErrUnknownType = errors.New("unknown message type: no function is registered for it (On), and the projection does not ignore it (Ignore, IgnoreUnknown)")

// A Projection has a function for each type of message, which applies the message to a T. A message
// of another type is an error, unless the type is ignored.
//
// Register before use; afterwards it is safe for concurrent use.
type Projection[T any] struct {
	mu            sync.Mutex
	routes        map[string]func(T, *messagestore.Message) (T, error) // not written to once sealed
	ignoreUnknown bool
	mistakes      []error

	sealed atomic.Bool
	wrong  atomic.Bool // there are mistakes
}

// NewProjection returns a projection without functions. A message of a type without a function is
// an error that matches [ErrUnknownType]: otherwise the entity would lack a renamed event, or one
// of a later version of the service, and you could still write a decision that is based on it,
// because the version matches. [Ignore] makes the projection skip certain event types that do not
// change the entity, and [Projection.IgnoreUnknown] makes it skip all types without a function.
func NewProjection[T any]() *Projection[T] {
	return &Projection[T]{routes: map[string]func(T, *messagestore.Message) (T, error){}}
}

// On registers the function for messages of type E, and for those in the given older forms of it.
// The function returns the entity after the message. Its result must depend only on its arguments,
// and it must not change anything else: it is called again for the same message whenever the entity
// is loaded.
//
// Mistakes in registering are collected, as in a [handler.Mux]: [Projection.Validate] returns them.
//
// On panics if p is nil.
//
// [handler.Mux]: https://pkg.go.dev/github.com/dibs-go/dibs/handler#Mux
func On[T any, E messagestore.Body](p *Projection[T], f func(entity T, event E) T, older ...upcast.Form[E]) {
	if f == nil {
		OnMessage[T, E](p, nil, older...)
		return
	}
	OnMessage(p, func(entity T, event E, _ *messagestore.Message) T { return f(entity, event) }, older...)
}

// OnMessage is [On] for a function that also uses the message's envelope: its time, position or
// metadata.
func OnMessage[T any, E messagestore.Body](p *Projection[T], f func(entity T, event E, m *messagestore.Message) T, older ...upcast.Form[E]) {
	p.must("On")
	forms, err := upcast.Forms(older...)

	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.mistake(unregistered(reflect.TypeFor[E]().String(), err))
		return
	}
	if f == nil {
		p.mistake(invalid(forms[0].Type(), "the function must not be nil"))
		return
	}
	for _, form := range forms {
		p.register(form.Type(), func(entity T, m *messagestore.Message) (T, error) {
			event, err := form.Decode(m)
			if err != nil {
				return entity, &decodeError{form.GoType(), err}
			}
			return f(entity, event, m), nil
		})
	}
}

// Ignore makes p skip messages of type E, and of the other named types: events that have no Go type
// any more.
//
//	entity.Ignore[SeatViewed](seat, "SeatWatched")
//
// It panics if p is nil.
func Ignore[E messagestore.Body, T any](p *Projection[T], others ...string) {
	p.must("Ignore")
	forms, err := upcast.Forms[E]()

	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.mistake(unregistered(reflect.TypeFor[E]().String(), err))
		return
	}
	for _, name := range append([]string{forms[0].Type()}, others...) {
		if rule := text.TypeRule(name); rule != "" {
			p.mistake(unregistered(name, messagestore.NewInvalidError("message type", name, rule)))
			continue
		}
		p.register(name, func(entity T, _ *messagestore.Message) (T, error) { return entity, nil })
	}
}

// IgnoreUnknown makes p skip messages of all types without a function. Use it for an entity that is
// a view of some of another service's events. An event that is renamed, or new, is then missing
// from the entity, and no error says so.
func (p *Projection[T]) IgnoreUnknown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed.Load() {
		p.mistake(invalid("unknown types", "must be ignored before the projection is used"))
		return
	}
	p.ignoreUnknown = true
}

// must panics if the projection is nil, because that cannot collect mistakes.
func (p *Projection[T]) must(what string) {
	if p == nil {
		panic("entity: " + what + " of a nil Projection")
	}
}

// register stores the function for a type. The caller holds p.mu.
func (p *Projection[T]) register(name string, apply func(T, *messagestore.Message) (T, error)) {
	switch {
	case p.sealed.Load():
		p.mistake(invalid(name, "must be registered before the projection is used"))
	case p.routes[name] != nil:
		p.mistake(invalid(name, "must not be registered twice"))
	default:
		p.routes[name] = apply
	}
}

// unregistered explains why no message of the Go type can be applied.
func unregistered(goType string, err error) error {
	wrong, ok := errors.AsType[*messagestore.InvalidError](err)
	switch {
	case !ok:
		return err
	case wrong.Field == "older form":
		return invalid(goType, wrong.Error())
	}
	return invalid(goType, wrong.Rule)
}

func invalid(name, rule string) error {
	var value any
	if name != "" {
		value = name
	}
	return messagestore.NewInvalidError("projection", value, rule)
}

// mistake records err. The caller holds p.mu.
func (p *Projection[T]) mistake(err error) {
	p.mistakes = append(p.mistakes, err)
	p.wrong.Store(true)
}

// Validate returns the mistakes made in registering, or an error if nothing is registered at all.
// Each is a [*messagestore.InvalidError].
func (p *Projection[T]) Validate() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mistakes) == 0 && len(p.routes) == 0 {
		return invalid("", "must not be empty: register a function with On")
	}
	return errors.Join(p.mistakes...)
}

// Apply returns the entity after m. If there is an error, which names m, it returns the given
// entity. A nil m is an error that matches [messagestore.ErrInvalid]. The first call ends
// registration.
func (p *Projection[T]) Apply(entity T, m *messagestore.Message) (T, error) {
	if m == nil {
		return entity, fmt.Errorf("apply: %w", messagestore.NewInvalidError("message", nil, "must not be nil"))
	}
	p.seal()
	if p.wrong.Load() {
		return entity, fmt.Errorf("apply %s: %w", m, p.Validate())
	}
	apply, ok := p.routes[m.Type]
	if !ok {
		if p.ignoreUnknown {
			return entity, nil
		}
		return entity, fmt.Errorf("apply %s: %w", m, ErrUnknownType)
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
