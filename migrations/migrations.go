// Package migrations brings a PostgreSQL database to the schema that this release
// of the library needs.
//
//	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
//	if err != nil {
//		return err
//	}
//	defer conn.Close(ctx)
//	return migrations.Up(ctx, conn, nil)
//
// The SQL is in files. Those in a folder tables are numbered; each is applied once, and
// none is edited after a release. Those in a folder functions are whole functions and
// views, one a file, with the rights to them; a file that changed is applied again, and
// the function of a file that is gone is dropped. The table dibs.migrations has the hash
// of each file.
//
// [Print] writes the script that Up runs, for psql, and [PrintGoose] writes it for goose. The
// script may be applied to a new database, and to a database that an older release made.
//
// # Roles
//
// The first file makes the role dibs_owner, which owns everything and cannot log in, and
// the roles dibs_reader, dibs_writer, dibs_worker, dibs_operator and dibs_admin, whose members
// may call functions and nothing else. A service that works on queues, sagas or relays is a
// member of dibs_worker, and any other of dibs_writer:
//
//	grant dibs_worker to my_service;
//
// What a member of each may do to others is in docs/trust.md.
//
// Making a role takes CREATEROLE, and nothing here takes more. Without it the missing
// roles stay missing, and without dibs_owner everything belongs to the migrating user.
// [PrintRoles] writes the SQL with which another user makes them, before or after; each
// call of [Up] gives roles that were made since their rights.
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

// Failures to match with [errors.Is]. After any of them the database is as it was.
var (
	// ErrChanged is matched by the error for a numbered file whose text has changed since it was
	// applied.
	ErrChanged = errors.New("changed after it was applied")

	// ErrTooNew is matched by the error for a database that a newer release of the
	// library migrated.
	ErrTooNew = errors.New("the database is newer than this library")

	// ErrInvalidSchema is matched by the error for a schema name that is refused.
	// Nothing was sent.
	ErrInvalidSchema = errors.New("invalid schema")

	// ErrForeignSchema is matched by the error for a superuser in a schema whose functions another
	// user may have made.
	ErrForeignSchema = errors.New("the schema is another user's")

	// ErrInTransaction is returned for a connection that is in a transaction.
	ErrInTransaction = errors.New("the connection is in a transaction")
)

// Config chooses the schema. A nil *Config is a good one.
type Config struct {
	// Schema is the schema for all that is made: at most 63 lower-case letters,
	// digits and underscores. Several in one database are several stores.
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

// given returns an error for a context, or something else, that is nil.
func given(ctx context.Context, what string, isNil bool) error {
	switch {
	case ctx == nil:
		return errors.New("invalid context: it is nil")
	case isNil:
		return fmt.Errorf("invalid %s: it is nil", what)
	}
	return nil
}

// Up installs every file that is missing or changed, in one transaction: all of it or
// nothing. Any number of processes may call it at once, on connections of their own: one
// works, and the others wait, as long as ctx lasts, and find nothing to do. A process
// that is killed leaves nothing behind, and the next begins anew.
//
// The user needs the right to create in the database, and, to make the roles, CREATEROLE. An error
// that matches [ErrChanged] or [ErrTooNew] says that this library and the database do not fit. An
// error that matches [ErrForeignSchema] says that a superuser should not migrate this schema. If
// the connection is lost during the commit, its outcome is unknown; calling Up again is always
// safe.
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

// install runs the script, if a file is missing, changed or gone.
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

// begin runs f in a transaction, at whose end all settings are as they were.
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

// ownNames has names looked up in pg_catalog alone, to the end of the transaction. The
// migrating user may be a superuser, and another user may have left functions in public
// for a superuser to call.
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

// grantRights gives roles that were made since their rights, if the user may.
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

// lock waits for other migrations of the same schema, as long as ctx lasts. Strings in the
// files are standard, with any setting of the session.
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

// bound gives each statement the same limits for locks and for work as the files have.
func bound(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		select set_config(s.name, coalesce(nullif(current_setting('dibs.' || s.name, true), ''), s.most), true)
		from (values ('lock_timeout', '10s'), ('statement_timeout', '5min')) s (name, most)`)
	return err
}

// lockClass is "dibm" in ASCII, the class of the migrations' advisory lock.
const lockClass int32 = 0x6469626d

// inFile says in which line of a file the server found fault.
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

// plain keeps the configuration of a connection, with its password, out of an
// error.
func plain(err error) error {
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return errors.New(e.Error())
	}
	return err
}

// A Migration is the state of a file in a database.
type Migration struct {
	Name      string    // "tables/0001_messages.sql", "functions/append.sql"
	Applied   bool      // as it is, or, if it is numbered, as it was
	AppliedAt time.Time // the last time, UTC; zero for never
	Changed   bool      // it is numbered, and its text has changed since it was applied
	Gone      bool      // the library no longer has it, and Up drops its function
	Unknown   bool      // a newer release of the library applied it: see [ErrTooNew]
	LeftOut   string    // why Up does not apply it here; "" if it does, or has
}

// Function reports whether the file is applied again when it changes.
func (m Migration) Function() bool { return strings.Contains("/"+m.Name, "/functions/") }

// Status returns the state of all files in the order in which they are applied. Files of a newer
// library come last. It changes nothing.
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
