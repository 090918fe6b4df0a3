package idempotency

import "os"

// SetFile has m hold large responses back in the files that create returns.
func (m *Middleware) SetFile(create func() (*os.File, error)) { m.create = create }

// TemporaryFile returns a function that creates files as a [Middleware] does.
func TemporaryFile(dir string) func() (*os.File, error) { return temporary(dir) }
