// Package migrations brings a PostgreSQL database to the schema that this release of the library
// needs.
//
//	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
//	if err != nil {
//		return err
//	}
//	defer conn.Close(ctx)
//	return migrations.Up(ctx, conn, nil)
//
// The SQL is in files. Files in a folder tables are numbered; each is applied once, and never
// edited after a release. A file in a folder functions has a whole function or view, and the rights
// to it; a changed file is applied again, and if a file is gone, its function is dropped. The table
// dibs.migrations has the hash of each file.
//
// [Print] writes the script of Up for psql, and [PrintGoose] writes it for goose. You can apply the
// script to a new database, and to a database that an older release made.
//
// # Roles
//
// The first file makes the role dibs_owner, which owns everything and cannot log in, and the roles
// dibs_reader, dibs_writer, dibs_worker, dibs_operator and dibs_admin, which only have the right to
// call functions. Make a service that works on queues, sagas or relays a member of dibs_worker, and
// any other service a member of dibs_writer:
//
//	grant dibs_worker to my_service;
//
// See docs/trust.md for the harm that a member of each role can do.
//
// Making a role needs CREATEROLE; nothing here needs more. Without it missing roles stay missing,
// and without dibs_owner the migrating user owns everything. [PrintRoles] writes the SQL with which
// another user can make the roles, before or after; each call of [Up] grants new roles their
// rights.
package migrations

import (
	"context"
	_ "embed" // for SQL
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/pglink"
)

// Failures, for [errors.Is]. After any of them the database is unchanged.
var (
	// ErrChanged is returned when the text of a numbered file has changed since it was applied.
	ErrChanged = errors.New("changed after it was applied")

	// ErrTooNew is returned when a newer release of the library has migrated the database.
	ErrTooNew = errors.New("the database is newer than this library")

	// ErrInvalidSchema is returned when the schema's name is invalid. Nothing was sent.
	ErrInvalidSchema = errors.New("invalid schema")

	// ErrForeignSchema is returned when a superuser migrates a schema in which another user may
	// have made functions.
	ErrForeignSchema = errors.New("the schema is another user's")

	// ErrInTransaction is returned when the connection is in a transaction.
	ErrInTransaction = errors.New("the connection is in a transaction")
)

// Config chooses the schema. nil means the defaults.
type Config struct {
	// Schema is the schema of the store: at most 63 lower-case letters, digits and underscores.
	// Each schema of a database is a separate store.
	//
	// Defaults to dibs.
	Schema string
}

func (c *Config) schema() (string, error) {
	if c == nil || c.Schema == "" {
		return pglink.DefaultSchema, nil
	}
	if rule := pglink.CheckSchema(c.Schema); rule != "" {
		return "", fmt.Errorf("%w %s: %s", ErrInvalidSchema, pglink.QuoteSchema(c.Schema), rule)
	}
	return c.Schema, nil
}

// given returns an error if ctx is nil, or if isNil says that another argument is.
func given(ctx context.Context, what string, isNil bool) error {
	switch {
	case ctx == nil:
		return errors.New("invalid context: must not be nil")
	case isNil:
		return fmt.Errorf("invalid %s: it is nil", what)
	}
	return nil
}

// Up installs every file that is missing or changed, in one transaction: everything or nothing. Any
// number of processes may call it at once, each on its own connection: one works, and the others
// wait until it is done, or until ctx ends, and find nothing to do. A killed process leaves nothing
// behind, and the next starts again.
//
// The user needs the right to create in the database, and CREATEROLE to make the roles. The error
// matches [ErrChanged] or [ErrTooNew] if this library and the database do not fit, and
// [ErrForeignSchema] if a superuser should not migrate this schema. If the connection is lost
// during COMMIT, the outcome is unknown; it is always safe to call Up again.
func Up(ctx context.Context, conn *pgx.Conn, config *Config) error {
	return up(ctx, conn, config, parts)
}

func up(ctx context.Context, conn *pgx.Conn, config *Config, parts []part) error {
	schema, err := config.schema()
	if err == nil {
		err = given(ctx, "connection", conn == nil)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	err = begin(ctx, conn, pgx.ReadWrite, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, schema); err != nil {
			return err
		}
		if err := bound(ctx, tx); err != nil {
			return err
		}
		if err := refuseForeign(ctx, tx, schema); err != nil {
			return err
		}
		if schema == pglink.DefaultSchema {
			if err := refuseWhileAdopting(ctx, tx); err != nil {
				return err
			}
		}
		if err := install(ctx, tx, schema, parts); err != nil {
			return err
		}
		return grantRights(ctx, tx, schema)
	})
	if err != nil {
		return fmt.Errorf("migrate: %w", plain(err))
	}
	return nil
}

// install runs the script if a file is missing, changed or gone.
func install(ctx context.Context, tx pgx.Tx, schema string, parts []part) error {
	all, err := readStatus(ctx, tx, schema, parts)
	if err != nil {
		return err
	}
	if err := fit(all); err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(m Migration) bool { return m.LeftOut == "" && !m.Applied || m.Gone }) {
		return nil
	}
	steps, err := script(schema, parts)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if _, err := tx.Conn().PgConn().Exec(ctx, s.sql).ReadAll(); err != nil {
			return inFile(s.file, err)
		}
	}
	return nil
}

// begin runs f in a transaction, and all settings are restored at its end.
func begin(ctx context.Context, conn *pgx.Conn, mode pgx.TxAccessMode, f func(pgx.Tx) error) error {
	if conn.PgConn().TxStatus() != 'I' {
		return ErrInTransaction
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: mode}, func(tx pgx.Tx) error {
		if err := ownNames(ctx, tx); err != nil {
			return err
		}
		return f(tx)
	})
}

// ownNames makes the server look up names only in pg_catalog until the end of the transaction. The
// migrating user may be a superuser, and another user may have left functions in public for a
// superuser to call.
func ownNames(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "set local search_path = pg_catalog, pg_temp")
	return err
}

// refuseForeign keeps a superuser from calling functions that another user made in the schema.
func refuseForeign(ctx context.Context, tx pgx.Tx, schema string) error {
	const foreign = `
		select pg_get_userbyid(n.nspowner)::text
		from pg_namespace n
		join pg_roles r on r.rolname = session_user and r.rolsuper
		where n.nspname = $1 and pg_get_userbyid(n.nspowner) not in (session_user, current_user, 'dibs_owner')`
	var owner string
	err := tx.QueryRow(ctx, foreign, schema).Scan(&owner)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s belongs to %s; migrate as that user, or give it to dibs_owner", ErrForeignSchema, schema, owner)
}

// grantRights grants their rights to roles that were made since, if the user may.
func grantRights(ctx context.Context, tx pgx.Tx, schema string) error {
	may, err := tx.Exec(ctx, pglink.InSchema(becomeGranter, schema))
	if err != nil || may.RowsAffected() == 0 {
		return err
	}
	_, err = tx.Exec(ctx, pglink.InSchema("select dibs.grant_rights()", schema))
	return err
}

//go:embed grant_rights.sql
var becomeGranter string

// lock waits for other migrations of the same schema, as long as ctx lasts. It also makes strings
// in the files standard, with any setting of the session.
func lock(ctx context.Context, tx pgx.Tx, schema string) error {
	_, err := tx.Exec(ctx, `
		select set_config(s.name, s.value, true)
		from (values ('lock_timeout', '0'), ('statement_timeout', '0'), ('standard_conforming_strings', 'on'), ('client_min_messages', 'warning')) s (name, value)`)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "select pg_advisory_xact_lock($1::int, hashtext($2::text))", lockClass, schema)
	return err
}

// bound gives each statement the limits for locks and for work that the files have.
func bound(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		select set_config(s.name, coalesce(nullif(current_setting('dibs.' || s.name, true), ''), s.most), true)
		from (values ('lock_timeout', '10s'), ('statement_timeout', '5min')) s (name, most)`)
	return err
}

// lockClass is "dibm" in ASCII, the class of the migrations' advisory lock.
const lockClass int32 = 0x6469626d

// inFile adds the line of the file at which the server found the error.
func inFile(name string, err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if name == "" {
		return err
	}
	if !ok || e.InternalPosition < 1 {
		return fmt.Errorf("%s: %w", name, err)
	}
	line, at := 0, int(e.InternalPosition) // a line end comes before the file
	for _, r := range e.InternalQuery {
		if at--; at == 0 {
			break
		}
		if r == '\n' {
			line++
		}
	}
	return fmt.Errorf("%s: line %d: %w", name, line, err)
}

// plain removes the configuration of a connection, which has the password, from an error.
func plain(err error) error {
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return errors.New(e.Error())
	}
	return err
}

// A Migration is the state of a file in a database.
type Migration struct {
	Name      string    // "tables/0001_messages.sql", "functions/append.sql"
	Applied   bool      // also if the text has changed since: see Changed
	AppliedAt time.Time // the last time, UTC; zero for never
	Changed   bool      // it is numbered, and its text has changed since it was applied
	Gone      bool      // the library does not have it any longer, and Up drops its function
	Unknown   bool      // a newer release of the library applied it: see [ErrTooNew]
	LeftOut   string    // why Up does not apply it here, or ""
}

// Function reports whether the file is applied again whenever it changes.
func (m Migration) Function() bool { return strings.Contains("/"+m.Name, "/functions/") }

// Status returns the state of all files, in the order of applying them. Files of a newer library
// come last. It changes nothing.
func Status(ctx context.Context, conn *pgx.Conn, config *Config) ([]Migration, error) {
	return status(ctx, conn, config, parts)
}

func status(ctx context.Context, conn *pgx.Conn, config *Config, parts []part) ([]Migration, error) {
	schema, err := config.schema()
	if err == nil {
		err = given(ctx, "connection", conn == nil)
	}
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	var all []Migration
	err = begin(ctx, conn, pgx.ReadOnly, func(tx pgx.Tx) error {
		if err := bound(ctx, tx); err != nil {
			return err
		}
		all, err = readStatus(ctx, tx, schema, parts)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", plain(err))
	}
	return all, nil
}
