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

// invalidity returns the error of a function that [Invalid] has made, or nil.
func invalidity[T messagestore.Body](f Func[T]) error {
	if f == nil || reflect.ValueOf(f).Pointer() != reflect.ValueOf(Invalid[T](nil)).Pointer() {
		return nil
	}
	return f(context.Background(), Message[T]{})
}
