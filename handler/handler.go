package handler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/upcast"
)

// A Message is a stored message together with its decoded body.
type Message[T messagestore.Body] struct {
	Body T
	*messagestore.Message
}

// A Func handles messages of one type. A message may be delivered to it more than once.
// It is called from several goroutines at once, though never for messages of one stream.
type Func[T messagestore.Body] func(ctx context.Context, m Message[T]) error

// A HandlerFunc handles a stored message of any type. [Mux.Handle] is one, and a [Middleware] wraps one.
// A consumer takes it in place of a mux.
type HandlerFunc func(ctx context.Context, m *messagestore.Message) error //nolint:revive // the name that users of net/http look for

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, m *messagestore.Message) error { return f(ctx, m) }

// A Mux passes each message to the function registered for its type. A message of another
// type is an error, unless [Mux.IgnoreUnknown] was called.
//
// Register before use. Handle, Ignored, Types, Checks and Validate are safe for concurrent use. The zero
// value is a mux as [New] returns one.
type Mux struct {
	ignored atomic.Int64

	mu         sync.Mutex
	routes     map[string]HandlerFunc // not written to once sealed
	middleware []Middleware
	mistakes   []error
	checks     []func(context.Context, *messagestore.Message) error
	ignore     bool
	sealed     bool

	seal  sync.Once
	chain HandlerFunc // made by seal
	wrong atomic.Bool // there are mistakes
}

// New returns a mux with nothing registered. A message of a type that has no function is
// an error that matches [ErrUnknownType]: in a category of a service's own commands it
// comes from a sender that is ahead, and passing it over would lose it.
func New() *Mux {
	return &Mux{}
}

// IgnoreUnknown has the mux pass over messages of types that have no function, and count
// them: for a service that follows another's events.
func (mux *Mux) IgnoreUnknown() {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	if mux.sealed {
		mux.mistake(invalid("unknown types", "they are ignored only after the mux was used"))
		return
	}
	mux.ignore = true
}

// On registers f for the messages of type T, and for those in an older form of it, if any are
// given: messages under a name that the type had before, or with other fields.
//
// [Mux.Validate] and [Mux.Handle] return these mistakes: a type that is registered already,
// a name that no message type can have, a T whose zero value does not know its type (an
// interface, or a pointer whose MessageType looks into its target), an f that is nil, an older
// form that is none, and a registration after the mux was used.
//
// On panics if mux is nil.
func On[T messagestore.Body](mux *Mux, f Func[T], older ...upcast.Form[T]) {
	Register(mux, Handler[T]{f: f}, older...)
}

// mistake keeps err. The caller holds mux.mu.
func (mux *Mux) mistake(err error) {
	mux.mistakes = append(mux.mistakes, err)
	mux.wrong.Store(true)
}

// Validate returns the mistakes made in registering, or that nothing is registered at
// all. Each is a [*messagestore.InvalidError].
func (mux *Mux) Validate() error {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	if len(mux.mistakes) == 0 && len(mux.routes) == 0 {
		return invalid("", "no function is registered")
	}
	return errors.Join(mux.mistakes...)
}

// Types returns the types that the mux knows, sorted: the types of its functions, and their older forms.
// A consumer with OnlyKnown reads no others. A call ends registration, for a type that comes later would
// not be read.
func (mux *Mux) Types() []string {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	mux.sealed = true
	types := make([]string, 0, len(mux.routes))
	for name := range mux.routes {
		types = append(types, name)
	}
	slices.Sort(types)
	return types
}

// Checks returns the checks of each [Handler] that is registered. A consumer makes them when it
// starts: each with a message of its own, which its store has. The error says that the function is
// not for that consumer.
func (mux *Mux) Checks() []func(ctx context.Context, m *messagestore.Message) error {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	return slices.Clone(mux.checks)
}

// Ignored returns how many messages were passed over since [Mux.IgnoreUnknown], because
// no function is registered for their type.
func (mux *Mux) Ignored() int64 { return mux.ignored.Load() }

// Handle calls the function for the type of m, through the middleware. The first call ends
// registration, as one of [Mux.Types] does.
//
// The error names the message. It wraps the function's error, or is a [*DecodeError] if the
// body does not fit T, or matches [ErrUnknownType] if no function is registered for the
// type; a mux with mistakes returns them for every message. A nil message is
// an error that matches [messagestore.ErrInvalid]. A panic of a function is not recovered here; a
// consumer recovers it.
func (mux *Mux) Handle(ctx context.Context, m *messagestore.Message) error {
	if m == nil {
		return fmt.Errorf("handle: %w", messagestore.NewInvalidError("message", nil, "it is nil"))
	}
	mux.seal.Do(mux.build)
	if mux.wrong.Load() {
		return fmt.Errorf("handle %s: %w", m, mux.Validate())
	}
	if mux.ignore && mux.routes[m.Type] == nil {
		mux.ignored.Add(1)
		return nil
	}
	if err := mux.chain(ctx, m); err != nil {
		return fmt.Errorf("handle %s: %w", m, err)
	}
	return nil
}

// build ends registration and puts the middleware around the routes.
func (mux *Mux) build() {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	mux.sealed = true
	if len(mux.routes) == 0 {
		mux.wrong.Store(true)
	}
	chain := func(ctx context.Context, m *messagestore.Message) error {
		if route := mux.routes[m.Type]; route != nil {
			return route(ctx, m)
		}
		return ErrUnknownType
	}
	for _, wrap := range slices.Backward(mux.middleware) {
		next, err := wrapped(wrap, chain)
		if err != nil {
			mux.mistake(err)
			return
		}
		chain = next
	}
	mux.chain = chain
}
