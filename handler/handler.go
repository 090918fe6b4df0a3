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

// A Func handles messages of one type. A message may be delivered to it more than once. It is
// called from several goroutines at once, but never for two messages of one stream.
type Func[T messagestore.Body] func(ctx context.Context, m Message[T]) error

// A HandlerFunc handles a stored message of any type. [Mux.Handle] has this type, and a
// [Middleware] wraps it. A consumer accepts it instead of a mux.
type HandlerFunc func(ctx context.Context, m *messagestore.Message) error //nolint:revive // the name that users of net/http look for

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, m *messagestore.Message) error { return f(ctx, m) }

// A Mux passes each message to the function registered for its type. A message of another
// type is an error, unless [Mux.IgnoreUnknown] was called.
//
// Register before use. Handle, Ignored, Types, Checks and Validate are safe for concurrent use. The
// zero value is the same as a mux from [New].
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

// New returns a mux without functions. A message of a type without a function is an error that
// matches [ErrUnknownType]: in a category of a service's own commands it comes from a newer sender,
// and skipping it would lose it.
func New() *Mux {
	return &Mux{}
}

// IgnoreUnknown makes the mux skip messages of types without a function, and count them. Use it in
// a service that follows the events of another service.
func (mux *Mux) IgnoreUnknown() {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	if mux.sealed {
		mux.mistake(invalid("unknown types", "must be ignored before the mux is used"))
		return
	}
	mux.ignore = true
}

// On registers f for the messages of type T, and for those in the given older forms of it: messages
// under a name that the type had before, or with other fields.
//
// [Mux.Validate] and [Mux.Handle] return these mistakes:
//
//   - a type that is already registered, or a name that is invalid for a message type
//   - a T that does not know its type from its zero value: an interface, or a pointer whose
//     MessageType dereferences it
//   - a nil f, or an invalid older form
//   - a registration after the mux was used
//
// On panics if mux is nil.
func On[T messagestore.Body](mux *Mux, f Func[T], older ...upcast.Form[T]) {
	Register(mux, Handler[T]{f: f}, older...)
}

// mistake records err. The caller holds mux.mu.
func (mux *Mux) mistake(err error) {
	mux.mistakes = append(mux.mistakes, err)
	mux.wrong.Store(true)
}

// Validate returns the mistakes made in registering, or an error if nothing is registered at all.
// Each is a [*messagestore.InvalidError].
func (mux *Mux) Validate() error {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	if len(mux.mistakes) == 0 && len(mux.routes) == 0 {
		return invalid("", "must not be empty: register a function with On")
	}
	return errors.Join(mux.mistakes...)
}

// Types returns the types that the mux knows, sorted: the types of its functions, and their older
// forms. A consumer with OnlyKnown reads no others. A call ends registration, because a type
// registered later would not be read.
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

// Checks returns the checks of each registered [Handler]. A consumer makes them when it starts,
// with a message from its store. An error means that the function does not fit that consumer.
func (mux *Mux) Checks() []func(ctx context.Context, m *messagestore.Message) error {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	return slices.Clone(mux.checks)
}

// Ignored returns how many messages were skipped since [Mux.IgnoreUnknown], because no function is
// registered for their type.
func (mux *Mux) Ignored() int64 { return mux.ignored.Load() }

// Handle calls the function for the type of m, through the middleware. The first call ends
// registration, like a call of [Mux.Types].
//
// The error names the message. It wraps the function's error, or is a [*DecodeError] if the body
// does not fit T, or matches [ErrUnknownType] if no function is registered for the type; a mux with
// mistakes returns them for every message. For a nil message the error matches
// [messagestore.ErrInvalid]. Handle does not recover a panic of a function; a consumer does.
func (mux *Mux) Handle(ctx context.Context, m *messagestore.Message) error {
	if m == nil {
		return fmt.Errorf("handle: %w", messagestore.NewInvalidError("message", nil, "must not be nil"))
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
