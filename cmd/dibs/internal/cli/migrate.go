package cli

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/messagedb"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/migrations"
)

// A migrateCommand is dibs migrate: it brings the schema up to date, shows which migrations were
// applied, and prints them.
type migrateCommand struct {
	Up     migrateUpCommand     `cmd:"" help:"Bring the schema up to date. Safe to run again, and by several at once."`
	Status migrateStatusCommand `cmd:"" default:"1" help:"Print applied and pending migrations."`
	Print  migratePrintCommand  `cmd:"" help:"Print the SQL, for another tool or another person to run."`
	Adopt  migrateAdoptCommand  `cmd:"" help:"Move the messages of message-db to this store, or give them back."`
}

type migrateUpCommand struct{}

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
			a.printMigrations(all)
			return nil
		}
		a.printApplied(before, all)
		a.printUpToDate(all)
		drift, err := migrations.Drift(ctx, conn, a.migrationsConfig())
		if err == nil && len(drift.AbsentRoles) > 0 { // another user has to make them
			a.out.line("missing on this server: %s; run the SQL of dibs migrate print --roles as a user with CREATEROLE, and then this again", strings.Join(drift.AbsentRoles, ", "))
		}
		return err
	})
}

// printApplied names the files that were applied, and counts functions where there are many.
func (a *app) printApplied(before, after []migrations.Migration) {
	was := map[string]migrations.Migration{}
	for _, m := range before {
		was[m.Name] = m
	}
	var functions []string
	for _, m := range after {
		switch {
		case !m.Applied || was[m.Name].Applied:
		case m.Function():
			functions = append(functions, "applied "+m.Name)
		default:
			a.out.line("applied %s", m.Name)
		}
	}
	const few = 10
	if len(functions) > few {
		functions = []string{fmt.Sprintf("applied %d functions and views", len(functions))}
	}
	for _, m := range before {
		if m.Gone {
			functions = append(functions, "dropped what "+m.Name+" made")
		}
	}
	for _, line := range functions {
		a.out.line("%s", line)
	}
}

// printUpToDate also names the parts that are left out, which a client may miss.
func (a *app) printUpToDate(all []migrations.Migration) {
	a.out.line("up to date")
	said := ""
	for _, m := range all {
		part, _, _ := strings.Cut(m.Name, "/")
		if m.LeftOut == "" || part == said {
			continue
		}
		said = part
		a.out.line("%s is left out: %s", part, m.LeftOut)
		if part != "message_store" {
			continue
		}
		// A store that is used already is not filled.
		a.out.line("to take its messages over, before services in Go write any: dibs migrate adopt --dry-run")
	}
}

type migrateStatusCommand struct{}

type migratePrintCommand struct {
	Roles bool `help:"Print only the statements that make the roles: they take CREATEROLE." xor:"print"`
	Goose bool `help:"Print a migration for goose instead of a script for psql." xor:"print"`
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

func (migrateStatusCommand) Run(ctx context.Context, a *app) error {
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		all, err := migrations.Status(ctx, conn, a.migrationsConfig())
		if err != nil {
			return err
		}
		if a.printMigrations(all); a.Schema != "" && a.Schema != pglink.DefaultSchema {
			return nil
		}
		adoption, err := messagedb.Status(ctx, conn)
		if err == nil && adoption != nil {
			a.printAdoption(adoption)
		}
		return err
	})
}

// A migrationLine is a file of migrations, or several functions, as it is printed.
type migrationLine struct {
	name, state string
	applied     time.Time
	reason      string // why it is left out
}

func (a *app) printMigrations(all []migrations.Migration) {
	var lines []migrationLine
	for _, m := range all {
		l := migrationLine{name: m.Name, state: "pending"}
		if m.Applied {
			l.state, l.applied = "applied", m.AppliedAt
		}
		switch {
		case m.Unknown:
			l.state = "unknown" // applied by a newer release
		case m.Changed:
			l.state = "changed" // since it was applied
		case m.Gone:
			l.state = "gone" // from this release
		case m.LeftOut != "":
			l.state, l.reason = "left out", m.LeftOut
		}
		a.out.object(fields{"name", l.name, "state", l.state, "appliedAt?", l.applied, "reason?", l.reason})
		lines = append(lines, l)
	}
	for _, l := range folded(all, lines) {
		a.out.row(nil, l.name, in(migrationStyles[l.state], l.state), in(dim, timeOrNone(l.applied)+l.reason))
	}
}

var migrationStyles = map[string]style{"applied": green, "pending": yellow, "gone": yellow, "changed": red, "unknown": red, "left out": dim}

// folded has one line for the applied functions of a folder, with the last time, and one for the
// functions that are left out, or all pending; it names the others.
func folded(all []migrations.Migration, lines []migrationLine) []migrationLine {
	type group struct{ folder, state string }
	groups := map[group]int{}
	count := map[string]int{}
	for i, l := range lines {
		if all[i].Function() {
			groups[group{path.Dir(l.name), l.state}]++
			count[path.Dir(l.name)]++
		}
	}
	var fewer []migrationLine
	at := map[group]int{}
	for i, l := range lines {
		folder := path.Dir(l.name)
		g := group{folder, l.state}
		if !all[i].Function() || l.state != "applied" && (groups[g] == 1 || groups[g] < count[folder]) {
			fewer = append(fewer, l)
			continue
		}
		first, ok := at[g]
		if !ok {
			at[g] = len(fewer)
			l.name = fmt.Sprintf("%s/ (%d)", folder, groups[g])
			fewer = append(fewer, l)
			continue
		}
		if l.applied.After(fewer[first].applied) {
			fewer[first].applied = l.applied
		}
	}
	return fewer
}

func (a *app) migrationsConfig() *migrations.Config {
	return &migrations.Config{Schema: a.Schema}
}

// withConn runs f with a connection to the server. For a store of another kind it only prints a
// warning.
func (a *app) withConn(ctx context.Context, f func(*pgx.Conn) error) (err error) {
	u, err := a.storeURL()
	if err != nil {
		return err
	}
	if !isPostgres(u) {
		// An answer, but not for a program that reads lines of migrations.
		a.warn("dibs: nothing to migrate: this store keeps its own schema")
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
