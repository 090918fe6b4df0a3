package testkit

import "errors"

// Must returns v, and panics with err unless that is nil.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A Test is anything that can fail like a testing.TB.
type Test interface {
	Errorf(format string, args ...any)
	FailNow()
}

// Do returns a function that gives v to a test, or fails the test if there is an error:
//
//	written := testkit.Do(store.Write(ctx, stream, expected, body))(t)
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

// ErrorOf returns the error of a call and drops its value.
func ErrorOf[T any](_ T, err error) error { return err }

// As returns the error of type E that err is or wraps, and fails the test if it has no such error.
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
