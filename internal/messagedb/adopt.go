// Package messagedb is for databases and clients of message-db 1.x. It moves the messages of such a
// database into the store in the schema dibs ([Adopt]), and its tests hold the schema message_store
// to the behaviour of message-db.
package messagedb

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/migrations"
)

// Failures of [Adopt], [NewPlan] and [Undo], for [errors.Is].
var (
	// ErrCannotAdopt is returned when the database does not meet the conditions. Nothing was
	// changed. See [CannotAdoptError].
	ErrCannotAdopt = errors.New("message-db cannot be adopted here")

	// ErrRunning is returned when another process is planning, adopting or undoing in this
	// database.
	ErrRunning = errors.New("another process adopts this database, or undoes an adoption")

	// ErrPooled is returned when the connection goes through a pooler, which would give the
	// session's locks and settings to other clients.
	ErrPooled = errors.New("the connection is through a pooler, and it takes one to the server itself")

	// ErrNothingToUndo is returned when the database was not adopted, or its old schema has been
	// dropped.
	ErrNothingToUndo = errors.New("there is no adoption to undo")

	// ErrCopyDiffers is returned when messages differ between the tables. Nothing was switched. See
	// [CopyDiffersError].
	ErrCopyDiffers = errors.New("the copy is not the same")

	// ErrLocked is returned when other sessions did not release the lock of a table in time. The
	// messages copied so far stay. See [LockedError].
	ErrLocked = errors.New("the lock was not released in time")
)

// A CannotAdoptError lists all obstacles.
type CannotAdoptError struct {
	Obstacles []Obstacle
}

// Error lists the obstacles.
func (e *CannotAdoptError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: ", ErrCannotAdopt)
	for i, o := range e.Obstacles {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(o.Problem)
	}
	return b.String()
}

// Is reports whether target is [ErrCannotAdopt].
func (e *CannotAdoptError) Is(target error) bool { return target == ErrCannotAdopt }

// An Obstacle is something that you have to change before an adoption.
type Obstacle struct {
	Kind    ObstacleKind
	Problem string // a part of a sentence
}

// An ObstacleKind is the kind of an obstacle.
type ObstacleKind string

// The kinds of obstacles.
const (
	ObstacleSource     ObstacleKind = "source"     // it is not message-db 1.x
	ObstacleTarget     ObstacleKind = "target"     // there are messages in the schema dibs already
	ObstacleRights     ObstacleKind = "rights"     // this user lacks a right
	ObstacleMessages   ObstacleKind = "messages"   // some messages could not be kept
	ObstacleDependents ObstacleKind = "dependents" // other objects would go on using the old table, or break
)

// A CopyDiffersError names up to ten streams that differ.
type CopyDiffersError struct {
	Streams []StreamDifference
}

// A StreamDifference is a stream with different messages in the two tables. If the numbers are
// equal, the content of a message differs.
type StreamDifference struct {
	Stream string
	Old    int64 // messages in message-db's table
	New    int64 // messages in dibs.messages
}

// Error names the first stream.
func (e *CopyDiffersError) Error() string {
	s := e.Streams[0]
	text := fmt.Sprintf("%v: stream %.80q has %d messages in message-db's table and %d in dibs.messages", ErrCopyDiffers, s.Stream, s.Old, s.New)
	if s.Old == s.New {
		text = fmt.Sprintf("%v: the %d messages of stream %.80q have another checksum", ErrCopyDiffers, s.Old, s.Stream)
	}
	if n := len(e.Streams) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more streams differ", n)
	}
	return text
}

// Is reports whether target is [ErrCopyDiffers].
func (e *CopyDiffersError) Is(target error) bool { return target == ErrCopyDiffers }

// A LockedError names the sessions that hold the table.
type LockedError struct {
	Table    string
	Blockers []Blocker // oldest first
}

// A Blocker is a session that holds a lock.
type Blocker struct {
	PID         int32 // 0 for a prepared transaction
	User        string
	Application string    // for a prepared transaction, its name
	State       string    // as in pg_stat_activity, or prepared
	Since       time.Time // when its transaction began
}

// String names the session, or the prepared transaction, which has no session.
func (b Blocker) String() string {
	if b.PID == 0 {
		return fmt.Sprintf("the prepared transaction %.80q of %s, of %s: commit or roll it back", b.Application, b.User, b.Since.UTC().Format("2006-01-02 15:04:05Z"))
	}
	name := ""
	if b.Application != "" {
		name = fmt.Sprintf(" (%.40q)", b.Application)
	}
	return fmt.Sprintf("process %d of %s%s, %s, in a transaction since %s", b.PID, b.User, name, b.State, b.Since.UTC().Format("15:04:05Z"))
}

// Error names the first session.
func (e *LockedError) Error() string {
	text := fmt.Sprintf("lock %s: %v", e.Table, ErrLocked)
	if len(e.Blockers) > 0 {
		text += ": " + e.Blockers[0].String()
	}
	return text
}

// Is reports whether target is [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Config changes how message-db is adopted. nil means the defaults.
type Config struct {
	// Workers is how many connections copy and compare: 1 to 16.
	//
	// Defaults to 2.
	Workers int

	// RangeMessages is roughly how many messages are copied in one transaction: 1 to 1,000,000.
	//
	// Defaults to 20000.
	RangeMessages int

	// LockTimeout is how long each attempt to lock message-db's table waits. Writers that come
	// later wait as long.
	//
	// Defaults to two seconds.
	LockTimeout time.Duration

	// LockTries is the number of attempts, with a pause of LockTimeout between them.
	//
	// Defaults to 10.
	LockTries int

	// LeaveDependents goes on although views, foreign keys, triggers or functions of others will go
	// on using the old table, or roles will lose their rights in the schema.
	//
	// Defaults to false.
	LeaveDependents bool

	// Progress is called now and then, by one goroutine at a time; the work waits until it returns.
	// It is not called while message-db's table is locked.
	//
	// Defaults to nothing.
	Progress func(Progress)
}

func (c *Config) withDefaults() (Config, error) {
	var d Config
	if c != nil {
		d = *c
	}
	set := func(value *int, otherwise, most int, name string) error {
		if *value == 0 {
			*value = otherwise
		}
		if *value < 1 || *value > most {
			return fmt.Errorf("invalid %s %d: must be between 1 and %d", name, *value, most)
		}
		return nil
	}
	if d.LockTimeout == 0 {
		d.LockTimeout = 2 * time.Second
	}
	if d.LockTimeout < time.Millisecond || d.LockTimeout > time.Hour {
		return d, fmt.Errorf("invalid LockTimeout %v: must be between 1ms and 1h", d.LockTimeout)
	}
	return d, errors.Join(
		set(&d.Workers, 2, 16, "Workers"),
		set(&d.RangeMessages, 20_000, 1_000_000, "RangeMessages"),
		set(&d.LockTries, 10, 1_000_000, "LockTries"))
}

// A Phase is a part of an adoption.
type Phase string

// The phases, in order. A phase counts messages unless it says otherwise.
const (
	Checking  Phase = "checking"
	Copying   Phase = "copying"
	Indexing  Phase = "indexing" // counts indexes
	Following Phase = "following"
	Comparing Phase = "comparing" // counts parts of the two tables
	Locking   Phase = "locking"   // counts attempts; then it switches, and reports nothing
	Done      Phase = "done"
)

// Progress says how far a phase is.
type Progress struct {
	Phase     Phase
	Done      int64
	Total     int64         // 0 if unknown
	Rate      float64       // per second, since the phase began; 0 if unknown
	Remaining time.Duration // of this phase; 0 if unknown
	Blockers  []Blocker     // sessions that hold the lock it waits for
}

// A Connect opens a connection, which the adoption closes. It must not go through a pooler in
// transaction mode, because the adoption needs sessions.
type Connect func(ctx context.Context) (*pgx.Conn, error)

//go:embed sql/*.sql
var embedded embed.FS

// statements are the SQL of adoptions, by the names of their files.
var statements = func() map[string]string {
	names, err := fs.Glob(embedded, "sql/*.sql")
	if err != nil {
		panic(err) // the pattern is good
	}
	all := map[string]string{}
	for _, name := range names {
		sql, err := embedded.ReadFile(name)
		if err != nil {
			panic(err) // the name is from the same file system
		}
		all[strings.TrimSuffix(path.Base(name), ".sql")] = string(sql)
	}
	return all
}()

// Adopt moves message-db's store in the schema message_store to the store in the schema dibs, and
// keeps every message's id, stream, positions, type, time, data and metadata. Clients can write to
// message-db until the switch, which is one transaction and makes them wait for a moment. After it
// message-db's clients, unchanged, and the clients of this module use the same store. The old
// schema stays, under another name, and [Undo] is the way back.
//
// You can stop it at any point, by ctx or by force, and call it again: it goes on where it was.
// Until the switch only message-db's store is in use, and clients of this module are refused. If
// everything is done already, it says so and changes nothing.
//
// Before the switch it compares both tables, by the number and the checksum of the messages of each
// stream: see [CopyDiffersError]. It compares messages written meanwhile in the transaction of the
// switch.
//
// The user must own message-db's schema and table and, like the user who migrates, be a member of
// dibs_owner. See [CannotAdoptError] for the other conditions, and [LockedError].
func Adopt(ctx context.Context, connect Connect, config *Config) (*Adoption, error) {
	var done *Adoption
	err := withAdopter(ctx, connect, config, func(a *adopter) (err error) {
		done, err = a.adopt(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	return done, nil
}

// An adopter is an adoption, or an undo, under way.
type adopter struct {
	Config

	connect Connect
	main    *pgx.Conn     // only this connection holds the lock; it does everything but the bulk of the copying
	held    time.Duration // how long the last lock was held

	mu    sync.Mutex // guards the fields below, and is held for calls of Progress
	phase Phase
	began time.Time
	total int64
	done  atomic.Int64
}

// lockClass is "dibm" in ASCII, the class of the advisory locks of migrations too.
const lockClass int32 = 0x6469626d

// withAdopter runs f with the only adopter in the database.
func withAdopter(ctx context.Context, connect Connect, config *Config, f func(*adopter) error) error {
	c, err := config.withDefaults()
	if err != nil {
		return err
	}
	a := &adopter{Config: c, connect: connect}
	if a.main, err = a.session(ctx); err != nil {
		return err
	}
	defer a.main.Close(context.WithoutCancel(ctx))

	// The session of a killed adopter may take a moment to notice.
	for tries := 0; ; tries++ {
		var got bool
		if err := a.main.QueryRow(ctx, "select pg_try_advisory_lock($1::int, hashtext('dibs.adoption'))", lockClass).Scan(&got); err != nil {
			return err
		}
		if got {
			return f(a)
		}
		if tries == 40 {
			return ErrRunning
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// session returns a connection that fills dibs.messages. Settings of the database, the role and the
// URL do not affect its work.
func (a *adopter) session(ctx context.Context) (*pgx.Conn, error) {
	conn, err := a.connect(ctx)
	if refused, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return nil, errors.New(refused.Error()) // without its configuration, which has the password
	}
	if err != nil {
		return nil, err
	}
	err = prepareSession(ctx, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	return conn, nil
}

func prepareSession(ctx context.Context, conn *pgx.Conn) error {
	var pid uint32
	if err := conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.PgConn().PID() {
		return ErrPooled // before this session sets anything that other clients would inherit
	}
	if _, err := conn.PgConn().Exec(ctx, statements["session"]).ReadAll(); err != nil {
		return err
	}
	// This ends the session soon after this process; not every platform supports it.
	_, err := conn.Exec(ctx, "set client_connection_check_interval = '1s'")
	if _, refused := errors.AsType[*pgconn.PgError](err); refused {
		return nil
	}
	return err
}

func (a *adopter) adopt(ctx context.Context) (*Adoption, error) {
	a.start(Checking, 0)
	state, err := readAdoption(ctx, a.main)
	if err != nil {
		return nil, err
	}
	if state != nil && state.State == Adopted {
		return state, nil
	}
	survey, err := a.survey(ctx, state)
	if err != nil {
		return nil, err
	}
	if len(survey.obstacles) > 0 {
		return nil, &CannotAdoptError{survey.obstacles}
	}
	if state == nil || state.State == Undone {
		if err := a.prepare(ctx, survey); err != nil {
			return nil, err
		}
	}
	if state == nil || !state.held || state.State == Undone {
		if err := a.hold(ctx); err != nil {
			return nil, err
		}
	}
	if err := a.copyBulk(ctx, survey.messages); err != nil {
		return nil, err
	}
	if err := a.buildIndexes(ctx); err != nil {
		return nil, err
	}
	if err := a.settle(ctx, false); err != nil {
		return nil, err
	}
	if err := a.compare(ctx); err != nil {
		return nil, err
	}
	if err := a.settle(ctx, true); err != nil {
		return nil, err
	}
	if err := a.switchOver(ctx); err != nil {
		return nil, err
	}
	if _, err := a.main.Exec(ctx, "truncate dibs_adoption.sums"); err != nil {
		return nil, err
	}
	done, err := readAdoption(ctx, a.main)
	if err != nil {
		return nil, err
	}
	done.Held = a.held
	a.start(Done, done.Messages)
	return done, nil
}

// prepare makes the store and everything that the adoption needs.
func (a *adopter) prepare(ctx context.Context, survey *survey) error {
	if err := inTx(ctx, a.main, func(tx pgx.Tx) error { return applyCore(ctx, tx) }); err != nil {
		return err
	}
	return a.locked(ctx, "access exclusive", []string{"dibs.messages"}, func(tx pgx.Tx) error {
		if err := becomeOwner(ctx, tx); err != nil {
			return err
		}
		var state *string
		if err := tx.QueryRow(ctx, "select (select state from dibs_adoption.state)").Scan(&state); err != nil {
			return err
		}
		if state == nil {
			// Nobody can write now.
			var used bool
			if err := tx.QueryRow(ctx, "select exists (select from dibs.messages)").Scan(&used); err != nil {
				return err
			}
			if used {
				return &CannotAdoptError{[]Obstacle{{ObstacleTarget, "there are messages in dibs.messages"}}}
			}
			if _, err := tx.Exec(ctx, "insert into dibs_adoption.state (state, version, found) values ('copying', $1, $2)", survey.version, survey.messages); err != nil {
				return err
			}
		}
		if err := execAll(ctx, tx, statements["prepare"]); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "update dibs_adoption.state set version = $1, found = $2", survey.version, survey.messages)
		return err
	})
}

// applyCore applies the migrations for a database with message-db, and makes the schema of the
// adoption.
func applyCore(ctx context.Context, tx pgx.Tx) error {
	if err := migrations.Install(ctx, tx); err != nil {
		return err
	}
	var there bool
	if err := tx.QueryRow(ctx, "select to_regnamespace('dibs_adoption') is not null").Scan(&there); err != nil || there {
		return err
	}
	const create = `do $$ begin
		execute format('create schema dibs_adoption authorization %I', (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'dibs'));
	end $$`
	if err := execAll(ctx, tx, create); err != nil {
		return err
	}
	if err := becomeOwner(ctx, tx); err != nil {
		return err
	}
	return execAll(ctx, tx, statements["schema"], "set local role none")
}

// becomeOwner makes the rest of the transaction run as the schema's owner.
func becomeOwner(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "select set_config('role', pg_get_userbyid(nspowner), true) from pg_namespace where nspname = 'dibs'")
	return err
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// inTx runs f in a transaction that looks up names only in pg_catalog: another user may have left
// functions in public for a superuser to call.
func inTx(ctx context.Context, conn *pgx.Conn, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local search_path = pg_catalog, pg_temp"); err != nil {
			return err
		}
		return f(tx)
	})
}

// execAll runs texts, each with one or more statements without parameters.
func execAll(ctx context.Context, tx pgx.Tx, all ...string) error {
	for _, sql := range all {
		if _, err := tx.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// start begins a phase.
func (a *adopter) start(phase Phase, total int64) {
	a.mu.Lock()
	a.phase, a.total, a.began = phase, total, time.Now()
	a.done.Store(0)
	a.mu.Unlock()
	a.add(0)
}

// add reports that n more of the phase are done.
func (a *adopter) add(n int64, blockers ...Blocker) {
	done := a.done.Add(n)
	if a.Progress == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := Progress{Phase: a.phase, Done: done, Total: a.total, Blockers: blockers}
	if elapsed := time.Since(a.began).Seconds(); n > 0 && elapsed > 0 {
		p.Rate = float64(done) / elapsed
		if left := float64(a.total - done); left > 0 {
			p.Remaining = time.Duration(left / p.Rate * float64(time.Second))
		}
	}
	a.Progress(p)
}
