package sqlite

import (
	"context"
	"os"
	"time"
)

// A State is the result of [Driver.Examine].
type State struct {
	Path        string
	Bytes       int64 // of the file
	LogBytes    int64 // of the write-ahead log, in the -wal file
	FreeBytes   int64 // within the file, of removed messages
	Schema      int   // the version of the tables
	Newest      int   // the version that this package makes
	Messages    int64
	JournalMode string        // wal
	Synchronous int           // of the connection that writes: 2 is full
	LockWait    time.Duration // how long the call waited for the write lock
}

// Examine reads the state of the file and its settings, for an operator. It takes the write lock
// for a moment, and changes nothing.
func (d *Driver) Examine(ctx context.Context) (State, error) {
	s := State{Newest: len(schemas)}
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) (err error) {
		if s.Schema, err = schemaVersion(ctx, db); err != nil {
			return err
		}
		var page, free int64
		for statement, into := range map[string]any{
			"PRAGMA journal_mode": &s.JournalMode, "PRAGMA page_size": &page, "PRAGMA freelist_count": &free,
			"SELECT count(*) FROM dibs_messages": &s.Messages,
		} {
			if _, err := scanOne(ctx, db, statement, nil, into); err != nil {
				return err
			}
		}
		s.FreeBytes = page * free
		return nil
	})
	if err != nil {
		return s, explain(err)
	}
	began := time.Now()
	locked := s
	err = d.change(ctx, "examine", func(ctx context.Context, db queryer) error {
		locked.LockWait = time.Since(began)
		_, err := scanOne(ctx, db, "PRAGMA synchronous", nil, &locked.Synchronous)
		return err
	})
	if err == nil {
		s = locked
	}
	if err == nil && d.file != nil {
		s.Path = d.file.path
		for path, into := range map[string]*int64{s.Path: &s.Bytes, s.Path + "-wal": &s.LogBytes} {
			if info, err := os.Stat(path); err == nil {
				*into = info.Size()
			}
		}
		err = d.file.check()
	}
	return s, err
}
