// Package must is for tests: it takes the error of a call.
package must

import "errors"

// New returns v, and panics with err if there is one.
func New[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A Test is one that can fail.
type Test interface {
	Errorf(format string, args ...any)
	FailNow()
}

// Do returns a function that gives v to a test, or fails the test if there is an error:
//
//	written := must.Do(store.Write(ctx, stream, expected, body))(t)
func Do[T any](v T, err error) func(t Test) T {
	return func(t Test) T {
		if h, ok := t.(interface{ Helper() }); ok {
			h.Helper()
		}
		if err != nil {
			t.Errorf("unexpected error: %v", err)
			t.FailNow()
		}
		return v
	}
}

// ErrorOf returns the error of a call whose value nobody wants.
func ErrorOf[T any](_ T, err error) error { return err }

// As returns the error of a type that err is, or has, and fails the test if there is none.
func As[E error](t Test, err error) E {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	as, ok := errors.AsType[E](err)
	if !ok {
		t.Errorf("no %T: %v", as, err)
		t.FailNow()
	}
	return as
}
