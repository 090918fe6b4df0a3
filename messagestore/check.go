package messagestore

import (
	"context"
	"fmt"
)

// Check returns nil if the database can be reached, has the schema in a version that fits, and
// lets this user read and write messages; otherwise the error that a write would end with. It is
// for the start of a service and for its readiness probe. It costs one or two round trips, writes
// nothing, and takes as long as ctx lets it: give it a deadline, of a few seconds say.
//
// The error matches [ErrNotPermitted] if a right is missing, [ErrClosed] if the handle was closed,
// and the errors of the driver, as for a schema that is not migrated or a server whose settings are
// not safe: see packages postgres and sqlite. It matches neither if the database cannot be reached.
func (s *Store) Check(ctx context.Context) error { return s.check(ctx, true) }

// CheckReading is [Store.Check] for a service that only reads: the right to write is not asked
// for.
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
