// Package pglink connects to PostgreSQL servers and checks that they keep acknowledged writes. It
// does not know about messages: the PostgreSQL part of every system in this module works through a
// [Link].
//
// A Link checks each connection once, before its first use: whether the server's settings are safe,
// whether it is the primary, and whether the schema fits ([Link.With]). It detects poolers, and
// sends statements so that they work through them ([Link.Read], [Link.Exec]). It reports a write if
// the wait for a standby was cancelled ([Replicated]), and whether an error means that the
// statement was certainly rolled back ([Definite]).
package pglink

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/logger"
)

// DB is a [*pgxpool.Pool], a [*pgxpool.Conn], a [*pgx.Conn] or a [pgx.Tx].
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

var (
	_ DB = (*pgxpool.Pool)(nil)
	_ DB = (*pgxpool.Conn)(nil)
	_ DB = (*pgx.Conn)(nil)
	_ DB = pgx.Tx(nil)
)

// Config configures a [Link].
type Config struct {
	Schema  string        // a valid name: see CheckSchema
	Version int           // of the schema that the caller's statements need
	Logger  logger.Logger // for warnings: names and numbers, never content

	// KeepMemory makes each session keep up to 2 MB of freed memory for its next statement.
	KeepMemory bool
}

// A Link is a way to a database. It is safe for concurrent use, unless it is over a
// transaction. Over a connection its calls take turns.
type Link struct {
	db     DB
	pool   *pgxpool.Pool // db, if it is a pool
	apart  *apart        // beside the pool
	sql    *sql.DB       // instead of db
	tx     bool          // db is a transaction
	turn   chan struct{} // holds one token; a call takes it unless db is a pool
	config Config
	checks queries
	mark   *mark // of db, if its connection is not accessible
	latest latest

	saidUnsafe, saidUnwatched atomic.Bool // each warning is logged once
}

// The queries of the check, one per file.
var (
	//go:embed sql/check.sql
	checkSQL string
	//go:embed sql/schema_version.sql
	schemaVersionSQL string
	//go:embed sql/epoch.sql
	epochSQL string
)

type queries struct{ check, schemaVersion, epoch string }

// IsNil reports whether db is nil or holds a nil pointer.
func IsNil(db DB) bool {
	if db == nil {
		return true
	}
	v := reflect.ValueOf(db)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// New returns a link over db, which the caller closes.
func New(db DB, config Config) *Link {
	l := &Link{db: db, turn: make(chan struct{}, 1), config: config, apart: newApart()}
	l.turn <- struct{}{}
	l.pool, _ = db.(*pgxpool.Pool)
	_, l.tx = db.(pgx.Tx)
	l.checks = queries{
		check:         InSchema(checkSQL, config.Schema),
		schemaVersion: InSchema(schemaVersionSQL, config.Schema),
		epoch:         InSchema(epochSQL, config.Schema),
	}
	return l
}

// ErrNotPgx is returned when the connections of a *sql.DB do not come from pgx's package stdlib.
var ErrNotPgx = errors.New("the connections of the *sql.DB are not pgx's")

// NewSQL returns a link over a *sql.DB of pgx's package stdlib, which the caller closes.
func NewSQL(db *sql.DB, config Config) *Link {
	l := New(nil, config)
	l.sql = db
	return l
}

// Raw calls f with the pgx connection below conn, also while a *sql.Tx is open on it.
func Raw(conn *sql.Conn, f func(conn *pgx.Conn) error) error {
	var result error
	err := conn.Raw(func(c any) error {
		below, ok := c.(interface{ Conn() *pgx.Conn })
		if !ok {
			result = ErrNotPgx
			return nil
		}
		result = f(below.Conn())
		return nil
	})
	if result != nil {
		return result
	}
	return err
}

// Check checks the server of a connection, like [Link.With] before it calls a function.
func (l *Link) Check(ctx context.Context, db DB) error {
	return l.safely(ctx, db, func(DB) error { return nil })
}

// CheckAnew is [Link.Check] on a connection that may have been checked before.
func (l *Link) CheckAnew(ctx context.Context, db DB) error {
	l.setMark(Conn(db), nil)
	return l.Check(ctx, db)
}

// Pool returns the pool that l is over, or nil.
func (l *Link) Pool() *pgxpool.Pool { return l.pool }

// With calls f with a connection or transaction that only f uses meanwhile, on a server that passed
// the check. It closes a connection to a server that is not the primary, so that the next may reach
// the primary.
func (l *Link) With(ctx context.Context, f func(db DB) error) error {
	return l.AsIs(ctx, func(db DB) error {
		err := l.safely(ctx, db, f)
		if e, ok := errors.AsType[*UnsafeSettingsError](err); ok && !e.lasts() && l.pool != nil {
			Conn(db).Close(ctx)
		}
		return err
	})
}

// AsIs is [Link.With] without the check of the server.
func (l *Link) AsIs(ctx context.Context, f func(db DB) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.pool != nil {
		return l.onPool(ctx, f)
	}
	if l.sql != nil {
		conn, err := SQLConn(ctx, l.sql)
		if err != nil {
			return err
		}
		defer conn.Close()
		return Raw(conn, func(conn *pgx.Conn) error { return f(conn) })
	}
	select {
	case <-l.turn:
	case <-ctx.Done():
		return l.taken(ctx.Err())
	}
	defer func() { l.turn <- struct{}{} }()
	if conn := Conn(l.db); conn != nil && conn.IsClosed() {
		return fmt.Errorf("%w: the connection is closed", ErrClosed)
	}
	return f(l.db)
}

// SQLConn returns a connection of db. When callers wait, database/sql gives up after it got three
// connections in a row that a cancelled call had closed. Those are gone then, so SQLConn asks
// again.
func SQLConn(ctx context.Context, db *sql.DB) (conn *sql.Conn, err error) {
	const most = 100
	for range most {
		if conn, err = db.Conn(ctx); !errors.Is(err, driver.ErrBadConn) {
			break
		}
	}
	if err != nil {
		stats := db.Stats()
		return nil, exhausted(AcquireFailed(err), stats.InUse, stats.MaxOpenConnections, adviceOfSQL)
	}
	return conn, nil
}

// OverTransaction reports whether l is over a caller's transaction.
func (l *Link) OverTransaction() bool { return l.tx }

// InTransaction reports whether db is in a caller's transaction, also if the caller began it on a
// connection by a statement.
func (l *Link) InTransaction(db DB) bool {
	if l.tx {
		return true
	}
	conn := Conn(db)
	return conn != nil && conn.PgConn().TxStatus() != 'I'
}

// Conn returns the connection of db, or nil if it is not accessible.
func Conn(db DB) *pgx.Conn {
	switch c := db.(type) {
	case *pgx.Conn:
		return c
	case interface{ Conn() *pgx.Conn }: // a pool's connection, a transaction
		return c.Conn()
	}
	return nil
}

// Begin begins a transaction, at READ COMMITTED if db supports the choice of a level.
func Begin(ctx context.Context, db DB) (pgx.Tx, error) {
	if b, ok := db.(interface {
		BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	}); ok {
		return b.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	}
	return db.Begin(ctx)
}

// RollBack ends a transaction that was not committed. It waits a second for the server's answer;
// after that it closes the connection, and the server rolls back.
func RollBack(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // it may have ended already
}

// Read runs a statement in the way that suits db's connection, and calls each with each row.
func (l *Link) Read(ctx context.Context, db DB, sql string, args []any, each func(pgx.Rows) error) error {
	if conn := Conn(db); conn != nil && l.Mode(conn) == pgx.QueryExecModeExec && l.InTransaction(db) {
		// Without a description the result is text, and times have the session's DateStyle. The
		// description takes two round trips; a transaction keeps its server for both.
		return EachRow(ctx, db, sql, append([]any{pgx.QueryExecModeDescribeExec}, args...), each)
	}
	return EachRow(ctx, db, sql, l.Arguments(db, args), each)
}

// EachRow runs a query and calls each with each row.
func EachRow(ctx context.Context, db DB, sql string, args []any, each func(pgx.Rows) error) error {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Epoch returns the epoch of the store in the schema.
func (l *Link) Epoch(ctx context.Context, db DB) (epoch string, err error) {
	err = Failed(l.Read(ctx, db, l.checks.epoch, nil, func(rows pgx.Rows) error { return rows.Scan(&epoch) }))
	return epoch, err
}

// The pauses of [Pause].
const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = time.Second
)

// Pause waits before the repetition of a call that has failed this many times in a row.
func Pause(ctx context.Context, failures int) error {
	return outage.Wait(ctx, outage.Pause(failures, minBackoff, maxBackoff))
}

// OrNull returns an argument that is null for an empty text.
func OrNull[S ~string](s S) *string {
	if s == "" {
		return nil
	}
	text := string(s)
	return &text
}
