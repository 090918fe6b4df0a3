package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

// schemas are the steps from an empty database to the newest version of the tables: the first makes
// version 1. Never change a step that was released.
var schemas = []string{schema1SQL, schema2SQL, schema3SQL, schema4SQL, schema5SQL}

// Schema creates or upgrades the tables of a message store in your database, in your transaction.
// It does nothing if they are up to date. If they have a newer version than this program knows, the
// error matches [ErrNewerSchema].
//
// The tables are dibs_store, dibs_messages and several whose names begin with dibs_queue. You may
// then also open the database with [Open]; if you use the file in the same process, only with
// modernc.org/sqlite (see [New]).
//
// A nil context or transaction is an [*messagestore.InvalidError]. If the transaction has ended,
// the error matches [messagestore.ErrClosed].
func Schema(ctx context.Context, tx *sql.Tx) error {
	if err := checkContext(ctx); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	if tx == nil {
		return fmt.Errorf("schema: %w", messagestore.NewInvalidError("transaction", nil, "must not be nil"))
	}
	return ended(upgrade(ctx, tx))
}

func upgrade(ctx context.Context, db queryer) error {
	found, err := schemaVersion(ctx, db)
	if err != nil {
		return err
	}
	if found > len(schemas) {
		return fmt.Errorf("%w: found version %d, this program knows up to %d: upgrade it", ErrNewerSchema, found, len(schemas))
	}
	for _, step := range schemas[found:] {
		if _, err := db.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
	}
	return nil
}

// schemaVersion returns the version of the tables, or 0 without tables.
//
// The version is in a table and not in PRAGMA user_version, which belongs to the owner of the file,
// perhaps an application with its own tables.
func schemaVersion(ctx context.Context, db queryer) (int, error) {
	var version int
	found, err := scanOne(ctx, db, "SELECT version FROM dibs_store", nil, &version)
	switch {
	case err != nil && primary(err) <= 1 && strings.Contains(err.Error(), "no such table"):
		return 0, nil
	case err != nil:
		return 0, err
	case !found || version < 1:
		return 0, errors.New("the table dibs_store is damaged: it has no version")
	}
	return version, nil
}

// isEmpty reports whether a database is completely empty.
func isEmpty(ctx context.Context, db queryer) (bool, error) {
	var tables int
	_, err := scanOne(ctx, db, "SELECT count(*) FROM sqlite_schema", nil, &tables)
	return tables == 0, err
}

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
