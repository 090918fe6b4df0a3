package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/messagedb"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/migrations"
)

// A doctorCommand is dibs doctor: it examines the server and the store, and prints its findings.
type doctorCommand struct {
	LongLock        time.Duration `default:"5s" placeholder:"TIME" help:"Report category locks held or waited for this long. Defaults to ${default}."`
	LongTransaction time.Duration `default:"1m" placeholder:"TIME" help:"Report transactions open this long. Defaults to ${default}."`
	Quiet           bool          `short:"q" help:"Leave out findings that are ok."`
}

func (c *doctorCommand) Run(ctx context.Context, a *app) error {
	found, err := c.findings(ctx, a)
	if err != nil {
		return err
	}
	return a.printFindings(found, c.Quiet)
}

func (c *doctorCommand) findings(ctx context.Context, a *app) (found []Finding, err error) {
	u, err := a.storeURL()
	if err != nil {
		return nil, err
	}
	if !isPostgres(u) {
		err = a.withFile(ctx, u, "doctor", func(d *sqlite.Driver) error {
			state, err := d.Examine(ctx)
			if err != nil {
				return err
			}
			store, err := messagestore.New(d, quietly)
			if err != nil {
				return err
			}
			found = append(slices.Concat(aboutFile(state), aboutWork(ctx, store)), aboutCheck(ctx, store))
			return nil
		})
		return found, err
	}
	err = a.withConn(ctx, func(conn *pgx.Conn) error {
		findings, err := Examine(ctx, conn, &ExamineConfig{
			Schema: a.Schema, LongLock: c.LongLock, LongTransaction: c.LongTransaction,
		})
		if err != nil {
			return err
		}
		schema, err := a.examineSchema(ctx, conn)
		if err != nil {
			return err
		}
		found = append(append(schema, findings...), a.examineAccess(ctx)...)
		return nil
	})
	return found, err
}

// checkTimeout bounds how long a store may take to say whether it serves.
const checkTimeout = 5 * time.Second

// examineAccess reports how consumers and queues stand, and whether a service could start with the store's URL.
func (a *app) examineAccess(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var found []Finding
	err := a.withStore(ctx, 1, func(store *messagestore.Store) error {
		check := aboutCheck(ctx, store)
		found = append(aboutWork(ctx, store), check)
		return nil
	})
	if err != nil { // what refuses to open refuses a service too
		found = []Finding{aboutAccess(err, err)}
	}
	return found
}

func aboutCheck(ctx context.Context, store *messagestore.Store) Finding {
	err := store.Check(ctx)
	if !errors.Is(err, messagestore.ErrNotPermitted) {
		return aboutAccess(err, err)
	}
	return aboutAccess(err, store.CheckReading(ctx))
}

// aboutAccess reports the answers of [messagestore.Store.Check] and of its CheckReading. A user without any right
// to messages may look at the server, and is no service's.
func aboutAccess(writing, reading error) Finding {
	f := Finding{Group: "access", Name: "check", Verdict: VerdictOK, Says: "a service with this URL can read and write messages"}
	switch {
	case writing == nil:
	case reading == nil:
		f.Says = "a service with this URL can read messages, and may not write them"
	case errors.Is(reading, messagestore.ErrNotPermitted):
		f.Verdict, f.Says, f.Advice = VerdictHidden, "this user may neither read nor write messages", "run dibs doctor with the URL of the service too"
	default:
		f.Verdict, f.Says, f.Advice = VerdictFail, fmt.Sprintf("a service with this URL cannot write messages: %v", writing), "its readiness probe, Store.Check, says the same until this is mended"
	}
	return f
}

// judged is a finding that is ok, unless something is bad about it.
func judged(group, name, says string, bad bool, verdict Verdict, advice string) Finding {
	if !bad {
		verdict, advice = VerdictOK, ""
	}
	return Finding{Group: group, Name: name, Verdict: verdict, Says: says, Advice: advice}
}

// aboutFile reports on a store on SQLite.
func aboutFile(s sqlite.State) []Finding {
	return []Finding{
		judged("file", "file", fmt.Sprintf("%s has %s, %s, and %s of free pages", s.Path, text.Number(s.Messages, "message"), sizeText(s.Bytes), sizeText(s.FreeBytes)),
			s.FreeBytes > s.Bytes/2 && s.FreeBytes > 1<<20, VerdictWarn,
			"new messages take the free pages first; VACUUM of sqlite3 makes the file smaller, while no process has it open"),
		judged("file", "log", fmt.Sprintf("the write-ahead log is %s", sizeText(s.LogBytes)), s.LogBytes > 256<<20, VerdictWarn,
			"a process reads for a long time and keeps SQLite from moving the log into the file: find it, and end it"),
		judged("schema", "tables", fmt.Sprintf("the tables have version %d of %d", s.Schema, s.Newest), false, "", ""),
		judged("settings", "journal_mode", fmt.Sprintf("journal_mode is %s, and synchronous %d", s.JournalMode, s.Synchronous),
			s.JournalMode != "wal" || s.Synchronous < 2, VerdictFail, "acknowledged messages may be lost: journal_mode has to be wal, and synchronous 2"),
		judged("locks", "write lock", fmt.Sprintf("the write lock was free within %s", s.LockWait.Round(time.Millisecond)), s.LockWait > time.Second, VerdictWarn,
			"another process or transaction holds it for long: a write waits for it up to the busy timeout"),
	}
}

const asOwner = "run dibs doctor as the user that migrates"

// examineSchema reports migrations, and changes made by hand since.
func (a *app) examineSchema(ctx context.Context, conn *pgx.Conn) ([]Finding, error) {
	locked, err := a.migrationsLocked(ctx, conn)
	if err != nil {
		return nil, err
	}
	if locked {
		return []Finding{judged("schema", "migrations", "the applied migrations cannot be read: their table is locked", true, VerdictWarn, "see locks")}, nil
	}
	all, err := migrations.Status(ctx, conn, a.migrationsConfig())
	if denied(err) {
		return []Finding{judged("schema", "migrations", "the applied migrations are not visible to this user", true, VerdictHidden, asOwner)}, nil
	}
	if err != nil {
		return nil, err
	}
	findings := aboutMigrations(all)
	if a.Schema == "" || a.Schema == pglink.DefaultSchema {
		adoption, err := messagedb.Status(ctx, conn)
		if err != nil {
			return nil, err
		}
		if adoption != nil {
			findings = append(findings, aboutAdoption(adoption))
		}
		if adoption != nil && adoption.State != messagedb.Adopted {
			return findings, nil // the schema is not meant to be as it is elsewhere
		}
	}
	drift, err := migrations.Drift(ctx, conn, a.migrationsConfig())
	switch {
	case denied(err):
		return append(findings, judged("schema", "drift", "changes made by hand are not visible to this user", true, VerdictHidden, asOwner)), nil
	case err != nil:
		return nil, err
	}
	return append(findings, aboutDrift(drift, len(all))...), nil
}

// migrationsLocked reports whether a reader of the table of migrations would wait for a
// lock, whose holder the doctor is to find.
func (a *app) migrationsLocked(ctx context.Context, conn *pgx.Conn) (locked bool, err error) {
	err = conn.QueryRow(ctx, `
		select exists (
			select from pg_catalog.pg_locks l
			join pg_catalog.pg_class c on c.oid = l.relation
			join pg_catalog.pg_namespace n on n.oid = c.relnamespace
			join pg_catalog.pg_database d on d.oid = l.database
			where d.datname = pg_catalog.current_database() and n.nspname = $1 and c.relname = 'migrations' and l.mode = 'AccessExclusiveLock'
		)`, cmp.Or(a.Schema, pglink.DefaultSchema)).Scan(&locked)
	return locked, err
}

func denied(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refused.Code == "42501"
}

func aboutMigrations(all []migrations.Migration) []Finding {
	var findings []Finding
	var pending, left []string
	applied, ours := 0, len(all)
	const few = 10 // names in a sentence
	for _, m := range all {
		f := Finding{Group: "schema", Name: m.Name, Verdict: VerdictFail}
		switch {
		case m.Unknown:
			ours--
			f.Says, f.Advice = m.Name+" was applied by a newer release", "use that release of dibs, or a newer one"
		case m.Changed:
			f.Says, f.Advice = m.Name+" is not the file that was applied under its name", "use the release of dibs that migrated the database"
		case m.Applied:
			applied++
			continue
		case m.Gone:
			ours--
			pending = append(pending, m.Name)
			continue
		case m.LeftOut != "":
			ours--
			part, _, _ := strings.Cut(m.Name, "/")
			if slices.Contains(left, part) {
				continue
			}
			left = append(left, part)
			f.Verdict, f.Says = VerdictOK, fmt.Sprintf("%s is left out: %s", part, m.LeftOut)
		default:
			pending = append(pending, m.Name)
			continue
		}
		findings = append(findings, f)
	}
	f := Finding{Group: "schema", Name: "migrations", Verdict: VerdictOK, Says: fmt.Sprintf("%d of %d files are applied", applied, ours)}
	if len(pending) > 0 {
		f.Verdict, f.Advice = VerdictFail, "run dibs migrate up"
		if applied > 0 {
			f.Says += ", and not " + strings.Join(pending[:min(len(pending), few)], ", ")
		}
		if applied > 0 && len(pending) > few {
			f.Says += fmt.Sprintf(" and %d more", len(pending)-few)
		}
	}
	return append(findings, f)
}

func aboutDrift(drift *migrations.DriftReport, files int) []Finding {
	if len(drift.NotApplied) == files {
		return nil
	}
	var findings []Finding
	pending := slices.ContainsFunc(drift.NotApplied, func(m migrations.Migration) bool { return m.LeftOut == "" })
	for _, d := range drift.Differences {
		f := Finding{Group: "schema", Name: "drift", Verdict: VerdictFail, Says: d.String()}
		switch {
		case d.Foreign:
			f.Verdict, f.Advice = VerdictWarn, "keep your own objects in another schema: this one belongs to the migrations"
		case forgottenByDumps(d):
			f.Verdict, f.Advice = VerdictWarn, "a dump does not hold this right, so it comes back when one is restored: dibs migrate up revokes it"
		case pending: // they may be those of another release
			f.Advice = "files are not applied: dibs migrate up, and look again"
		case len(d.Has) == 0 && allAre("grant ", d.Lacks):
			f.Advice = "it was revoked by hand: dibs migrate up grants it again"
		case len(d.Lacks) == 0 && allAre("grant ", d.Has):
			f.Advice = "it was granted by hand: revoke it"
		default:
			f.Advice = "it was changed by hand: put it back as dibs migrate print has it"
		}
		findings = append(findings, f)
	}
	if len(findings) == 0 {
		findings = append(findings, Finding{Group: "schema", Name: "drift", Verdict: VerdictOK, Says: "objects and rights are as the migrations made them"})
	}
	return findings
}

// forgottenByDumps reports whether a difference is the mere effect of pg_dump, and so of
// pg_upgrade, which leave out the rights to the types of tables' rows.
func forgottenByDumps(d migrations.Difference) bool {
	return len(d.Lacks) == 0 && slices.Equal(d.Has, []string{"grant usage of its type to public"})
}

// allAre reports whether there are facts, all of one kind.
func allAre(kind string, facts []string) bool {
	return len(facts) > 0 && !slices.ContainsFunc(facts, func(fact string) bool { return !strings.HasPrefix(fact, kind) })
}

var verdictStyles = map[Verdict]style{VerdictOK: green, VerdictWarn: yellow, VerdictFail: red, VerdictHidden: dim}

func (a *app) printFindings(findings []Finding, quiet bool) error {
	group, failed := "", 0
	for _, f := range findings {
		if f.Verdict == VerdictFail {
			failed++
		}
		if quiet && f.Verdict == VerdictOK {
			continue
		}
		if f.Group != group {
			group = f.Group
			a.out.title(group)
		}
		f.Says = a.redact(f.Says)
		var groups []fields
		for _, g := range f.Groups {
			groups = append(groups, fields{"count", g.Count, "oldest?", g.Oldest, "newest?", g.Newest, "error?", g.Error, "command?", g.Command})
		}
		a.out.row(fields{"group", f.Group, "name", f.Name, "verdict", f.Verdict, "says", f.Says, "advice?", f.Advice, "groups?", groups},
			in(verdictStyles[f.Verdict], fmt.Sprintf("  %-6s", f.Verdict)), f.Says)
		if f.Advice != "" {
			a.out.row(nil, "", in(dim, f.Advice))
		}
		for _, g := range f.Groups {
			a.out.row(nil, "", fmt.Sprintf("%d × %s", g.Count, a.out.cause(oneLineOf(g.Error))))
			a.out.row(nil, "", cell{text: "  " + g.Command, style: dim, whole: true})
		}
	}
	if failed > 0 {
		return errors.New(text.Number(failed, "finding fails|findings fail"))
	}
	return nil
}

func (a *app) postgresConfig() *postgres.Config {
	return &postgres.Config{Schema: a.Schema, Logger: logger.Silent()}
}

// quietly has a store log nothing: a command prints what it has to say by itself.
var quietly = &messagestore.Config{Logger: logger.Silent()}

// withPostgres runs f with a connection to the server. A store of another kind is refused:
// it has no server.
func (a *app) withPostgres(ctx context.Context, command string, f func(*pgx.Conn) error) error {
	u, err := a.storeURL()
	if err != nil {
		return err
	}
	if !isPostgres(u) {
		return usage("%s needs a store in PostgreSQL, and the store of %s is another", command, a.origin)
	}
	return a.withConn(ctx, f)
}
