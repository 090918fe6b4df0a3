package sqlite

import (
	"context"
	"fmt"
	"os"
)

// Check implements [messagestore.Driver]. To check writing, it takes the write lock for a moment
// and, like a write, waits for it at most [Config.BusyTimeout]. It is also an error if the file was
// removed or replaced since it was opened: writes to it would be lost.
func (d *Driver) Check(ctx context.Context, write bool) error {
	if d.file != nil {
		if err := d.file.check(); err != nil {
			return err
		}
	}
	if !write {
		return explain(d.reads.read(ctx, checkSchema))
	}
	return explain(d.writes.do(ctx, &job{
		run:     checkSchema,
		unknown: func(cause error) error { return cause },
	}))
}

func checkSchema(ctx context.Context, db queryer) error {
	switch version, err := schemaVersion(ctx, db); {
	case err != nil:
		return err
	case version == 0:
		return ErrNoSchema
	case version > len(schemas):
		return fmt.Errorf("%w: found version %d, this program knows up to %d", ErrNewerSchema, version, len(schemas))
	}
	return nil
}

// A file is the file that was opened.
type file struct {
	path string
	info os.FileInfo
}

// check must not open the file: see checkPath.
func (f *file) check() error {
	info, err := os.Stat(f.path)
	switch {
	case err != nil:
		return &openError{path: f.path, rule: "it was there when it was opened, and is not now", cause: err}
	case !os.SameFile(f.info, info):
		return &openError{path: f.path, rule: "another file is in the place of the one that was opened: open it again"}
	}
	return nil
}
