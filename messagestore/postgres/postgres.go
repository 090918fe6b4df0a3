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
// or use [Open], which makes the pool too. Package migrations makes the schema. The user only needs
// to be a member of the role dibs_writer, of dibs_worker to work on queues, sagas or relays too, or
// of dibs_reader to read only: all access is by functions.
//
// # In a transaction of the caller's
//
// A driver over your transaction writes in it. Its writes commit and roll back with everything else
// in the transaction, and a conflict leaves the transaction usable:
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
// From its first write to a category until its end, the transaction makes other writers of that
// category wait, so keep it short. Two transactions that write to two categories, in two calls
// each, may deadlock; then PostgreSQL refuses one transaction. [messagestore.Store.WriteStreams]
// does not deadlock.
//
// If the connection is lost during COMMIT, the outcome of the transaction is unknown. [Driver.Find]
// on another connection resolves it. Do not rely on pgconn.SafeToRetry: it reports that a COMMIT
// with a lost answer is safe to repeat.
//
// # A transaction of the driver's
//
// With [messagestore.Transactional] the driver runs the transaction, and if the answer to COMMIT is
// lost, it resolves the outcome by the ids of the messages in it:
//
//	txs, err := messagestore.Transactional[pgx.Tx](store)
//	...
//	written, err := txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
//		_, err := tx.Exec(ctx, "update invoices set ...")
//		return []messagestore.StreamWrite{messagestore.To(stream, version, Paid{})}, err
//	})
//
// The messages are appended in the round trip of COMMIT, so the category is locked only for that
// long. [NewSQL] uses a *sql.Tx instead of the pgx.Tx.
//
// # Groups
//
// Over a pool, writes that come while another is under way are committed together: one round trip,
// one statement and one sync for all, and an outcome for each. A single writer goes straight
// through. A group waits for the lock of its first write's category; writes to other locked
// categories go with the next group. A driver has as many shards of writes as there are processors,
// up to four, and uses a connection for each. Share one driver in a process.
//
// Reads of streams are combined too, when as many reads are under way as half of the pool's
// connections: up to 64 in one statement, with at most 100 messages for each and 4 MiB for all; a
// read that needs more continues alone. The end or failure of one read does not affect another, and
// a read waits for others for at most a second. The combined statement has no caller's context, so
// a tracer sees it without a parent.
//
// # Wake-ups
//
// A write notifies other processes, by NOTIFY in its transaction; [Driver.Transact] does so after
// its COMMIT, in the same round trip. A driver over a pool listens, on an extra connection, while a
// consumer or another caller watches ([messagestore.Store.Watch]). See [Config.NoNotify].
//
// # Connections
//
// A call takes a connection of the pool, and waits while all are in use; if its context ends
// meanwhile, the error says so. The checkpoints, leases and heartbeats of consumers and of intents
// do not wait for handlers that hold the whole pool: for them the driver opens up to two extra
// connections, with the pool's configuration, BeforeConnect and AfterConnect, and closes them 10
// seconds after their last use. So a process uses at most the pool, one connection that listens,
// and two more. Over a *sql.DB there are no extra connections.
//
// # Outcomes
//
// Over a pool or a connection every write is one statement. If its answer is lost, the error
// matches [messagestore.ErrOutcomeUnknown]; after any other error nothing was written. A write that
// waits more than 10 seconds for a lock ends with an error with SQLSTATE 55P03. Over a pool a write
// to one stream ends after 30 seconds even if its context allows more, because others wait behind
// it; its outcome is unknown if it was already sent.
//
// # The server
//
// The driver's promises depend on the server's. It checks the server of each connection before the
// first use, in a way that leaves a transaction of the caller usable; the timeline is checked after
// that transaction. It refuses with [ErrUnsafeSettings] a server with fsync, full_page_writes or
// synchronous_commit off (local is enough on one machine), a server in recovery, and an encoding
// other than UTF-8. It also refuses an old primary once it has been connected to the newly promoted
// server. If the schema does not fit, the error is [ErrNotMigrated] or [ErrSchemaTooNew]. The
// setting
//
//	dibs.allow_unsafe_settings = on
//
// of the server, the database or the role, or in the URL, allows all of these except a wrong
// encoding or schema. It is for tests, for storage that is safe without these settings, and for
// reading from a standby, which refuses writes anyway.
//
// The driver sees later changes of settings on later connections; a pool makes new connections once
// an hour by default. It does not see a statement that sets synchronous_commit in a checked
// session. If a server refuses to write, such as a standby behind a pooler, the driver checks it
// again.
//
// If the wait of a COMMIT for a standby is cancelled, the server reports success with a warning.
// [Open] turns this into an unknown outcome. For your own pool, call [WatchReplication] on its
// configuration. A connection that watches is refused with [ErrUnsafeSettings] if
// client_min_messages = error suppresses the warning.
//
// # PgBouncer
//
// The driver detects a pooler in transaction mode: the process that serves a statement is not the
// process that greeted the client. Then it uses no named prepared statements, sends every call as
// one statement or one transaction, and keeps no state in a session. The URL needs no parameter for
// this, and must not have parameters that PgBouncer does not know: set them on the role or the
// database. The driver checks the server that happens to answer, so all servers behind PgBouncer
// should be alike, and no client should SET a value that outlives its transaction. A pooler in
// session mode is treated the same, which costs a little. A pooler in statement mode refuses
// transactions. The URL may choose pgx's way of sending statements: default_query_exec_mode=exec.
package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// schemaVersion is the schema version that this driver needs.
const schemaVersion = 9

var (
	_ messagestore.Driver                 = (*Driver)(nil)
	_ messagestore.TransactDriver[pgx.Tx] = (*Driver)(nil)
	_ queuing.Driver                      = (*Driver)(nil)
	_ report.Driver                       = (*Driver)(nil)
)

// Driver is a [messagestore.Driver]. It is safe for concurrent use, except over a transaction. Over
// a connection its calls take turns.
type Driver struct {
	// The parts have most of the methods. Each knows only the parts that it uses: the groups use a
	// writer, the gathering a reader, and all of them the database.
	*database
	*gathering
	*groups
	queues

	config Config
	close  func() // the pool of Open
}

func newDriver(link *pglink.Link, config Config, queries *queries) *Driver {
	b := &database{link: link, queries: queries}
	w := writer{database: b, notify: !config.NoNotify, log: config.Logger}
	return &Driver{b, newGathering(reader{b}), newGroups(w), queues{b}, config, func() {}}
}

// Config configures a [Driver]. nil means the defaults.
type Config struct {
	// Schema is the name of the migrated schema: at most 63 lower-case letters, digits and
	// underscores.
	//
	// Defaults to dibs.
	Schema string

	// NoNotify turns off NOTIFY and LISTEN: consumers in other processes then find new messages
	// when they poll. Use it on a server that already notifies a lot.
	//
	// Defaults to false.
	NoNotify bool

	// GiveMemoryBack leaves the memory of the server's sessions to the allocator's own policy. By
	// default the check of a connection makes glibc keep up to 2 MB of freed memory for the
	// session's next statement, and the server reads a page of 1,000 messages in 0.83 of the time.
	// Set it for a server with many connections and little memory.
	//
	// Defaults to false.
	GiveMemoryBack bool

	// Logger receives a warning when a write has to be tried again, when a server is used although
	// its settings are not safe, and when [Open] may connect without encryption. Warnings have
	// names and numbers, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// New returns a driver over db, which you keep and close. The error matches
// [messagestore.ErrInvalid] and names each mistake: an invalid schema name, a nil db. New makes no
// round trip.
func New(db DB, config *Config) (*Driver, error) {
	c, err := configured(config, pglink.IsNil(db))
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return newDriver(pglink.New(db, c.link()), c, queriesFor(c.Schema)), nil
}

// Over implements [messagestore.Driver] for a [pgx.Tx], and for the *sql.Tx of a function of
// Transact with that function's context.
func (d *Driver) Over(ctx context.Context, tx any) (messagestore.Driver, error) {
	switch tx := tx.(type) {
	case pgx.Tx:
		return newDriver(pglink.New(tx, d.config.link()), d.config, d.queries), nil
	case *sql.Tx:
		if ctx.Value(heldKey{d.database}) != nil {
			return d, nil
		}
		return nil, fmt.Errorf("%w: a *sql.Tx is that of a function of Transact, with its context", messagestore.ErrNotSupported)
	}
	return nil, fmt.Errorf("%w: a %T is not a pgx.Tx", messagestore.ErrNotSupported, tx)
}

var errNoDatabase = messagestore.NewInvalidError("database", nil, "must not be nil: give a pool, a connection or a transaction")

// configured returns config with the schema's name, or an error with all mistakes. none says that
// the caller's database is nil, which is a mistake too.
func configured(config *Config, none bool) (c Config, _ error) {
	if config != nil {
		c = *config
	}
	c.Schema = cmp.Or(c.Schema, pglink.DefaultSchema)
	var wrong []error
	if rule := pglink.CheckSchema(c.Schema); rule != "" {
		wrong = append(wrong, messagestore.NewInvalidError("schema", c.Schema, rule))
	}
	if none {
		wrong = append(wrong, errNoDatabase)
	}
	return c, errors.Join(wrong...)
}

func (c Config) link() pglink.Config {
	return pglink.Config{Schema: c.Schema, Version: schemaVersion, Logger: c.Logger, KeepMemory: !c.GiveMemoryBack}
}

// Open returns a driver over a new pool, which Close closes. It connects once, and returns an error
// if the server or the schema is refused: see [ErrUnsafeSettings], [ErrNotMigrated] and
// [ErrSchemaTooNew]. The URL has the form of [pgxpool.ParseConfig], including pool_max_conns and
// similar parameters.
//
// An attempt to connect ends after 10 seconds unless the URL has connect_timeout. The connection's
// application_name is dibs unless the URL sets it. On Linux a connection is closed after the server
// has been silent for 30 seconds, elsewhere after the system's timeout; in your own pool, DialFunc
// decides that. If the URL has several hosts, Open uses the first that answers, or with
// target_session_attrs=read-write the first that is not a standby. It logs a warning if the URL
// allows an unencrypted connection to another machine. Errors do not show the URL or its password.
func Open(ctx context.Context, url string, config *Config) (*Driver, error) {
	if ctx == nil {
		return nil, fmt.Errorf("open: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	}
	c, err := configured(config, false)
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
	d := newDriver(pglink.New(pool, c.link()), c, queriesFor(c.Schema))
	d.close = pool.Close
	if err := d.with(ctx, func(DB) error { return nil }); err != nil {
		pglink.CloseWithin(ctx, pool)
		return nil, fmt.Errorf("open: %w", err)
	}
	return d, nil
}

// WatchReplication changes the configuration of a connection or a pool for [New], so that a write
// has an unknown outcome if its wait for a standby is cancelled. It matters if
// synchronous_standby_names is set: PostgreSQL reports such a write as done, with a warning that
// pgx does not show. [Open] calls it for you.
//
//	config, err := pgxpool.ParseConfig(url)
//	...
//	postgres.WatchReplication(config.ConnConfig)
//	pool, err := pgxpool.NewWithConfig(ctx, config)
//
// The configuration's own handlers of notices and new connections are still called. If you commit
// your own transaction, you have to handle the warning. WatchReplication panics if config is nil.
func WatchReplication(config *pgx.ConnConfig) {
	if config == nil {
		panic("postgres: WatchReplication of a nil configuration")
	}
	pglink.WatchReplication(config)
}

// Close closes the pool of [Open]. It waits for connections in use, up to 15 seconds if a server
// does not answer. It does not close a pool that you passed to [New], and is not needed there: the
// driver's extra connections end 10 seconds after their last use.
func (d *Driver) Close() error {
	d.close()
	d.link.CloseApart()
	return nil
}

// Connections implements [messagestore.Driver]: the size of the pool, and 1 for a connection
// or a transaction.
func (d *Driver) Connections() int { return d.link.Connections() }

// Forgets implements [messagestore.Driver]: package admin can forget keys.
func (*Driver) Forgets() bool { return true }
