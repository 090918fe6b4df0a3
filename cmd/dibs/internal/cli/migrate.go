package cli

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/cmd/dibs/internal/adopt"
	"github.com/dibs-go/dibs/internal/pgschema"
	"github.com/dibs-go/dibs/migrations"
)

type migrateCommand struct {
	Up     migrateUpCommand     `cmd:"" help:"Bring the schema up to date. Safe to run again, and by several at once."`
	Status migrateStatusCommand `cmd:"" help:"Print applied and pending migrations."`
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
		for i, m := range all {
			if m.Applied && i < len(before) && !before[i].Applied {
				if err := a.out.line("applied %s", m.Name); err != nil {
					return err
				}
			}
		}
		if err := a.printUpToDate(all); err != nil {
			return err
		}
		return a.printAbsentRoles(ctx, conn)
	})
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
	var left []migrations.Migration
	for _, m := range all {
		if m.LeftOut != "" {
			left = append(left, m)
		}
	}
	if err := a.out.line("up to date: %d migrations", len(all)-len(left)); err != nil {
		return err
	}
	for _, m := range left {
		if err := a.out.line("%s is left out: %s", m.Name, m.LeftOut); err != nil {
			return err
		}
		if m.LeftOut != migrations.MessageDBIsThere {
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
	return "Changes nothing. A file is applied, pending, left out for a reason, changed since it was applied, or unknown, if a newer release applied it.\n\nExample:\n\n    dibs migrate status"
}

type migratePrintCommand struct {
	Roles bool `help:"Print only the statements that make the roles: they take CREATEROLE."`
}

// Help is printed below the command's usage.
func (migratePrintCommand) Help() string {
	return "Prints one script for psql, of all that migrate up does on an empty database, in one transaction. Nothing is run, and no database is asked.\n\nExample:\n\n    dibs migrate print > dibs.sql\n    psql -X -d app -f dibs.sql"
}

// Run prints the SQL. It needs no store.
func (c migratePrintCommand) Run(a *app) error {
	if c.Roles {
		return migrations.PrintRoles(a.out)
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
		if err := a.printMigrations(all); err != nil || a.Schema != "" && a.Schema != pgschema.Default {
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
	for _, m := range all {
		l, style := migrationLine{Name: m.Name, State: "pending"}, yellow
		if m.Applied {
			l.State, l.AppliedAt, style = "applied", timeText(m.AppliedAt), green
		}
		switch {
		case m.Changed:
			l.State, style = "changed", red // since it was applied
		case m.Unknown:
			l.State, style = "unknown", red // applied by a newer release
		case m.LeftOut != "":
			l.State, l.Reason, style = "left out", string(m.LeftOut), dim
		}
		var err error
		if a.JSON {
			err = a.out.object(l)
		} else {
			err = a.out.row(cell{text: l.Name}, cell{text: l.State, style: style}, cell{text: l.AppliedAt + l.Reason, style: dim})
		}
		if err != nil {
			return err
		}
	}
	return nil
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
