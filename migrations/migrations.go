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
// The schema is a list of files of plain SQL, each applied once, in the order of
// their numbers, and never edited after a release. What has been applied is in the
// table dibs.migrations, where each file records itself: so they may be applied by
// psql or by goose as well, from the folder sql or by the script that [Print] writes.
//
// # Roles
//
// The first file makes the roles dibs_owner, who owns all and cannot log in, and
// dibs_writer, dibs_reader and dibs_admin, whose members may call functions and
// nothing else:
//
//	grant dibs_writer to my_service;
//
// Making roles takes CREATEROLE, and nothing here takes more. A user without it goes
// on without the roles that are missing, and without dibs_owner all is that user's.
// Somebody else may make them, before or after, with what [PrintRoles] writes; each
// call of [Up] gives roles that were made since their rights.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/pgschema"
)

// Failures to match with [errors.Is]. After any of them the database is as it was.
var (
	// ErrChanged is matched by the error for a file that is not what was applied
	// under its name. See [ChangedError].
	ErrChanged = errors.New("changed after it was applied")

	// ErrTooNew is matched by the error for a database to which a newer release of
	// the library applied files that this one does not have. See [TooNewError].
	ErrTooNew = errors.New("the database is newer than this library")

	// ErrInvalidSchema is matched by the error for a schema name that is refused.
	// Nothing was sent.
	ErrInvalidSchema = errors.New("invalid schema")

	// ErrForeignSchema is matched by the error for a superuser who would call what
	// another user has in the schema. See [ForeignSchemaError].
	ErrForeignSchema = errors.New("the schema is another user's")

	// ErrInTransaction is returned for a connection that is in a transaction.
	ErrInTransaction = errors.New("the connection is in a transaction")
)

// A ChangedError names a file that is not what was applied under its name.
type ChangedError struct {
	Name   string
	SHA256 string // of what was applied
}

// Error names the file.
func (e *ChangedError) Error() string { return fmt.Sprintf("%s: %v", e.Name, ErrChanged) }

// Is reports whether target is [ErrChanged].
func (e *ChangedError) Is(target error) bool { return target == ErrChanged }

// A TooNewError names what was applied and this library does not know.
type TooNewError struct {
	Names []string
}

// Error names the files.
func (e *TooNewError) Error() string {
	return fmt.Sprintf("%v: it has %s", ErrTooNew, strings.Join(e.Names, ", "))
}

// Is reports whether target is [ErrTooNew].
func (e *TooNewError) Is(target error) bool { return target == ErrTooNew }

// A ForeignSchemaError names the owner of a schema, who is neither dibs_owner nor the
// superuser who migrates, and could have put anything there for a superuser to call.
type ForeignSchemaError struct {
	Schema string
	Owner  string
}

// Error says what to do.
func (e *ForeignSchemaError) Error() string {
	return fmt.Sprintf("%v: %s belongs to %s; migrate as that user, or give it to dibs_owner", ErrForeignSchema, e.Schema, e.Owner)
}

// Is reports whether target is [ErrForeignSchema].
func (e *ForeignSchemaError) Is(target error) bool { return target == ErrForeignSchema }

// Config changes what is migrated. A nil *Config is a good one.
type Config struct {
	// Schema is the schema for all that is made: at most 63 lower-case letters,
	// digits and underscores. Several in one database are several stores.
	//
	// Defaults to dibs.
	Schema string
}

func (c *Config) schema() (string, error) {
	if c == nil || c.Schema == "" {
		return pgschema.Default, nil
	}
	if rule := pgschema.Check(c.Schema); rule != "" {
		return "", fmt.Errorf("%w %s: %s", ErrInvalidSchema, pgschema.Quote(c.Schema), rule)
	}
	return c.Schema, nil
}

//go:embed sql/*.sql
var embedded embed.FS

//go:embed grant_rights.sql
var becomeGranter string

// A file is one migration, written for the schema dibs. Its last statement records
// it, by its name and the hash of what comes above that statement.
type file struct {
	name string
	sql  string
}

var records = regexp.MustCompile(`(?m)^insert into dibs\.migrations \(name, sha256\)\nvalues \('([0-9a-z_.]+)', '([0-9a-f]{64})'\);$`)

// sha256 returns the hash that the file records, which is what all who applied it
// have, whatever they applied it with. A test holds that it is the right one.
func (f file) sha256() string {
	if found := records.FindAllStringSubmatch(f.sql, -1); len(found) > 0 {
		return found[len(found)-1][2]
	}
	return ""
}

// files returns the migrations in order.
var files = func() []file {
	names, err := fs.Glob(embedded, "sql/*.sql")
	if err != nil {
		panic(err) // the pattern is good
	}
	all := make([]file, len(names))
	for i, name := range names {
		sql, err := embedded.ReadFile(name)
		if err != nil {
			panic(err) // the name is from the same file system
		}
		all[i] = file{path.Base(name), string(sql)}
	}
	return all
}()

// Up applies what has not been applied yet, in one transaction: all of it or
// nothing. Any number of processes may call it at once, on connections of their
// own: one works, and the others wait, as long as ctx lasts, and find nothing to
// do. What one that was killed leaves behind is nothing, and the next begins anew.
//
// The user needs the right to create in the database, and, to make the roles,
// CREATEROLE. An error that matches [ErrChanged] or [ErrTooNew] says that this
// library and the database do not fit; one that matches [ErrForeignSchema], that a
// superuser should not migrate this schema. If the connection is lost while it
// commits, it is not known whether it did; calling Up again is always safe.
func Up(ctx context.Context, conn *pgx.Conn, config *Config) error {
	return up(ctx, conn, config, files)
}

func up(ctx context.Context, conn *pgx.Conn, config *Config, files []file) error {
	schema, err := config.schema()
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
		if schema == pgschema.Default {
			if err := refuseWhileAdopting(ctx, tx); err != nil {
				return err
			}
		}
		if err := install(ctx, tx, schema, files); err != nil {
			return err
		}
		return grantRights(ctx, tx, schema)
	})
	if err != nil {
		return fmt.Errorf("migrate: %w", plain(err))
	}
	return nil
}

// install applies the files that are not applied yet.
func install(ctx context.Context, tx pgx.Tx, schema string, files []file) error {
	applied, err := readApplied(ctx, tx, schema)
	if err != nil {
		return err
	}
	if err := applied.fit(files); err != nil {
		return err
	}
	left, err := leftOut(ctx, tx, schema)
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, done := applied.byName[f.name]; done || left[f.name] != "" {
			continue
		}
		if err := apply(ctx, tx, schema, f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
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

// ownNames has names looked up in pg_catalog alone, to the end of the transaction. Who
// migrates may be a superuser, and elsewhere there may be functions that somebody left
// for one to call.
func ownNames(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "set local search_path = pg_catalog, pg_temp")
	return err
}

// refuseForeign keeps a superuser from calling what others may have put into the schema.
func refuseForeign(ctx context.Context, tx pgx.Tx, schema string) error {
	const foreign = `
		select pg_get_userbyid(n.nspowner)::text
		from pg_namespace n
		join pg_roles r on r.rolname = session_user and r.rolsuper
		where n.nspname = $1 and pg_get_userbyid(n.nspowner) not in (session_user, current_user, 'dibs_owner')`
	e := &ForeignSchemaError{Schema: schema}
	err := tx.QueryRow(ctx, foreign, schema).Scan(&e.Owner)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return e
}

// compatible is the file that makes the schema message_store, which message-db's
// clients know. A database has one, beside the store in the schema dibs.
const (
	compatible       = "0009_message_store.sql"
	compatibleSchema = "message_store"
)

// A Reason says why [Up] leaves a file out, as part of a sentence.
type Reason string

// The reasons there are.
const (
	// MessageDBIsThere is for the schema message_store where it is message-db's own:
	// that is left as it is until dibs migrate adopt takes it over.
	MessageDBIsThere Reason = "message_store is message-db's own, until it is adopted"

	// OnlyBesideDibs is for the schema message_store beside a store in another schema
	// than dibs.
	OnlyBesideDibs Reason = "it is only for the store in the schema dibs"
)

// messageDBIsThere is SQL for whether message_store.messages is a table, as it is in
// message-db. Ours is a view.
const messageDBIsThere = `exists (
  select from pg_catalog.pg_class
  where relnamespace = to_regnamespace('message_store') and relname = 'messages' and relkind in ('r', 'p')
)`

// leftOut returns the files that Up does not apply in this database, and why.
func leftOut(ctx context.Context, tx pgx.Tx, schema string) (map[string]Reason, error) {
	if schema != pgschema.Default {
		return map[string]Reason{compatible: OnlyBesideDibs}, nil
	}
	var is bool
	if err := tx.QueryRow(ctx, "select "+messageDBIsThere).Scan(&is); err != nil || !is {
		return nil, err
	}
	return map[string]Reason{compatible: MessageDBIsThere}, nil
}

// grantRights gives roles that were made since their rights, if the user may.
func grantRights(ctx context.Context, tx pgx.Tx, schema string) error {
	may, err := tx.Exec(ctx, pgschema.Rename(becomeGranter, schema))
	if err != nil || may.RowsAffected() == 0 {
		return err
	}
	_, err = tx.Exec(ctx, pgschema.Rename("select dibs.grant_rights()", schema))
	return err
}

// lock waits for others who migrate the same schema, as long as ctx lasts. Strings in
// the files are standard, whatever the session has.
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

// bound has each statement wait for locks, and work, as long as those of the files may.
func bound(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		select set_config(s.name, coalesce(nullif(current_setting('dibs.' || s.name, true), ''), s.most), true)
		from (values ('lock_timeout', '10s'), ('statement_timeout', '5min')) s (name, most)`)
	return err
}

// lockClass is "dibm" in ASCII: what migrates waits for nothing else.
const lockClass int32 = 0x6469626d

// applied is what dibs.migrations says, in order of name.
type applied struct {
	names  []string
	byName map[string]record
}

type record struct {
	sha256 string
	at     time.Time
}

// A reader is who can read what was applied: a user who may act as the owner need not
// have the owner's rights.
type reader struct {
	exists   bool
	before   string // the session's role
	role     string // the one to read with
	readable bool
}

//go:embed reader.sql
var findReader string

func readerOf(ctx context.Context, tx pgx.Tx, schema string) (r reader, err error) {
	err = tx.QueryRow(ctx, findReader, schema).Scan(&r.exists, &r.before, &r.role, &r.readable)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return r, err
}

func readApplied(ctx context.Context, tx pgx.Tx, schema string) (applied, error) {
	a := applied{byName: map[string]record{}}
	r, err := readerOf(ctx, tx, schema)
	if err != nil || !r.exists {
		return a, err
	}
	if err := setRole(ctx, tx, r.role); err != nil {
		return a, err
	}
	rows, err := tx.Query(ctx, pgschema.Rename("select name, sha256, applied_at from dibs.migrations order by name", schema))
	if err != nil {
		return a, err
	}
	type line struct {
		Name, SHA256 string
		At           time.Time
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[line])
	if err != nil {
		return a, err
	}
	for _, l := range lines {
		a.names = append(a.names, l.Name)
		a.byName[l.Name] = record{l.SHA256, l.At}
	}
	return a, setRole(ctx, tx, r.before)
}

func setRole(ctx context.Context, tx pgx.Tx, role string) error {
	_, err := tx.Exec(ctx, "select set_config('role', $1::text, true)", role)
	return err
}

// fit returns nil if all that was applied is among files, and as it is there.
func (a applied) fit(files []file) error {
	known := map[string]bool{}
	for _, f := range files {
		known[f.name] = true
		if r, done := a.byName[f.name]; done && r.sha256 != f.sha256() {
			return &ChangedError{Name: f.name, SHA256: r.sha256}
		}
	}
	var unknown []string
	for _, name := range a.names {
		if !known[name] {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return &TooNewError{Names: unknown}
	}
	return nil
}

// apply runs a file as the session's user, which the file gives up for the schema's
// owner while it works. The file records itself.
func apply(ctx context.Context, tx pgx.Tx, schema string, f file) error {
	sql := pgschema.Rename(f.sql, schema)
	if _, err := tx.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return atLine(sql, err)
	}
	applied, err := readApplied(ctx, tx, schema)
	if err == nil && applied.byName[f.name].sha256 != f.sha256() {
		err = errors.New("it did not record itself")
	}
	return err
}

// atLine says in which line of a file the server found fault.
func atLine(sql string, err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.Position < 1 {
		return err
	}
	line, at := 1, int(e.Position)
	for _, r := range sql {
		if at--; at == 0 {
			break
		}
		if r == '\n' {
			line++
		}
	}
	return fmt.Errorf("line %d: %w", line, err)
}

// plain keeps the configuration of a connection, with its password, out of an
// error.
func plain(err error) error {
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return errors.New(e.Error())
	}
	return err
}

// A Migration is a file, and what has become of it in a database.
type Migration struct {
	Name      string    // "0001_schema.sql"
	Applied   bool      // whether it has been
	AppliedAt time.Time // when, UTC; zero if it has not been
	Changed   bool      // whether what was applied is not what this library has
	Unknown   bool      // whether this library does not have it: see [ErrTooNew]
	LeftOut   Reason    // why Up does not apply it here; "" if it does, or has
}

// Status returns all migrations in order, those of a newer library last. It
// changes nothing.
func Status(ctx context.Context, conn *pgx.Conn, config *Config) ([]Migration, error) {
	return status(ctx, conn, config, files)
}

func status(ctx context.Context, conn *pgx.Conn, config *Config, files []file) ([]Migration, error) {
	schema, err := config.schema()
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	var all []Migration
	err = begin(ctx, conn, pgx.ReadOnly, func(tx pgx.Tx) error {
		if err := bound(ctx, tx); err != nil {
			return err
		}
		all, err = readStatus(ctx, tx, schema, files)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", plain(err))
	}
	return all, nil
}

func readStatus(ctx context.Context, tx pgx.Tx, schema string, files []file) ([]Migration, error) {
	applied, err := readApplied(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	left, err := leftOut(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, f := range files {
		r, done := applied.byName[f.name]
		delete(applied.byName, f.name)
		if !done {
			all = append(all, Migration{Name: f.name, LeftOut: left[f.name]})
			continue
		}
		all = append(all, Migration{Name: f.name, Applied: true, AppliedAt: r.at.UTC(), Changed: r.sha256 != f.sha256()})
	}
	for _, name := range applied.names {
		if r, left := applied.byName[name]; left {
			all = append(all, Migration{Name: name, Applied: true, AppliedAt: r.at.UTC(), Unknown: true})
		}
	}
	return all, nil
}

// scriptHead begins the script that Print writes.
const scriptHead = `-- Makes a message store in the schema %s, which must not be there, or be empty:
--
--	psql -X -d app -f dibs.sql
--
-- It is one transaction. Each file in it records itself in the table migrations, so that
-- dibs migrate up goes on from here. It makes the roles dibs_owner, dibs_writer,
-- dibs_reader, dibs_admin and message_store where they are missing and the user has
-- CREATEROLE; nothing in it takes a superuser.
\set ON_ERROR_STOP on
begin;
set local search_path = pg_catalog, pg_temp;
`

// Print writes everything that Up does on an empty database as one script for
// psql, for those who review what is run and run it themselves. On a database with
// message-db the script leaves out what Up leaves out, and says so.
func Print(w io.Writer, config *Config) error {
	schema, err := config.schema()
	if err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, scriptHead, schema)
	for _, f := range files {
		switch {
		case f.name != compatible:
			fmt.Fprintf(&b, "\n-- %s\n\n%s", f.name, pgschema.Rename(f.sql, schema))
		case schema == pgschema.Default:
			fmt.Fprintf(&b, "\n-- %[1]s\n\nselect %[2]s as message_db \\gset\n\\if :message_db\n\\warn '%[1]s is left out: %[3]s'\n\\else\n%[4]s\\endif\n",
				f.name, strings.ReplaceAll(messageDBIsThere, "\n", ""), strings.ReplaceAll(string(MessageDBIsThere), "'", "''"), f.sql)
		}
	}
	b.WriteString("\ncommit;\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	return nil
}

//go:embed roles.sql
var roles string

// PrintRoles writes the SQL that makes the roles, for those on whose server roles are
// made by somebody else than who migrates. It takes CREATEROLE.
func PrintRoles(w io.Writer) error {
	if _, err := io.WriteString(w, roles); err != nil {
		return fmt.Errorf("print roles: %w", err)
	}
	return nil
}
