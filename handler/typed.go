package handler

import (
	"context"
	"reflect"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/upcast"
)

// A Handler is a function for messages of one type that another package has made from its
// arguments, such as reservation.Inline. It may have a check, which a consumer makes when it
// starts, before it delivers anything, and an error: a mistake in the arguments. [Register]
// registers it with both.
type Handler[T messagestore.Body] struct {
	f     Func[T]
	check func(ctx context.Context, m *messagestore.Message) error
	err   error
}

// NewHandler returns f as a [Handler]. The check and the error may be nil; with an error, neither f
// nor check is called. A consumer calls check with the context of a handler and a message from its
// store.
func NewHandler[T messagestore.Body](f Func[T], check func(ctx context.Context, m *messagestore.Message) error, err error) Handler[T] {
	return Handler[T]{f, check, err}
}

// Wrap returns h with wrap around its function, and with the check and the error of h:
//
//	handler.Register(mux, reservation.Inline(once, Deposit.Key, deposit).Wrap(audited))
//
// Wrap does not call wrap if h has an error. Use a [Middleware] for messages of every type.
func (h Handler[T]) Wrap(wrap func(next Func[T]) Func[T]) Handler[T] {
	switch {
	case h.err != nil || h.f == nil:
	case wrap == nil:
		h.err = messagestore.NewInvalidError("wrapper", nil, "must not be nil")
	default:
		h.f = wrap(h.f)
	}
	return h
}

// Handle calls the function of h, or returns the error of h. It does not make the check.
func (h Handler[T]) Handle(ctx context.Context, m Message[T]) error {
	switch {
	case h.err != nil:
		return h.err
	case h.f == nil:
		return messagestore.NewInvalidError("function", nil, "must not be nil")
	}
	return h.f(ctx, m)
}

// Register registers h like a function with [On], together with its check. [Mux.Validate] also
// returns its error.
//
// Register panics if mux is nil.
func Register[T messagestore.Body](mux *Mux, h Handler[T], older ...upcast.Form[T]) {
	if mux == nil {
		panic("handler: a function is registered with a nil Mux")
	}
	forms, err := upcast.Forms(older...)

	mux.mu.Lock()
	defer mux.mu.Unlock()
	if err != nil {
		mux.mistake(unregistered(reflect.TypeFor[T]().String(), err))
		return
	}
	if h.check != nil && h.err == nil {
		mux.checks = append(mux.checks, h.check)
	}
	for i, form := range forms {
		name := form.Type()
		switch {
		case i > 0 && (h.f == nil || h.err != nil): // report it once
		case h.err != nil:
			mux.mistake(invalid(name, h.err.Error()))
		case h.err != nil || h.f == nil:
			mux.mistake(invalid(name, "the function must not be nil"))
		case mux.sealed:
			mux.mistake(invalid(name, "must be registered before the mux is used"))
		case mux.routes[name] != nil:
			mux.mistake(invalid(name, "must not be registered twice"))
		default:
			if mux.routes == nil {
				mux.routes = map[string]HandlerFunc{}
			}
			mux.routes[name] = func(ctx context.Context, m *messagestore.Message) error {
				body, err := form.Decode(m)
				if err != nil {
					return &DecodeError{GoType: form.GoType(), Cause: err}
				}
				return h.f(ctx, Message[T]{body, m})
			}
		}
	}
}
