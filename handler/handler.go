package handler

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/messagestore"
)

// A Message is a recorded message together with its decoded body.
type Message[T messagestore.Body] struct {
	Body T
	*messagestore.Message
}

// A Func handles messages of one type. It may be given a message more than once,
// and from several goroutines at once, though never those of one stream.
type Func[T messagestore.Body] func(ctx context.Context, m Message[T]) error

// A HandlerFunc handles a recorded message of any type. [Mux.Handle] is one.
type HandlerFunc func(ctx context.Context, m *messagestore.Message) error //nolint:revive // the name that users of net/http look for

// A Mux hands each message to the function registered for its type. A message
// of another type is passed over and counted, or refused if the mux is strict.
//
// Register before use. Handle, Unknown, Types and Validate are safe for concurrent
// use.
type Mux struct {
	strict  bool
	unknown atomic.Int64

	mu         sync.Mutex
	routes     map[string]HandlerFunc // not written to once sealed
	middleware []Middleware
	mistakes   []error
	sealed     bool

	seal  sync.Once
	chain HandlerFunc // made by seal
	wrong atomic.Bool // there are mistakes
}

// New returns a mux with nothing registered that passes over the types it does
// not know, as a reader of a category that others write to has to.
func New() *Mux {
	return &Mux{routes: map[string]HandlerFunc{}}
}

// NewStrict returns a mux with nothing registered for which a type that it does
// not know is an error that matches [ErrUnknownType].
func NewStrict() *Mux {
	mux := New()
	mux.strict = true
	return mux
}

// On registers f for the messages of type T.
//
// These are mistakes, which [Mux.Validate] and [Mux.Handle] return: a type that
// is registered already, a name that no message type can have, a T that cannot
// tell its type from its zero value (an interface, or a pointer whose MessageType
// looks at what it points to), an f that is nil, and registering once a message
// has been handled.
func On[T messagestore.Body](mux *Mux, f Func[T]) {
	goType := reflect.TypeFor[T]().String()
	name, err := messagestore.TypeOf[T]()
	wrong, _ := errors.AsType[*messagestore.InvalidError](err)

	mux.mu.Lock()
	defer mux.mu.Unlock()
	switch {
	case wrong != nil:
		mux.mistake(invalid(goType, wrong.Rule))
	case f == nil:
		mux.mistake(invalid(name, "its function is nil"))
	case mux.sealed:
		mux.mistake(invalid(name, "it is registered after a message has been handled"))
	case mux.routes[name] != nil:
		mux.mistake(invalid(name, "the type is registered twice"))
	default:
		mux.routes[name] = func(ctx context.Context, r *messagestore.Message) error {
			body, err := messagestore.Decode[T](r)
			if err != nil {
				return &DecodeError{GoType: goType, Cause: errors.Unwrap(err)}
			}
			return f(ctx, Message[T]{body, r})
		}
	}
}

// mistake keeps err. The caller holds mux.mu.
func (mux *Mux) mistake(err error) {
	mux.mistakes = append(mux.mistakes, err)
	mux.wrong.Store(true)
}

// Validate returns the mistakes made in registering, or that nothing is
// registered at all. Each matches [ErrInvalidRegistration].
func (mux *Mux) Validate() error {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	if len(mux.mistakes) == 0 && len(mux.routes) == 0 {
		return invalid("", "no function is registered")
	}
	return errors.Join(mux.mistakes...)
}

// Types returns the registered types, sorted. A consumer that filters by them
// does not read what nobody handles, and does not count it either.
func (mux *Mux) Types() []string {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	types := make([]string, 0, len(mux.routes))
	for name := range mux.routes {
		types = append(types, name)
	}
	slices.Sort(types)
	return types
}

// Unknown returns how many messages had a type that nothing is registered for.
func (mux *Mux) Unknown() int64 { return mux.unknown.Load() }

// Handle hands m to the function for its type, if there is one, through the
// middleware. The first call ends registration.
//
// The error names the message. It matches what the function returned;
// [*PanicError] if it panicked; [*DecodeError] if the body does not fit T;
// [ErrUnknownType] if the mux is strict; [ErrInvalidRegistration] if the mux is
// not valid.
func (mux *Mux) Handle(ctx context.Context, m *messagestore.Message) error {
	mux.seal.Do(mux.build)
	if mux.wrong.Load() {
		return fmt.Errorf("handle %s: %w", m, mux.Validate())
	}
	if mux.routes[m.Type] == nil {
		mux.unknown.Add(1)
		if mux.strict {
			return fmt.Errorf("handle %s: %w", m, ErrUnknownType)
		}
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
	chain := guard(func(ctx context.Context, m *messagestore.Message) error {
		return mux.routes[m.Type](ctx, m)
	})
	for _, wrap := range slices.Backward(mux.middleware) {
		next, err := wrapped(wrap, chain)
		if err != nil {
			mux.mistake(err)
			return
		}
		chain = next
	}
	mux.chain = guard(chain)
}
