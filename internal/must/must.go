// Package must is for tests: it takes the error of a constructor.
package must

// New returns v, and panics with err if there is one.
func New[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
