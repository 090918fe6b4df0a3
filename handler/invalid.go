package handler

import (
	"context"
	"reflect"

	"github.com/dibs-go/dibs/messagestore"
)

// Invalid returns a function that cannot be registered: [On] keeps err as a mistake, and a direct
// call returns it. It is for packages that make functions out of their arguments, and miss one.
//
// It is not inlined: invalidity knows its functions by their code.
//
//go:noinline
func Invalid[T messagestore.Body](err error) Func[T] {
	return func(context.Context, Message[T]) error { return err }
}

// Checked returns f with a check, which a consumer makes when it starts, before it delivers anything:
// [Mux.Checks] has the checks of all functions. It is for packages that make functions over a store of
// their own. Check is called with the context of a handler and a message of the consumer's, which the
// store of the consumer has.
//
// It is not inlined: checkOf knows its functions by their code.
//
//go:noinline
func Checked[T messagestore.Body](f Func[T], check func(ctx context.Context, m *messagestore.Message) error) Func[T] {
	return func(ctx context.Context, m Message[T]) error {
		if m.Message == nil { // no consumer delivers none: checkOf asks
			return &checked{check}
		}
		return f(ctx, m)
	}
}

// A checked is the answer of a function made by [Checked] to a caller that asks for its check.
type checked struct {
	check func(ctx context.Context, m *messagestore.Message) error
}

func (*checked) Error() string { return "there is no message" }

// checkOf returns the check of a function that [Checked] has made, or nil.
func checkOf[T messagestore.Body](f Func[T]) func(context.Context, *messagestore.Message) error {
	if f == nil || reflect.ValueOf(f).Pointer() != reflect.ValueOf(Checked[T](nil, nil)).Pointer() {
		return nil
	}
	if c, is := f(context.Background(), Message[T]{}).(*checked); is { //nolint:errorlint // it is its answer
		return c.check
	}
	return nil
}

// invalidity returns the error of a function that [Invalid] has made, or nil.
func invalidity[T messagestore.Body](f Func[T]) error {
	if f == nil || reflect.ValueOf(f).Pointer() != reflect.ValueOf(Invalid[T](nil)).Pointer() {
		return nil
	}
	return f(context.Background(), Message[T]{})
}
