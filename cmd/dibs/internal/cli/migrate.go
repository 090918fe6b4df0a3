package cli

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/messagedb/adopt"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/migrations"
)

type migrateCommand struct {
	Up     migrateUpCommand     `cmd:"" help:"Bring the schema up to date. Safe to run again, and by several at once."`
	Status migrateStatusCommand `cmd:"" default:"1" help:"Print applied and pending migrations."`
	Print  migratePrintCommand  `cmd:"" help:"Print the SQL, for another tool or another person to run."`
	Adopt  migrateAdoptCommand  `cmd:"" help:"Move the messages of message-db to this store, or give them back."`
}

type migrateUpCommand struct{}

// Help is printed below the command's usage.
func (migrateUpCommand) Help() string {
	return "All of it or nothing. The user needs the right to create in the database and, to make the roles, CREATEROLE; print shows the SQL first.\n\nExample:\n\n    dibs migrate up --store postgres://postgres@localhost/app"
}

// Run migrates.
func (migrateUpCommand) Run(ctx context.Context, a *app) error {
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		before, err := migrations.Status(ctx, conn, a.migrationsConfig())
		if err != nil {
			return err
		}
		if err := migrations.Up(ctx, conn, a.migrationsConfig()); err != nil {
			return err
		}
		all, err := migrations.Status(ctx, conn, a.migrationsConfig())
		if err != nil {
			return err
		}
		if a.JSON {
			return a.printMigrations(all)
		}
		if err := a.printApplied(before, all); err != nil {
			return err
		}
		if err := a.printUpToDate(all); err != nil {
			return err
		}
		return a.printAbsentRoles(ctx, conn)
	})
}

// printApplied names the files that were applied, and counts functions where there are many.
func (a *app) printApplied(before, after []migrations.Migration) error {
	was := map[string]migrations.Migration{}
	for _, m := range before {
		was[m.Name] = m
	}
	var numbered, functions []string
	for _, m := range after {
		switch {
		case !m.Applied || was[m.Name].Applied:
		case m.Function():
			functions = append(functions, m.Name)
		default:
			numbered = append(numbered, m.Name)
		}
	}
	for _, name := range numbered {
		if err := a.out.line("applied %s", name); err != nil {
			return err
		}
	}
	const few = 10
	if len(functions) > few {
		if err := a.out.line("applied %d functions and views", len(functions)); err != nil {
			return err
		}
		functions = nil
	}
	for _, name := range functions {
		if err := a.out.line("applied %s", name); err != nil {
			return err
		}
	}
	for _, m := range before {
		if m.Gone {
			if err := a.out.line("dropped what %s made", m.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// printAbsentRoles names the roles that another user has to make.
func (a *app) printAbsentRoles(ctx context.Context, conn *pgx.Conn) error {
	drift, err := migrations.Drift(ctx, conn, a.migrationsConfig())
	if err != nil || len(drift.AbsentRoles) == 0 {
		return err
	}
	return a.out.line("missing on this server: %s; run the SQL of dibs migrate print --roles as a user with CREATEROLE, and then this again", strings.Join(drift.AbsentRoles, ", "))
}

// printUpToDate also names the parts that are left out, which a client may miss.
func (a *app) printUpToDate(all []migrations.Migration) error {
	if err := a.out.line("up to date"); err != nil {
		return err
	}
	said := ""
	for _, m := range all {
		part, _, _ := strings.Cut(m.Name, "/")
		if m.LeftOut == "" || part == said {
			continue
		}
		said = part
		if err := a.out.line("%s is left out: %s", part, m.LeftOut); err != nil {
			return err
		}
		if part != "message_store" {
			continue
		}
		// A store that is used already is not filled.
		if err := a.out.line("to take its messages over, before services in Go write any: dibs migrate adopt --dry-run"); err != nil {
			return err
		}
	}
	return nil
}

type migrateStatusCommand struct{}

// Help is printed below the command's usage.
func (migrateStatusCommand) Help() string {
	return "Changes nothing. A file is applied, pending, left out for a reason, changed since it was applied, gone, if this release no longer has it, or unknown, if a newer release applied it. Files of functions and views that are all in one state are one line.\n\nExample:\n\n    dibs migrate status"
}

type migratePrintCommand struct {
	Roles bool `help:"Print only the statements that make the roles: they take CREATEROLE." xor:"print"`
	Goose bool `help:"Print a migration for goose instead of a script for psql." xor:"print"`
}

// Help is printed below the command's usage.
func (migratePrintCommand) Help() string {
	return "Prints one script for psql that does what migrate up does, in one transaction: on an empty database, and on one that an older release made. Nothing is run, and no database is asked.\n\nExample:\n\n    dibs migrate print > dibs.sql\n    psql -X -d app -f dibs.sql"
}

// Run prints the SQL. It needs no store.
func (c migratePrintCommand) Run(a *app) error {
	if c.Roles {
		return migrations.PrintRoles(a.out)
	}
	if c.Goose {
		return migrations.PrintGoose(a.out, a.migrationsConfig())
	}
	return migrations.Print(a.out, a.migrationsConfig())
}

// Run prints what is.
func (migrateStatusCommand) Run(ctx context.Context, a *app) error {
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		all, err := migrations.Status(ctx, conn, a.migrationsConfig())
		if err != nil {
			return err
		}
		if err := a.printMigrations(all); err != nil || a.Schema != "" && a.Schema != pglink.DefaultSchema {
			return err
		}
		adoption, err := adopt.Status(ctx, conn)
		if err != nil || adoption == nil {
			return err
		}
		return a.printAdoption(adoption)
	})
}

// A migrationLine is how a migration is printed as JSON.
type migrationLine struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	AppliedAt string `json:"appliedAt,omitempty"`
	Reason    string `json:"reason,omitempty"` // why it is left out
}

func (a *app) printMigrations(all []migrations.Migration) error {
	var lines []migrationLine
	for _, m := range all {
		lines = append(lines, newMigrationLine(m))
	}
	if a.JSON {
		for _, l := range lines {
			if err := a.out.object(l); err != nil {
				return err
			}
		}
		return nil
	}
	for _, l := range folded(all, lines) {
		if err := a.out.row(cell{text: l.Name}, cell{text: l.State, style: migrationStyles[l.State]}, cell{text: l.AppliedAt + l.Reason, style: dim}); err != nil {
			return err
		}
	}
	return nil
}

var migrationStyles = map[string]style{"applied": green, "pending": yellow, "gone": yellow, "changed": red, "unknown": red, "left out": dim}

func newMigrationLine(m migrations.Migration) migrationLine {
	l := migrationLine{Name: m.Name, State: "pending"}
	if m.Applied {
		l.State, l.AppliedAt = "applied", timeText(m.AppliedAt)
	}
	switch {
	case m.Unknown:
		l.State = "unknown" // applied by a newer release
	case m.Changed:
		l.State = "changed" // since it was applied
	case m.Gone:
		l.State = "gone" // from this release
	case m.LeftOut != "":
		l.State, l.Reason = "left out", m.LeftOut
	}
	return l
}

// folded has one line for the applied functions of a folder, with the last time, and one for the
// functions that are left out, or all pending; it names the others.
func folded(all []migrations.Migration, lines []migrationLine) []migrationLine {
	type group struct{ folder, state string }
	groups := map[group]int{}
	count := map[string]int{}
	for i, l := range lines {
		if all[i].Function() {
			groups[group{path.Dir(l.Name), l.State}]++
			count[path.Dir(l.Name)]++
		}
	}
	var fewer []migrationLine
	at := map[group]int{}
	for i, l := range lines {
		folder := path.Dir(l.Name)
		g := group{folder, l.State}
		if !all[i].Function() || l.State != "applied" && (groups[g] == 1 || groups[g] < count[folder]) {
			fewer = append(fewer, l)
			continue
		}
		first, ok := at[g]
		if !ok {
			at[g] = len(fewer)
			l.Name = fmt.Sprintf("%s/ (%d)", folder, groups[g])
			fewer = append(fewer, l)
			continue
		}
		fewer[first].AppliedAt = max(fewer[first].AppliedAt, l.AppliedAt)
	}
	return fewer
}

func (a *app) migrationsConfig() *migrations.Config {
	return &migrations.Config{Schema: a.Schema}
}

// withConn runs f with a connection to the server. A store of another kind has
// nothing to migrate, which is no failure.
func (a *app) withConn(ctx context.Context, f func(*pgx.Conn) error) (err error) {
	u, err := a.storeURL()
	if err != nil {
		return err
	}
	if !isPostgres(u) {
		// An answer, but not for a program that reads lines of migrations.
		a.warn("dibs: nothing to migrate: this store keeps its own schema\n")
		return nil
	}
	conn, err := connectTo(ctx, u)
	if err != nil {
		return err
	}
	defer func() {
		// Also when ctx is done; closing is bounded by pgx.
		if closeErr := conn.Close(context.WithoutCancel(ctx)); err == nil {
			err = closeErr
		}
		<-conn.PgConn().CleanupDone() // the server is told to cancel a statement that still runs
	}()
	return f(conn)
}

func connectTo(ctx context.Context, u string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(u)
	if err != nil {
		return nil, err
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second // as the driver has it
	}
	if config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // so that it works through PgBouncer
	}
	return pgx.ConnectConfig(ctx, config)
}
