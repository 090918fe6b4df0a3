// Package postgres keeps messages in PostgreSQL, 15 or later.
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	if err != nil {
//		return err
//	}
//	driver, err := postgres.New(pool, nil)
//	if err != nil {
//		return err
//	}
//	store, err := messagestore.New(driver, nil)
//
// or, with a pool of the driver's own, [Open]. The schema is made by package migrations. The user
// needs no more than to be a member of the role dibs_writer, of dibs_worker to work on queues,
// sagas or relays as well, or of dibs_reader to read only: all access is by functions.
//
// # In a transaction of the caller's
//
// A driver over a transaction writes in it. Its writes commit and roll back with everything else in
// the transaction, and a conflict leaves it usable:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "update invoices set ..."); err != nil {
//			return err
//		}
//		over, err := store.Over(ctx, tx)
//		if err != nil {
//			return err
//		}
//		_, err = over.Write(ctx, stream, version, Paid{})
//		return err
//	})
//
// From its first write to a category to its end the transaction keeps other writers of that
// category waiting, so it should be short. Two transactions that write to two categories in two
// calls each may deadlock; PostgreSQL then refuses one of them. [messagestore.Store.WriteStreams]
// does not.
//
// If the connection is lost during COMMIT, the outcome of the transaction is unknown. [Driver.Find]
// on another connection resolves it. pgconn.SafeToRetry does not: it calls a COMMIT whose answer
// was lost safe to repeat.
//
// # A transaction of the driver's
//
// [messagestore.Transactional] gives a transaction whose lost COMMIT is resolved, by the ids of the
// messages in it:
//
//	txs, err := messagestore.Transactional[pgx.Tx](store)
//	...
//	written, err := txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
//		_, err := tx.Exec(ctx, "update invoices set ...")
//		return []messagestore.StreamWrite{messagestore.To(stream, version, Paid{})}, err
//	})
//
// The messages are appended in the round trip of COMMIT, so the category is locked no longer than
// that. [NewSQL] gives a *sql.Tx in place of the pgx.Tx.
//
// # Groups
//
// Over a pool, writes that come while another is under way are committed together: one round trip,
// one statement and one sync for all of them, and an outcome for each. A single writer goes
// straight through. A group waits for the lock of its first write's category; writes to other
// locked categories go with the next group. A driver has as many shards of such writes as there are
// processors, up to four, and uses a connection for each. Share one driver in a process.
//
// So do reads of streams that come while as many are under way as half of the pool has connections:
// up to 64 in one statement, with 100 messages for each at most, and 4 MiB for all; a read that
// wants more reads on by itself. The end or failure of one changes nothing for another, and none
// waits for others for more than a second. Their statement has no caller's context, so a tracer
// sees it without a parent.
//
// # Wake-ups
//
// A write notifies other processes, by NOTIFY in its transaction; [Driver.Transact] does so behind
// its COMMIT, in the same round trip. A driver over a pool listens while a consumer or another
// caller watches ([messagestore.Store.Watch]), on a connection of its own beside the pool. See
// [Config.NoNotify].
//
// # Connections
//
// A call takes a connection of the pool, and waits while all are in use; if its context ends by
// then, the error says so. The checkpoints, leases and heartbeats of consumers and of intents do
// not wait for handlers that hold the whole pool: the driver makes up to two connections beside it
// for them, as the pool makes its own, with its BeforeConnect and AfterConnect, and closes them 10
// seconds after their last use. So a process takes at most the pool, one connection that listens,
// and two more. Over a *sql.DB nothing is made beside it.
//
// # Outcomes
//
// Over a pool or a connection every write is one statement. If its answer is lost, the error
// matches [messagestore.ErrOutcomeUnknown]; every other error means that nothing was written. A
// write that waits more than 10 seconds for a lock ends with an error of SQLSTATE 55P03. Over a
// pool a write to one stream ends after 30 seconds even if its context allows more, since others
// wait behind it; its outcome is unknown if it was sent by then.
//
// # The server
//
// The promises are as good as the server's. The driver checks the server of each connection before
// its first use, in a way that leaves a transaction of the caller's usable; the timeline is checked
// after that transaction. It refuses with [ErrUnsafeSettings] a server with fsync, full_page_writes
// or synchronous_commit off (local is enough on one machine), a server in recovery, and an encoding
// other than UTF-8. It also refuses an old primary once it has been connected to the server that
// was promoted in its place. It refuses with [ErrNotMigrated] or [ErrSchemaTooNew] a schema that
// does not fit. The setting
//
//	dibs.allow_unsafe_settings = on
//
// of the server, the database or the role, or in the URL, allows all of these but encodings and
// schema: for tests, for services whose storage is safe without these settings, and to read from a
// standby, which refuses writes by itself.
//
// Later changes are seen by later connections; a pool makes new ones once an hour by default. A
// statement that sets synchronous_commit in a checked session is not seen. A server that refuses to
// write, such as a standby behind a pooler, is checked again.
//
// If the wait of a COMMIT for a standby is cancelled, the server reports success with a warning.
// [Open] makes this an unknown outcome. For a pool of the caller's, call [WatchReplication] on its
// configuration. Such a connection is refused with [ErrUnsafeSettings] if client_min_messages =
// error withholds the warning.
//
// # PgBouncer
//
// The driver detects a pooler in transaction mode: the process that serves a statement is not the
// one that greeted the client. Then it prepares nothing by name, sends every call as one statement
// or one transaction, and keeps nothing in a session. The URL needs no parameter for it, and may
// have none that PgBouncer does not know: settings belong to the role or the database. The check
// holds for the server that answered, so all servers behind PgBouncer should be alike, and no other
// client should SET a value that outlives its transaction. A pooler in session mode is treated the
// same, which costs a little. One in statement mode refuses transactions. The URL may choose a way
// of sending statements, as pgx has it: default_query_exec_mode=exec.
package postgres

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// DB is the database of a driver: a [*pgxpool.Pool], a [*pgxpool.Conn], a [*pgx.Conn] or a
// [pgx.Tx].
type DB = pglink.DB

// schemaVersion is the version of the schema whose functions this driver calls.
const schemaVersion = 9

// Driver is a [messagestore.Driver]. It is safe for concurrent use, unless it is over a
// transaction. Over a connection its calls take turns.
type Driver struct {
	link      *pglink.Link
	gathering *gathering // nil over anything but a pool
	groups    *groups    // nil over anything but a pool: each write is by itself
	schema    string
	queries   queries
	fences    fences
	notify    bool // a write sends a NOTIFY
	keep      bool // a session keeps memory
	log       logger.Logger
	close     func()
}

// Config changes how a [Driver] works. A nil *Config is a good one.
type Config struct {
	// Schema is the schema that was migrated: at most 63 lower-case letters, digits
	// and underscores.
	//
	// Defaults to dibs.
	Schema string

	// NoNotify turns NOTIFY and LISTEN off: consumers in other processes then find new
	// messages when they poll. It is for a server that notifies a lot already.
	//
	// Defaults to false.
	NoNotify bool

	// GiveMemoryBack leaves the memory of the server's sessions to its allocator. Otherwise the
	// check of a connection has glibc keep up to 2 MB that the session has freed, for its next
	// statement: the server reads a page of 1,000 messages in 0.83 of the time. It is for a server
	// with many connections and little memory.
	//
	// Defaults to false.
	GiveMemoryBack bool

	// Logger receives one warning for each write that the database asked to be
	// tried again, one for a server that is used although its settings are
	// not safe, and one for a connection that [Open] may make in the clear; of names
	// and numbers, never of content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// New returns a driver over db, which the caller keeps and closes. The error names each mistake: an
// invalid schema name, a db that is nil. It matches [messagestore.ErrInvalid]. New makes no round
// trip.
func New(db DB, config *Config) (*Driver, error) {
	d, err := configured(config, pglink.IsNil(db))
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	d.over(db)
	return d, nil
}

// over gives d its database.
func (d *Driver) over(db DB) {
	d.link = pglink.New(db, pglink.Config{Schema: d.schema, Version: schemaVersion, Logger: d.log, KeepMemory: d.keep})
	if d.link.Pool() != nil {
		d.groups = newGroups()
		d.gathering = newGathering(d.link.Connections())
	}
}

var errNoDatabase = messagestore.NewInvalidError("database", nil, "it is nil: give a pool, a connection or a transaction")

// configured returns a driver that has no database yet, or all mistakes. With none its database is
// nil.
func configured(config *Config, none bool) (*Driver, error) {
	if config == nil {
		config = &Config{}
	}
	d := &Driver{schema: cmp.Or(config.Schema, pglink.DefaultSchema), notify: !config.NoNotify, keep: !config.GiveMemoryBack, log: config.Logger, close: func() {}}
	var wrong []error
	if rule := pglink.CheckSchema(d.schema); rule != "" {
		wrong = append(wrong, messagestore.NewInvalidError("schema", d.schema, rule))
	}
	if none {
		wrong = append(wrong, errNoDatabase)
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	d.queries = queriesFor(d.schema)
	return d, nil
}

// Open returns a driver over a pool of its own, which Close closes. It connects once and returns
// the errors of a server or a schema that is refused: see [ErrUnsafeSettings], [ErrNotMigrated]
// and [ErrSchemaTooNew]. The URL is in the form that [pgxpool.ParseConfig] reads, with
// pool_max_conns and the like.
//
// An attempt to connect ends after 10 seconds unless the URL has connect_timeout. The
// connection's application_name is dibs unless the URL has one. On Linux a connection whose
// other end has been silent for 30 seconds is closed, elsewhere after as long as the system
// takes; in a pool of the caller's own DialFunc decides that. Of several hosts the first that
// answers is taken, and with target_session_attrs=read-write the first that is not a standby.
// A host that is not this machine, and that the URL allows to be talked to without
// encryption, is logged. No error shows the URL or its password.
func Open(ctx context.Context, url string, config *Config) (*Driver, error) {
	if ctx == nil {
		return nil, fmt.Errorf("open: %w", messagestore.NewInvalidError("context", nil, "it is nil"))
	}
	d, err := configured(config, false)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	pool, clear, err := pglink.Open(ctx, url)
	switch {
	case errors.Is(err, pglink.ErrInvalidURL):
		return nil, fmt.Errorf("open: %w", messagestore.NewInvalidError("database URL", nil, err.Error()))
	case err != nil:
		return nil, fmt.Errorf("open: %w", err)
	}
	if clear != "" && config != nil {
		config.Logger.Warn().Str("host", clear).Msg("the connection may not be encrypted: sslmode=verify-full in the URL encrypts it and verifies the host")
	}
	d.over(pool)
	d.close = pool.Close
	if err := d.with(ctx, func(DB) error { return nil }); err != nil {
		pglink.CloseWithin(ctx, pool)
		return nil, fmt.Errorf("open: %w", err)
	}
	return d, nil
}

// WatchReplication changes the configuration of a connection that [New] will be given, or of
// the connections of a pool, so that a write whose wait for a standby is cancelled is an
// unknown outcome. It matters where synchronous_standby_names is set: PostgreSQL reports such
// a write as done, with a warning beside it that pgx does not show. [Open] does it by itself.
//
//	config, err := pgxpool.ParseConfig(url)
//	...
//	postgres.WatchReplication(config.ConnConfig)
//	pool, err := pgxpool.NewWithConfig(ctx, config)
//
// The configuration's own handlers of notices and new connections are called as before. In a
// transaction of the caller's the commit, and so the warning, is the caller's. It panics if
// config is nil.
func WatchReplication(config *pgx.ConnConfig) {
	if config == nil {
		panic("postgres: WatchReplication of a nil configuration")
	}
	pglink.WatchReplication(config)
}

// Close closes the pool of [Open], and waits for connections of it that are in use, for up to 15
// seconds if a server no longer answers. It closes no pool that [New] was given, and is not needed
// there: connections that the driver has made beside the pool end 10 seconds after their last use.
func (d *Driver) Close() error {
	d.close()
	if d.link != nil {
		d.link.CloseApart()
	}
	return nil
}

// Connections implements [messagestore.Driver]: the size of the pool, and 1 for a connection
// or a transaction.
func (d *Driver) Connections() int {
	if d.link == nil {
		return 0
	}
	return d.link.Connections()
}

// The queries, one to a file, each a call of one function.
var (
	//go:embed sql/append.sql
	appendSQL string
	//go:embed sql/append_one.sql
	appendOneSQL string
	//go:embed sql/append_several.sql
	appendSeveralSQL string
	//go:embed sql/append_each.sql
	appendEachSQL string
	//go:embed sql/read_stream.sql
	readStreamSQL string
	//go:embed sql/read_streams.sql
	readStreamsSQL string
	//go:embed sql/read_category.sql
	readCategorySQL string
	//go:embed sql/last.sql
	lastSQL string
	//go:embed sql/version.sql
	versionSQL string
	//go:embed sql/find.sql
	findSQL string
)

type queries struct {
	append, appendOne, appendSeveral, appendEach, appendShared, readStreams, readStream, readCategory, last, version, find, heads, listen, ring, stage, transactAppend, transactAsk, rights, trimCheckpoints string
	queues                                                                                                                                                                                                   queueQueries
	reportQueries
}

func queriesFor(schema string) queries {
	return queries{
		append:         pglink.InSchema(appendSQL, schema),
		appendOne:      pglink.InSchema(appendOneSQL, schema),
		appendSeveral:  pglink.InSchema(appendSeveralSQL, schema),
		appendEach:     pglink.InSchema(appendEachSQL, schema),
		appendShared:   pglink.InSchema(appendSharedSQL, schema),
		readStreams:    pglink.InSchema(readStreamsSQL, schema),
		readStream:     pglink.InSchema(readStreamSQL, schema),
		readCategory:   pglink.InSchema(readCategorySQL, schema),
		last:           pglink.InSchema(lastSQL, schema),
		version:        pglink.InSchema(versionSQL, schema),
		find:           pglink.InSchema(findSQL, schema),
		heads:          pglink.InSchema(headsSQL, schema),
		listen:         pglink.InSchema(listenSQL, schema),
		ring:           pglink.InSchema(ringSQL, schema),
		stage:          pglink.InSchema(stageSQL, schema),
		transactAppend: pglink.InSchema(transactAppendSQL, schema),
		transactAsk:    pglink.InSchema(transactAskSQL, schema),
		rights:         pglink.InSchema(rightsSQL, schema),

		trimCheckpoints: pglink.InSchema(trimCheckpointsSQL, schema),

		queues:        queueQueriesFor(schema),
		reportQueries: reportQueriesFor(schema),
	}
}

// with calls f with a connection or transaction that only f uses meanwhile, and whose server
// is trusted.
func (d *Driver) with(ctx context.Context, f func(db DB) error) error {
	if ctx == nil {
		return messagestore.NewInvalidError("context", nil, "it is nil")
	}
	if d.onlyConnection(ctx) {
		return errOnlyConnection
	}
	return matched(d.link.With(ctx, f))
}
