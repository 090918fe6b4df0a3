// Package postgres keeps messages in PostgreSQL, 14 or later.
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	if err != nil {
//		return err
//	}
//	store := messagestore.New(postgres.New(pool, nil), nil)
//
// or, with a pool of the driver's own, [Open]. The schema is made by package
// migrations. The user needs no more than to be a member of the role dibs_writer,
// or of dibs_reader to read only: all access is by functions.
//
// # In a transaction of yours
//
// A driver over a transaction writes in it. What it writes commits and rolls back
// with everything else in it, and a conflict leaves it usable:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "update invoices set ..."); err != nil {
//			return err
//		}
//		store := messagestore.New(postgres.New(tx, nil), nil)
//		_, err := store.Write(ctx, stream, version, Paid{})
//		return err
//	})
//
// From its first write to a category to its end it holds off other writers of that
// category, so it had better be short. A transaction that writes to two
// categories with two calls may deadlock with one that does so in the other order;
// PostgreSQL then refuses one of them.
// [messagestore.Store.WriteStreams] does not.
//
// Whether a transaction was committed is between the caller and the database: if
// the connection is lost during COMMIT, nobody knows. [Driver.Find] on another
// connection tells, and pgconn.SafeToRetry does not: it calls a COMMIT whose answer
// was lost safe to repeat.
//
// # Groups
//
// Over a pool, writes that come while another is under way are committed together:
// one round trip, one statement and one sync for all of them, and an outcome for
// each. One writer alone goes straight through. A group waits for the category of its
// first write; those to others that somebody has just then go with the next. A driver has as many
// such lines as there are processors, up to four, and uses a connection for each;
// to get the most of it, share one driver in a process.
//
// # Wake-ups
//
// A write tells other processes of it, by NOTIFY in its transaction, and a driver over a
// pool hears of their writes while somebody watches ([messagestore.Store.Watch]), by
// LISTEN on a connection of its own beside the pool. See [Config.NoNotify].
//
// # Outcomes
//
// Over a pool or a connection every write is one statement. If its answer is lost,
// the error matches [messagestore.ErrOutcomeUnknown]; every other error means that
// nothing was written. A write that waits for another for more than 10 seconds
// gives up, with an error of SQLSTATE 55P03. To one stream over a pool it gives up after 30
// seconds whatever its context allows, since others wait behind it: its outcome is unknown
// if it was sent by then.
//
// # The server
//
// The promises are as good as the server's. When a connection is used first, over a
// transaction of yours too, the driver asks once for its settings, in a way that
// leaves a transaction usable; and once more after that transaction, for what nobody can
// ask in one. It refuses with [ErrUnsafeSettings] a server with fsync,
// full_page_writes or synchronous_commit off (local is enough on one machine), one in
// recovery, one that another was promoted in place of, to which the driver has been
// connected, and an encoding other than UTF-8, and with [ErrNotMigrated] or
// [ErrSchemaTooNew] a schema that does not fit. The setting
//
//	dibs.allow_unsafe_settings = on
//
// of the server, the database or the role, or in the URL, takes all but the encodings
// and the schema as they are: for tests, for services whose storage is safe without
// these settings, and to read from a standby, which refuses writes by itself.
//
// What changes later is seen by connections made later; a pool makes new ones once an
// hour, unless told otherwise. A statement that sets synchronous_commit in a session
// that was asked before is not seen. A server that refuses to write, as one does that has
// become a standby behind a pooler, is asked again.
//
// A server that waits for a standby when it commits reports success, with a warning,
// if that wait is cancelled. [Open] makes this an unknown outcome; with a pool of
// your own, call [WatchReplication] before it is made. Such a connection is refused, with
// [ErrUnsafeSettings], where client_min_messages = error withholds the warning.
//
// # PgBouncer
//
// A pooler in transaction mode is found by itself: the process that serves a
// statement is not the one that greeted the client. Nothing is then prepared by name,
// every call is one statement or one transaction, and nothing is kept in a
// session. The URL needs no parameter for it, and may have none that PgBouncer does not
// know: settings belong to the role or the database there. What is asked about the server
// is then true of the one that answered; let all that PgBouncer may choose from be alike,
// and no other client SET what outlives its transaction. A pooler in session mode is taken
// for one too, which costs a little; one in statement mode refuses transactions, and so
// [Admin.Verify]. Who wants a way of sending
// statements all the same names it in the URL, as pgx has it:
// default_query_exec_mode=exec.
package postgres

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/pgschema"
	"github.com/dibs-go/dibs/messagestore"
)

// DB is what a driver works with: a [*pgxpool.Pool], a [*pgxpool.Conn], a
// [*pgx.Conn] or a [pgx.Tx].
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

var (
	_ DB                        = (*pgxpool.Pool)(nil)
	_ DB                        = (*pgxpool.Conn)(nil)
	_ DB                        = (*pgx.Conn)(nil)
	_ DB                        = pgx.Tx(nil)
	_ messagestore.AtomicDriver = (*Driver)(nil)
)

// Driver is a [messagestore.AtomicDriver]. It is safe for concurrent use, unless
// it is over a transaction; over a connection, its calls take turns.
type Driver struct {
	db      DB
	pool    *pgxpool.Pool // db, if it is one
	tx      bool          // whether db is a transaction
	groups  *groups       // nil where a write is by itself: over anything but a pool
	turn    chan struct{} // holds one token, which a call over anything but a pool takes
	schema  string
	queries queries
	fences  fences
	notify  bool  // whether a write tells other processes of it
	mark    *mark // of db, if it is of none of the kinds that a connection can be had of
	invalid error // of the configuration, for every call
	log     zerolog.Logger
	close   func()

	saidUnsafe, saidUnwatched atomic.Bool // to the log, which is told once
	latest                    latest
}

// Config changes how a [Driver] works. A nil *Config is a good one.
type Config struct {
	// Schema is the schema that was migrated: at most 63 lower-case letters, digits
	// and underscores.
	//
	// Defaults to dibs.
	Schema string

	// NoNotify has writes send no NOTIFY, and the driver no LISTEN: consumers of other
	// processes then find what is written when they poll. It is for a server that
	// notifies a lot already.
	//
	// Defaults to false.
	NoNotify bool

	// Logger receives one warning for each write that the database asked to be
	// tried again, one for a server that is used although its settings are
	// not safe, and one for a connection that [Open] may make in the clear; of names
	// and numbers, never of content.
	//
	// Defaults to silence.
	Logger zerolog.Logger
}

// New returns a driver over db, which the caller keeps and closes. A schema that is
// no schema's name is the error of every call.
func New(db DB, config *Config) *Driver {
	d := &Driver{db: db, turn: make(chan struct{}, 1), notify: true, log: zerolog.Nop(), close: func() {}}
	d.turn <- struct{}{}
	d.pool, _ = db.(*pgxpool.Pool)
	if d.pool != nil {
		d.groups = newGroups()
	}
	_, d.tx = db.(pgx.Tx)
	d.schema = pgschema.Default
	if config != nil {
		d.log = config.Logger
		d.notify = !config.NoNotify
		d.schema = cmp.Or(config.Schema, pgschema.Default)
	}
	if rule := pgschema.Check(d.schema); rule != "" {
		d.invalid = messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "schema", d.schema, rule)
		return d
	}
	d.queries = queriesFor(d.schema)
	return d
}

// Close closes what [Open] opened. What [New] was given it leaves alone. It waits for
// connections whose callers have left; a server that says nothing more can keep it for 15
// seconds.
func (d *Driver) Close() error {
	d.close()
	return nil
}

// The queries, one to a file, each a call of one function.
var (
	//go:embed sql/append.sql
	appendSQL string
	//go:embed sql/append_one.sql
	appendOneSQL string
	//go:embed sql/append_each.sql
	appendEachSQL string
	//go:embed sql/read_stream.sql
	readStreamSQL string
	//go:embed sql/read_category.sql
	readCategorySQL string
	//go:embed sql/last.sql
	lastSQL string
	//go:embed sql/version.sql
	versionSQL string
	//go:embed sql/find.sql
	findSQL string
	//go:embed sql/check.sql
	checkSQL string
	//go:embed sql/schema_version.sql
	schemaVersionSQL string
	//go:embed sql/epoch.sql
	epochSQL string
)

type queries struct {
	append, appendOne, appendEach, readStream, readCategory, last, version, find, check, schemaVersion, epoch, heads, listen string
	reportQueries
}

func queriesFor(schema string) queries {
	return queries{
		append:        pgschema.Rename(appendSQL, schema),
		appendOne:     pgschema.Rename(appendOneSQL, schema),
		appendEach:    pgschema.Rename(appendEachSQL, schema),
		readStream:    pgschema.Rename(readStreamSQL, schema),
		readCategory:  pgschema.Rename(readCategorySQL, schema),
		last:          pgschema.Rename(lastSQL, schema),
		version:       pgschema.Rename(versionSQL, schema),
		find:          pgschema.Rename(findSQL, schema),
		check:         pgschema.Rename(checkSQL, schema),
		schemaVersion: pgschema.Rename(schemaVersionSQL, schema),
		epoch:         pgschema.Rename(epochSQL, schema),
		heads:         pgschema.Rename(headsSQL, schema),
		listen:        pgschema.Rename(listenSQL, schema),

		reportQueries: reportQueriesFor(schema),
	}
}

// with calls f with a connection or transaction that is f's alone meanwhile, and to
// a server that is good.
func (d *Driver) with(ctx context.Context, f func(db DB) error) error {
	return d.asIs(ctx, func(db DB) error {
		err := d.safely(ctx, db, f)
		if e, ok := errors.AsType[*UnsafeSettingsError](err); ok && !e.Permanent() && d.pool != nil {
			connOf(db).Close(ctx) // the next one may reach the primary
		}
		return err
	})
}

// asIs is with, on whatever server there is.
func (d *Driver) asIs(ctx context.Context, f func(db DB) error) error {
	if d.invalid != nil {
		return d.invalid
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.pool != nil {
		conn, err := d.pool.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("acquire a connection: %w", safe(err))
		}
		defer conn.Release()
		return f(conn)
	}
	select {
	case <-d.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { d.turn <- struct{}{} }()
	return f(d.db)
}

// inTransaction reports whether db is in a transaction that this driver did not
// begin: its giver's, who may have begun it on a connection by hand.
func (d *Driver) inTransaction(db DB) bool {
	if d.tx {
		return true
	}
	conn := connOf(db)
	return conn != nil && conn.PgConn().TxStatus() != 'I'
}

func connOf(db DB) *pgx.Conn {
	switch c := db.(type) {
	case *pgx.Conn:
		return c
	case interface{ Conn() *pgx.Conn }: // a pool's connection, a transaction
		return c.Conn()
	}
	return nil
}
