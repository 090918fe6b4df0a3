package messagestore

import (
	"context"
	"fmt"
)

// Check returns nil if the database can be reached, its schema has a version that fits, and this
// user may read and write messages. Otherwise it returns the error that a write would return. Use
// it at the start of a service and in its readiness probe. It costs one or two round trips, writes
// nothing, and takes as long as ctx allows: set a deadline of a few seconds.
//
// The error matches [ErrNotPermitted] if a right is missing, [ErrClosed] if the handle was closed,
// or an error of the driver, for example because the schema is not migrated or the server's
// settings are not safe: see packages postgres and sqlite. It matches none of them if the database
// cannot be reached.
func (s *Store) Check(ctx context.Context) error { return s.check(ctx, true) }

// CheckReading is [Store.Check] for a service that only reads: it does not require the right to
// write.
func (s *Store) CheckReading(ctx context.Context) error { return s.check(ctx, false) }

func (s *Store) check(ctx context.Context, write bool) error {
	driver, err := s.use(ctx)
	if err == nil {
		err = driver.Check(ctx, write)
	}
	if err != nil {
		return fmt.Errorf("check the store: %w", err)
	}
	return nil
}
