package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Open opens the message store in the file at path. It creates the store, and also the file, if it
// does not exist; the folder must exist. A new file, and the files that SQLite puts next to it,
// have mode 0600; an existing file keeps its mode, and the files next to it get the same. Several
// processes may open one file at a time, also a new one. You close the driver.
//
// An empty path, a path with a NUL and ":memory:" are an [*messagestore.InvalidError]. Every other
// error names the file, the cause and the remedy: it matches [ErrNotAStore] if the file is not a
// message store, [ErrNewerSchema] if a newer version of this package wrote it, and [ErrBusy] if
// another process kept it locked for too long.
//
// You can also open your own database if it has the tables that [Schema] creates. Open switches it
// to write-ahead logging, like every store.
func Open(ctx context.Context, path string, config *Config) (*Driver, error) {
	return open(ctx, "sqlite", path, config)
}

func open(ctx context.Context, driverName, path string, config *Config) (*Driver, error) {
	if err := checkContext(ctx); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	full, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if path, err = checkPath(path); err != nil {
		return nil, err
	}
	source := dataSource(path, "busy_timeout(0)", "synchronous(full)", "fullfsync(1)", "checkpoint_fullfsync(1)", "journal_size_limit(67108864)")
	writing, err := sql.Open(driverName, source)
	if err != nil {
		return nil, &openError{path: path, rule: "no driver", cause: err}
	}
	makeFile(path)
	writing.SetMaxOpenConns(1)
	if err := prepareFile(ctx, writing, full.BusyTimeout); err != nil {
		_ = writing.Close()
		return nil, openFailed(path, err)
	}
	reading, err := sql.Open(driverName, dataSource(path, "busy_timeout(100)", "query_only(1)"))
	if err != nil {
		_ = writing.Close()
		return nil, &openError{path: path, rule: "no driver", cause: err}
	}
	reading.SetMaxOpenConns(full.Readers)
	reading.SetMaxIdleConns(full.Readers)
	p, err := newPool(ctx, reading, full.BusyTimeout)
	if err != nil {
		_ = reading.Close()
		_ = writing.Close()
		return nil, openFailed(path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		_ = reading.Close()
		_ = writing.Close()
		return nil, openFailed(path, err)
	}
	w := &writer{db: writing, timeout: full.BusyTimeout, most: full.MaxGroup}
	w.start()
	t := newTransactions(writing.Driver(), source, w)
	return &Driver{reads: p, writes: w, transactions: t, file: &file{path, info}, close: sync.OnceValue(func() error {
		w.stop()
		return errors.Join(p.close(), t.close(), writing.Close())
	})}, nil
}

// prepareFile makes sure that the file holds a store of this version.
func prepareFile(ctx context.Context, db *sql.DB, timeout time.Duration) error {
	conn, err := connect(ctx, db, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	return retry(ctx, timeout, func() error {
		// This order matters: between the two another process may create the tables.
		empty, err := isEmpty(ctx, conn)
		if err != nil {
			return err
		}
		version, err := schemaVersion(ctx, conn)
		if err != nil {
			return err
		}
		if version == 0 && !empty {
			return errForeign
		}
		if err := logAhead(ctx, conn); err != nil {
			return err
		}
		return upgradeFile(ctx, conn) // also if there is nothing to do: a file that cannot be written is found out here
	})
}

var errForeign = fmt.Errorf("%w: it is a database of something else", ErrNotAStore)

func logAhead(ctx context.Context, conn *sql.Conn) error {
	var mode string
	if _, err := scanOne(ctx, conn, "PRAGMA journal_mode = wal", nil, &mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("write-ahead logging is not available here (the journal mode stays %q): is the file on a network file system?", mode)
	}
	return nil
}

// upgradeFile takes the write lock and looks again, so that one process creates the tables and the
// others find them.
func upgradeFile(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, beginSQL); err != nil {
		return err
	}
	err := upgrade(ctx, conn)
	if err == nil {
		// A killed process may have left messages that it never flushed, and SQLite reads them as
		// written. This flushes them before anybody reads them.
		_, err = conn.ExecContext(ctx, settleSQL)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, commitSQL)
	}
	if err != nil {
		if _, undo := conn.ExecContext(context.WithoutCancel(ctx), rollbackSQL); undo != nil {
			return fmt.Errorf("%w: %w", err, undo)
		}
		return err
	}
	return nil
}

// openFailed adds the remedy to an error of opening.
func openFailed(path string, err error) error {
	rule := "it cannot be opened"
	switch primary(err) {
	case codeNotADB:
		return &openError{path: path, rule: "it is not an SQLite database", cause: fmt.Errorf("%w: %w", ErrNotAStore, err)}
	case codeCorrupt:
		rule = "it is damaged: restore it from a backup, or try SQLite's .recover"
	case codeReadOnly, codePerm:
		rule = "it is not writable: check the rights of the file and of its folder"
	case codeCantOpen:
		rule = "it cannot be opened: check the rights of the file and of its folder"
	}
	switch {
	case errors.Is(err, errForeign):
		rule = "give another path, or add the tables to this database with sqlite.Schema"
	case errors.Is(err, ErrNewerSchema):
		rule = "it belongs to a newer program"
	}
	return &openError{path: path, rule: rule, cause: err}
}
