package sqlite

import (
	"context"
	"fmt"
)

// Open with another database/sql driver for the same files, as one that fails.
func OpenWith(ctx context.Context, driverName, path string, config *Config) (*Driver, error) {
	return open(ctx, driverName, path, config)
}

// Commits returns how often d has committed, and how many calls were in that.
func (d *Driver) Commits() (commits, calls int64) {
	w := d.writes.(*writer)
	return w.commits.Load(), w.written.Load()
}

// IntegrityCheck asks SQLite whether the file is sound.
func (d *Driver) IntegrityCheck(ctx context.Context) error {
	return d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		var answer string
		if _, err := scanOne(ctx, db, "PRAGMA integrity_check", nil, &answer); err != nil {
			return err
		}
		if answer != "ok" {
			return fmt.Errorf("integrity check: %s", answer)
		}
		return nil
	})
}
