package postgres

import (
	"cmp"
	"context"
	_ "embed"
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

	"github.com/dibs-go/dibs/internal/pgschema"
	"github.com/dibs-go/dibs/messagestore"
)

// The examinations, one to a file. Each returns rows of a name, a verdict, what there
// is to say, and what to do about it.
var (
	//go:embed sql/doctor_server.sql
	doctorServerSQL string
	//go:embed sql/doctor_collation.sql
	doctorCollationSQL string
	//go:embed sql/doctor_settings.sql
	doctorSettingsSQL string
	//go:embed sql/doctor_roles.sql
	doctorRolesSQL string
	//go:embed sql/doctor_locks.sql
	doctorLocksSQL string
	//go:embed sql/doctor_lock_names.sql
	doctorLockNamesSQL string
	//go:embed sql/doctor_table_locks.sql
	doctorTableLocksSQL string
	//go:embed sql/doctor_sessions.sql
	doctorSessionsSQL string
	//go:embed sql/doctor_slots.sql
	doctorSlotsSQL string
	//go:embed sql/doctor_storage.sql
	doctorStorageSQL string
	//go:embed sql/doctor_positions.sql
	doctorPositionsSQL string
)

// A Verdict is what a finding comes to.
type Verdict string

// The verdicts.
const (
	OK     Verdict = "ok"
	Warn   Verdict = "warn"   // works, and may not for long, or not well
	Fail   Verdict = "fail"   // does not work, or loses messages
	Hidden Verdict = "hidden" // not visible to this user
)

// A Finding is one thing that [Admin.Doctor] looked at.
type Finding struct {
	Group   string // server, settings, roles, locks, sessions or storage
	Name    string // of what was looked at: "fsync"
	Verdict Verdict
	Says    string // "fsync is off"
	Advice  string // what to do, and why; empty if nothing
}

// DoctorConfig changes what [Admin.Doctor] finds remarkable. A nil *DoctorConfig is a
// good one.
type DoctorConfig struct {
	// LongLock is how long the lock of a category may be held, or waited for, and that
	// of a table.
	//
	// Defaults to 5 s.
	LongLock time.Duration

	// LongTransaction is how long a transaction may be open.
	//
	// Defaults to 1 min.
	LongTransaction time.Duration

	// ManyPositions is how many messages a category may have that record where
	// consumers are.
	//
	// Defaults to 1,000,000.
	ManyPositions int64
}

// Doctor looks at the server and the database around the store, and changes nothing:
// settings, versions, roles, locks that are held long and who holds them, sessions,
// sizes. What it does not look at is the schema, which is for migrations.Drift, and
// the messages, which are for [Admin.Verify].
//
// Anybody who can connect may call it. What the user may not see is a finding
// [Hidden]: a member of pg_monitor sees all but the store's own sequence. Nothing of it
// is refused for the settings or for a schema that is missing, and a table that somebody
// has locked is waited for a second and no more.
func (a *Admin) Doctor(ctx context.Context, config *DoctorConfig) ([]Finding, error) {
	c := DoctorConfig{}
	if config != nil {
		c = *config
	}
	c.LongLock = cmp.Or(c.LongLock, 5*time.Second)
	c.LongTransaction = cmp.Or(c.LongTransaction, time.Minute)
	c.ManyPositions = cmp.Or(c.ManyPositions, 1_000_000)
	if c.ManyPositions < 0 {
		return nil, fmt.Errorf("doctor: %w", messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "many positions", fmt.Sprint(c.ManyPositions), "it is not negative"))
	}
	for name, d := range map[string]time.Duration{"long lock": c.LongLock, "long transaction": c.LongTransaction} {
		if d < 0 {
			return nil, fmt.Errorf("doctor: %w", messagestore.NewInvalidError(messagestore.ErrInvalidConfig, name, d.String(), "it is not negative"))
		}
	}
	var e examination
	err := a.driver.asIs(ctx, func(db DB) error {
		if a.driver.inTransaction(db) {
			return messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "database", nil, "it is in a transaction, which an error would end")
		}
		e = examination{db: db, schema: a.driver.schema}
		return e.run(ctx, a.driver, c)
	})
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", a.driver.failed(err))
	}
	return e.findings, nil
}

type examination struct {
	db       DB
	schema   string
	findings []Finding
	locked   bool // a table of the store is, so that none is asked for more
}

func (e *examination) run(ctx context.Context, d *Driver, c DoctorConfig) error {
	s, err := d.ask(ctx, e.db)
	if err != nil {
		return err
	}
	var version int
	if err := one(ctx, e.db, "select pg_catalog.current_setting('server_version_num')::integer", nil, &version); err != nil {
		return err
	}

	if err := e.examine(ctx, "server", doctorServerSQL); err != nil {
		return err
	}
	if version >= 150000 {
		if err := e.examine(ctx, "server", doctorCollationSQL); err != nil {
			return err
		}
	}
	e.pooler(connOf(e.db), s)
	e.gate(s)
	for _, x := range []struct {
		group, sql string
		args       []any
	}{
		{"settings", doctorSettingsSQL, nil},
		{"roles", doctorRolesSQL, nil},
		{"locks", doctorLocksSQL, []any{c.LongLock.Seconds()}},
		{"locks", doctorTableLocksSQL, []any{c.LongLock.Seconds()}},
		{"sessions", doctorSessionsSQL, []any{c.LongTransaction.Seconds()}},
		{"storage", doctorSlotsSQL, nil},
		{"storage", doctorStorageSQL, nil},
	} {
		if err := e.examine(ctx, x.group, x.sql, x.args...); err != nil {
			return err
		}
	}
	if e.locked {
		return nil
	}
	if s.hasVersion {
		if err := e.positions(ctx, c.ManyPositions); err != nil {
			return err
		}
	}
	return e.nameLocks(ctx)
}

// positions tells of what consumers have written of their positions, if this user may
// read it.
func (e *examination) positions(ctx context.Context, many int64) error {
	found, err := e.ask(ctx, "storage", doctorPositionsSQL, many)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && (refused.Code == denied || slices.Contains(noSchema, refused.Code)):
		e.add("storage", "positions", Hidden, "what consumers have written of their positions is not visible to this user", "grant dibs_reader to this user")
	case err != nil:
		return fmt.Errorf("positions: %w", err)
	}
	e.findings = append(e.findings, found...)
	return nil
}

// denied is what the server says to who has not the right.
const denied = "42501"

// Who locks a table is to be found, and not to be waited for.
const lockNotAvailable = "55P03"

// examine adds what a query finds. That it may not be asked is a finding too.
func (e *examination) examine(ctx context.Context, group, sql string, args ...any) error {
	found, err := e.ask(ctx, group, sql, args...)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && refused.Code == denied:
		found = []Finding{{group, group, Hidden, refused.Message, "grant pg_monitor to this user"}}
	case ok && refused.Code == lockNotAvailable:
		e.locked = true
		found = []Finding{{group, group, Warn, group + " cannot be looked at: somebody has locked a table", "see locks"}}
	case err != nil:
		return fmt.Errorf("%s: %w", group, err)
	}
	e.findings = append(e.findings, found...)
	return nil
}

func (e *examination) ask(ctx context.Context, group, sql string, args ...any) ([]Finding, error) {
	var found []Finding
	err := e.query(ctx, inSchema(sql, e.schema), args, func(rows pgx.Rows) error {
		var name, verdict string
		var says, advice pgtype.Text
		err := rows.Scan(&name, &verdict, &says, &advice)
		found = append(found, Finding{group, name, Verdict(verdict), says.String, advice.String})
		return err
	})
	return found, err
}

// query calls each with each row, and waits a second for a table at most. What is
// looked at is small, and plans are not: they are not compiled.
func (e *examination) query(ctx context.Context, sql string, args []any, each func(pgx.Rows) error) error {
	tx, err := e.db.Begin(ctx)
	if err != nil {
		return err
	}
	defer rollBack(ctx, tx)
	if _, err := tx.Exec(ctx, "select pg_catalog.set_config('lock_timeout', '1s', true), pg_catalog.set_config('jit', 'off', true)"); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
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
}

// inSchema is pgschema.Rename for SQL that names the program of the same name too.
func inSchema(sql, schema string) string {
	if schema == pgschema.Default {
		return sql
	}
	return strings.NewReplacer(
		"dibs.", fmt.Sprintf("%q.", schema),
		"to_regnamespace('dibs')", fmt.Sprintf("to_regnamespace('%q')", schema),
	).Replace(sql)
}

// pooler tells whether there is one in between.
func (e *examination) pooler(conn *pgx.Conn, s *server) {
	switch {
	case conn == nil:
	case conn.PgConn().PID() != s.pid:
		e.add("server", "pooler", OK, "the connection goes through a pooler, such as PgBouncer: the driver prepares no statement over it", "")
	default:
		e.add("server", "pooler", OK, "the connection goes straight to the server", "")
	}
}

// gate tells of the settings for which a driver refuses a server.
func (e *examination) gate(s *server) {
	s.judge(func(setting UnsafeSetting, ok bool) {
		says := setting.Name + " is " + setting.Value
		need := fmt.Sprintf("it has to be %s: what was acknowledged may be lost or changed otherwise", setting.Need)
		switch {
		case ok:
			e.add("settings", setting.Name, OK, says, "")
		case isOn(s.override) && setting.lifted():
			e.add("settings", setting.Name, Warn, says+", and "+override+" allows it", need)
		default:
			e.add("settings", setting.Name, Fail, says+", and drivers refuse the server", need)
		}
	})
}

func (e *examination) add(group, name string, v Verdict, says, advice string) {
	e.findings = append(e.findings, Finding{group, name, v, says, advice})
}

var lockKey = regexp.MustCompile(`the category with key (-?[0-9]+) `)

// nameLocks puts the names of categories in the place of their lock's keys, if this
// user may read them.
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
	err := e.query(ctx, pgschema.Rename(doctorLockNamesSQL, e.schema), []any{keys}, func(rows pgx.Rows) error {
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
