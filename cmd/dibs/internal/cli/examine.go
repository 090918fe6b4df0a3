package cli

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/operate"
)

// The examinations, one to a file, return rows of a name, a verdict, a finding in words, and an
// advice that may be null. The answers of session, required, locks and lock_names are no findings
// yet.
//
//go:embed sql/*.sql
var examinations embed.FS

func sqlOf(name string) string {
	text, err := examinations.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// A Verdict is how bad a finding is.
type Verdict = operate.Verdict

// A Finding is one fact about the server or the store's database. The page shows it too.
type Finding = operate.Finding

// A FindingGroup is several things with one error, and the command that mends them.
type FindingGroup = operate.FindingGroup

// The verdicts.
const (
	VerdictOK     = operate.VerdictOK
	VerdictWarn   = operate.VerdictWarn
	VerdictFail   = operate.VerdictFail
	VerdictHidden = operate.VerdictHidden
)

// ExamineConfig sets the thresholds of [Examine]. Nil means all defaults.
type ExamineConfig struct {
	Schema          string        // that was migrated; defaults to dibs
	LongLock        time.Duration // from which on a held lock, or a wait for one, is reported; defaults to 5 s
	LongTransaction time.Duration // from which on an open transaction is reported; defaults to 1 min
	TableWait       time.Duration // for a locked table of the store, before findings that need it are left out; defaults to 1 s
	ManyPositions   int64         // checkpoints of a category, from which on it is reported; defaults to 1,000,000
}

func (c *ExamineConfig) orDefaults() (ExamineConfig, error) {
	r := ExamineConfig{}
	if c != nil {
		r = *c
	}
	r.Schema = cmp.Or(r.Schema, pglink.DefaultSchema)
	r.LongLock = cmp.Or(r.LongLock, 5*time.Second)
	r.LongTransaction = cmp.Or(r.LongTransaction, time.Minute)
	r.TableWait = cmp.Or(r.TableWait, time.Second)
	r.ManyPositions = cmp.Or(r.ManyPositions, 1_000_000)
	if rule := pglink.CheckSchema(r.Schema); rule != "" {
		return r, messagestore.NewInvalidError("schema", r.Schema, rule)
	}
	if least := min(int64(r.LongLock), int64(r.LongTransaction), int64(r.TableWait), r.ManyPositions); least < 0 {
		return r, messagestore.NewInvalidError("threshold", least, "must be at least 0")
	}
	return r, nil
}

// Examine looks at the server and the database around the store, and changes nothing.
// The schema itself is examined by migrations.Drift, and the messages by
// [github.com/dibs-go/dibs/messagestore/postgres/admin.Admin.Verify].
//
// Every user that can connect may call it. Facts that the user has no right to see are
// [VerdictHidden] findings: a member of pg_monitor sees everything but the store's sequence.
// Unsafe settings and a missing schema are findings, not errors. A locked table is waited
// for as [ExamineConfig.TableWait] says. The connection must not be in a transaction.
func Examine(ctx context.Context, conn *pgx.Conn, config *ExamineConfig) ([]Finding, error) {
	c, err := config.orDefaults()
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	if conn.PgConn().TxStatus() != 'I' {
		return nil, fmt.Errorf("doctor: %w", messagestore.NewInvalidError("connection", nil, "must not be in a transaction, which an error would abort"))
	}
	e := examination{conn: conn, config: c}
	if err := e.run(ctx); err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	return e.findings, nil
}

type examination struct {
	conn     *pgx.Conn
	config   ExamineConfig
	findings []Finding
	locked   bool // a table of the store is locked: nothing more is read from the tables
}

func (e *examination) run(ctx context.Context) error {
	var version int
	var pid uint32
	var migrated bool
	err := e.query(ctx, sqlOf("session"), nil, func(rows pgx.Rows) error { return rows.Scan(&version, &pid, &migrated) })
	if err != nil {
		return err
	}

	asks := func(sql string, args ...any) func(context.Context, string) ([]Finding, error) {
		return func(ctx context.Context, group string) ([]Finding, error) {
			return e.ask(ctx, group, sqlOf(sql), args...)
		}
	}
	collation := asks("collation")
	if version < 150000 { // which is named as such, and has no version of its collation
		collation = func(context.Context, string) ([]Finding, error) { return nil, nil }
	}
	for _, x := range []struct {
		group string
		find  func(ctx context.Context, group string) ([]Finding, error)
	}{
		{"server", asks("server")},
		{"server", collation},
		{"server", func(ctx context.Context, _ string) ([]Finding, error) {
			e.pooler(pid)
			return nil, e.required(ctx)
		}},
		{"settings", asks("settings")},
		{"roles", asks("roles")},
		{"roles", asks("role_settings", override)},
		{"locks", e.categoryLocks},
		{"locks", asks("table_locks", e.config.LongLock.Seconds())},
		{"sessions", asks("sessions", e.config.LongTransaction.Seconds())},
		{"storage", asks("slots")},
		{"storage", asks("storage")},
	} {
		found, err := x.find(ctx, x.group)
		if err := e.addAll(x.group, found, err); err != nil {
			return err
		}
	}
	if e.locked {
		return nil
	}
	if migrated {
		if err := e.positions(ctx); err != nil {
			return err
		}
	}
	return e.nameLocks(ctx)
}

// positions reports the checkpoints of consumers, if this user may read them.
func (e *examination) positions(ctx context.Context) error {
	found, err := e.ask(ctx, "storage", sqlOf("positions"), e.config.ManyPositions)
	if failedWith(err, permissionDenied, "3F000", "42883", "42P01") { // no such schema, function, table
		e.add("storage", "positions", VerdictHidden, "the positions of consumers are not visible to this user", "grant dibs_reader to this user")
		return nil
	}
	return e.addAll("storage", found, err)
}

// SQLSTATEs of the server.
const (
	permissionDenied = "42501"
	lockNotAvailable = "55P03"
)

func failedWith(err error, codes ...string) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(codes, refused.Code)
}

// addAll adds findings. A query that the server refuses to this user, or that met a locked table, is a finding itself.
func (e *examination) addAll(group string, found []Finding, err error) error {
	refused, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case failedWith(err, permissionDenied):
		found = []Finding{{Group: group, Name: group, Verdict: VerdictHidden, Says: refused.Message, Advice: "grant pg_monitor to this user"}}
	case failedWith(err, lockNotAvailable):
		e.locked = true
		found = []Finding{{Group: group, Name: group, Verdict: VerdictWarn, Says: group + " cannot be examined: a table is locked", Advice: "see locks"}}
	case err != nil:
		return fmt.Errorf("%s: %w", group, err)
	}
	e.findings = append(e.findings, found...)
	return nil
}

func (e *examination) ask(ctx context.Context, group, sql string, args ...any) ([]Finding, error) {
	var found []Finding
	err := e.query(ctx, sql, args, func(rows pgx.Rows) error {
		var name, verdict string
		var says, advice pgtype.Text
		err := rows.Scan(&name, &verdict, &says, &advice)
		found = append(found, Finding{Group: group, Name: name, Verdict: Verdict(verdict), Says: says.String, Advice: advice.String})
		return err
	})
	return found, err
}

// query calls each with each row of a query in a transaction of its own.
func (e *examination) query(ctx context.Context, sql string, args []any, each func(pgx.Rows) error) error {
	return e.inTransaction(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, inSchema(sql, e.config.Schema), append([]any{pgx.QueryExecModeExec}, args...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := each(rows); err != nil {
				return fmt.Errorf("read a row: %w", err)
			}
		}
		return rows.Err()
	})
}

// inTransaction calls f in a transaction, which is rolled back. The transaction does not wait long
// for a locked table, and compiles no plan: the tables it reads are small, the plans are not.
func (e *examination) inTransaction(ctx context.Context, f func(pgx.Tx) error) error {
	tx, err := e.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx := ctx
		if ctx.Err() != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
		}
		_ = tx.Rollback(ctx) // an error closes the connection, and the next query fails
	}()
	wait := strconv.FormatInt(max(e.config.TableWait.Milliseconds(), 1), 10)
	if _, err := tx.Exec(ctx, "select pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('jit', 'off', true)", pgx.QueryExecModeExec, wait); err != nil {
		return err
	}
	return f(tx)
}

// inSchema is pglink.InSchema for SQL that also has the name of the program in its texts.
func inSchema(sql, schema string) string {
	if schema == pglink.DefaultSchema {
		return sql
	}
	return strings.NewReplacer(
		"dibs.", fmt.Sprintf("%q.", schema),
		"to_regnamespace('dibs')", fmt.Sprintf("to_regnamespace('%q')", schema),
	).Replace(sql)
}

// pooler reports a pooler: one process accepted the connection, and another answered.
func (e *examination) pooler(pid uint32) {
	if e.conn.PgConn().PID() != pid {
		e.add("server", "pooler", VerdictOK, "the connection goes through a pooler, such as PgBouncer: the driver prepares no statement over it", "")
		return
	}
	e.add("server", "pooler", VerdictOK, "the connection goes straight to the server", "")
}

// override is the setting by which a driver takes an unsafe server.
const override = "dibs.allow_unsafe_settings"

// required reports the settings for which a driver refuses a server. The rules are the
// driver's: it is asked twice, with the session's override and without one. A setting that
// is refused only the second time is allowed by the override.
func (e *examination) required(ctx context.Context) error {
	var settings []postgres.UnsafeSetting
	err := e.query(ctx, sqlOf("required"), nil, func(rows pgx.Rows) error {
		var s postgres.UnsafeSetting
		err := rows.Scan(&s.Name, &s.Value)
		settings = append(settings, s)
		return err
	})
	if err != nil {
		return err
	}
	refused, err := e.refused(ctx, "")
	if err != nil {
		return err
	}
	unsafe, err := e.refused(ctx, "select pg_catalog.set_config('"+override+"', 'off', true)")
	if err != nil {
		return err
	}
	named := func(name string) func(postgres.UnsafeSetting) bool {
		return func(s postgres.UnsafeSetting) bool { return s.Name == name }
	}
	for _, s := range unsafe {
		if !slices.ContainsFunc(settings, named(s.Name)) {
			settings = append(settings, s)
		}
	}
	for _, s := range settings {
		i := slices.IndexFunc(unsafe, named(s.Name))
		if i < 0 {
			e.add("settings", s.Name, VerdictOK, s.Name+" is "+s.Value, "")
			continue
		}
		says := s.Name + " is " + unsafe[i].Value
		need := fmt.Sprintf("it has to be %s: acknowledged messages may be lost or changed otherwise", unsafe[i].Need)
		if slices.ContainsFunc(refused, named(s.Name)) {
			e.add("settings", s.Name, VerdictFail, says+", and drivers refuse the server", need)
		} else {
			e.add("settings", s.Name, VerdictWarn, says+", and "+override+" allows it", need)
		}
	}
	return nil
}

// refused returns the settings for which a new driver refuses the server, after a
// statement in the same transaction.
func (e *examination) refused(ctx context.Context, first string) ([]postgres.UnsafeSetting, error) {
	var refused []postgres.UnsafeSetting
	err := e.inTransaction(ctx, func(tx pgx.Tx) error {
		if first != "" {
			if _, err := tx.Exec(ctx, first); err != nil {
				return err
			}
		}
		driver, err := postgres.New(unknown{tx}, &postgres.Config{Schema: e.config.Schema})
		if err == nil {
			_, err = driver.Epoch(ctx)
		}
		if unsafe, ok := errors.AsType[*postgres.UnsafeSettingsError](err); ok {
			refused = unsafe.Settings
		}
		return ctx.Err() // a schema that is missing, or refused, is reported elsewhere
	})
	return refused, err
}

// An unknown is a transaction whose connection a driver does not know: it cannot have
// been found good before, so the driver asks for its settings.
type unknown struct{ tx pgx.Tx }

// Begin begins a savepoint.
func (u unknown) Begin(ctx context.Context) (pgx.Tx, error) { return u.tx.Begin(ctx) }

// Query prepares nothing, since the connection may go through a pooler.
func (u unknown) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if len(args) == 0 || args[0] != pgx.QueryExecModeExec {
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	return u.tx.Query(ctx, sql, args...) //nolint:rowserrcheck // the caller reads the rows
}

func (e *examination) add(group, name string, v Verdict, says, advice string) {
	e.findings = append(e.findings, Finding{Group: group, Name: name, Verdict: v, Says: says, Advice: advice})
}

var lockKey = regexp.MustCompile(`the category with key (-?[0-9]+) `)

// nameLocks replaces the keys of locks by the names of their categories, if this user may
// read them.
func (e *examination) nameLocks(ctx context.Context) error {
	var keys []int32
	for _, f := range e.findings {
		if found := lockKey.FindStringSubmatch(f.Says); f.Group == "locks" && found != nil {
			if key, err := strconv.ParseInt(found[1], 10, 32); err == nil {
				keys = append(keys, int32(key)) // it was parsed as one
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	names := map[string][]string{}
	err := e.query(ctx, sqlOf("lock_names"), []any{keys}, func(rows pgx.Rows) error {
		var key int32
		var name string
		err := rows.Scan(&key, &name)
		key10 := strconv.FormatInt(int64(key), 10)
		names[key10] = append(names[key10], name)
		return err
	})
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused && err != nil {
		return err
	}
	for i, f := range e.findings {
		if found := lockKey.FindStringSubmatch(f.Says); f.Group == "locks" && found != nil && len(names[found[1]]) > 0 {
			e.findings[i].Says = strings.Replace(f.Says, found[0], "the category "+strings.Join(names[found[1]], " or ")+" ", 1)
		}
	}
	return nil
}
