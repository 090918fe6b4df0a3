package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// Driver is a [messagestore.Driver]. A driver from [Open] is safe for concurrent use, and you close
// it. A driver over a transaction has one user, like the transaction, and lives as long.
type Driver struct {
	reads  reader
	writes writes
	close  func() error

	transactions *transactions // nil over a transaction of the caller
	file         *file         // nil over a transaction of the caller
	clock        clock
	last         atomic.Pointer[overTx] // the last driver that Over has returned
}

var (
	_ messagestore.Driver                  = (*Driver)(nil)
	_ messagestore.TransactDriver[*sql.Tx] = (*Driver)(nil)
)

// Config configures a [Driver]. nil means the defaults.
type Config struct {
	// BusyTimeout is how long a call waits, at most, for writes of other processes and for
	// functions of Transact in this process.
	//
	// Defaults to 10 seconds.
	BusyTimeout time.Duration

	// MaxGroup is how many appends of concurrent callers are committed together, at most. With 1
	// each is committed alone.
	//
	// Defaults to 256.
	MaxGroup int

	// Readers is how many connections read at a time, at most.
	//
	// Defaults to 4.
	Readers int
}

func (c *Config) withDefaults() (Config, error) {
	var full Config
	if c != nil {
		full = *c
	}
	switch {
	case full.BusyTimeout < 0:
		return full, messagestore.NewInvalidError("busy timeout", full.BusyTimeout, "must be at least 0")
	case full.MaxGroup < 0:
		return full, messagestore.NewInvalidError("maximal group", full.MaxGroup, "must be at least 0")
	case full.Readers < 0:
		return full, messagestore.NewInvalidError("readers", full.Readers, "must be at least 0")
	}
	if full.BusyTimeout == 0 {
		full.BusyTimeout = 10 * time.Second
	}
	if full.MaxGroup == 0 {
		full.MaxGroup = 256
	}
	if full.Readers == 0 {
		full.Readers = 4
	}
	return full, nil
}

// New returns a driver over your transaction: its writes are committed or rolled back with the
// writes to your own tables, and it sees everything that the transaction sees. Your database needs
// the tables that [Schema] creates. The transaction may come from any driver for SQLite. If you use
// another driver than modernc.org/sqlite, do not also [Open] the file in the same process: two
// copies of SQLite in one process undo each other's locks
// (https://www.sqlite.org/howtocorrupt.html, 2.2.1).
//
//	tx, err := db.BeginTx(ctx, nil) // of a database opened with _txlock=immediate
//	...
//	_, err = tx.ExecContext(ctx, "UPDATE invoices SET paid = 1 WHERE id = ?", id)
//	...
//	driver, err := sqlite.New(tx)
//	...
//	store, err := messagestore.New(driver, nil)
//	...
//	_, err = store.Write(ctx, stream, version, Paid{})
//	...
//	err = tx.Commit()
//
// After a refused write, such as a version conflict, the transaction is unchanged and usable. After
// a failed statement, for example on a full disk, the driver writes nothing more and returns that
// error: SQLite may have rolled back the whole transaction, and later statements would be committed
// one by one.
//
// Begin the transaction with BEGIN IMMEDIATE; the drivers modernc.org/sqlite and mattn/go-sqlite3
// do it with _txlock=immediate. Otherwise a transaction that reads before it writes fails with
// [ErrBusy] if another connection has written in between, however long the busy timeout is.
//
// If the context ends, a write that has started still finishes, because cancelling it would make
// SQLite roll back the whole transaction.
//
// If tx is nil, the error matches [messagestore.ErrInvalid]. After the end of the transaction every
// call's error matches [messagestore.ErrClosed].
func New(tx *sql.Tx) (*Driver, error) {
	if tx == nil {
		return nil, fmt.Errorf("sqlite: %w", messagestore.NewInvalidError("transaction", nil, "must not be nil"))
	}
	t := transaction{newPrepared(tx), &atomic.Pointer[error]{}}
	return &Driver{reads: t, writes: t}, nil
}

// Append implements [messagestore.Driver].
func (d *Driver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := d.AppendAll(ctx, []messagestore.Append{a})
	if err != nil {
		return messagestore.Written{}, err
	}
	return written[0], nil
}

// AppendAll implements [messagestore.Driver].
func (d *Driver) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	b := newBatch(appends)
	b.clock = d.clock
	var written []messagestore.Written
	err := d.write(ctx, b, func(ctx context.Context, db queryer) (err error) {
		written, err = b.write(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	return written, nil
}

// Over implements [messagestore.Driver] for a *sql.Tx. Calls for the same transaction return the
// same driver, to share its prepared statements.
func (d *Driver) Over(_ context.Context, tx any) (messagestore.Driver, error) {
	t, is := tx.(*sql.Tx)
	if !is {
		return nil, fmt.Errorf("%w: a %T is not a *sql.Tx", messagestore.ErrNotSupported, tx)
	}
	if last := d.last.Load(); last != nil && last.tx == t {
		return last.driver, nil
	}
	over, err := New(t)
	if err != nil {
		return nil, err
	}
	over.clock = d.clock
	d.last.Store(&overTx{t, over})
	return over, nil
}

// An overTx is a caller's transaction and the driver over it.
type overTx struct {
	tx     *sql.Tx
	driver *Driver
}

// TryAppend implements [messagestore.Driver]. It reads the last messages, and the time,
// while it holds the write lock.
func (d *Driver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	b := newBatch(appends)
	b.clock = d.clock
	var written []messagestore.Written
	var met *messagestore.Conflict
	err := d.write(ctx, b, func(ctx context.Context, db queryer) (err error) {
		met = nil // forget the result of a transaction that did not happen
		if written, err = b.write(ctx, db); errors.Is(err, messagestore.ErrVersionConflict) {
			met, err = b.meet(ctx, db)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return written, met, nil
}

func (d *Driver) write(ctx context.Context, b *batch, run func(context.Context, queryer) error) error {
	return explain(d.writes.do(ctx, &job{run: run, unknown: b.unknown, size: b.size}))
}

// Transact implements [messagestore.TransactDriver] in a transaction that holds the write lock from
// its beginning (BEGIN IMMEDIATE). Other writers of this driver, and another Transact, wait while f
// runs, at most [Config.BusyTimeout]; a write by f through the same store would wait for f itself.
//
// Foreign keys of your tables are not enforced in it: SQLite enforces them only on a connection
// with PRAGMA foreign_keys = ON, set outside of a transaction
// (https://www.sqlite.org/foreignkeys.html, 2), and the driver's connections do not set it.
func (d *Driver) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx *sql.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	if d.transactions == nil {
		return nil, messagestore.ErrNotSupported
	}
	if f == nil {
		return nil, nil
	}
	written, err := d.transactions.run(ctx, first, f)
	return written, explain(err)
}

// Find implements [messagestore.Driver].
func (d *Driver) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	var found []*messagestore.Message
	err := d.writes.do(ctx, &job{
		run: func(ctx context.Context, db queryer) (err error) {
			found, err = settle(ctx, db, stream, ids)
			return err
		},
		unknown: func(cause error) error { return fmt.Errorf("find messages: %w", cause) },
	})
	if err != nil {
		return nil, explain(err)
	}
	return found, nil
}

// Now implements [messagestore.Driver] with the process's clock: SQLite has no clock, and all
// processes with the file open are on the same machine.
func (d *Driver) Now(ctx context.Context) (time.Time, error) {
	if err := d.reads.alive(ctx); err != nil {
		return time.Time{}, err
	}
	return d.clock.now(), nil
}

// Close waits for the commit or the Transact that is under way, and closes the file. Calls that
// wait, and later calls, return [messagestore.ErrClosed]. You may call it more than once. Over a
// transaction it does nothing: the transaction is yours.
func (d *Driver) Close() error {
	if d.close == nil {
		return nil
	}
	return d.close()
}

// Connections implements [messagestore.Driver]. It returns 0, no bound for callers, because calls
// wait for each other inside the driver.
func (*Driver) Connections() int { return 0 }

// Epoch implements [messagestore.Driver]: a file has no epoch.
func (*Driver) Epoch(context.Context) (string, error) { return "", nil }

// Listen implements [messagestore.Driver]. It is not supported: SQLite does not notify processes.
func (*Driver) Listen(context.Context, func(messagestore.Category, messagestore.GlobalPosition)) error {
	return messagestore.ErrNotSupported
}
