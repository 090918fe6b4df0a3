package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/exactjson"
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

var _ messagestore.Driver = (*Driver)(nil)

// writes runs a job in a transaction that can write: the writer's next one, or the caller's.
type writes interface {
	do(ctx context.Context, j *job) error
}

// A job is one call's part of a transaction. It may run again if the transaction did not happen.
type job struct {
	run func(ctx context.Context, db queryer) error

	// unknown makes the call's error if nobody knows whether the transaction was committed.
	unknown func(cause error) error

	size int // bytes that it writes, roughly
}

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
		return full, messagestore.NewInvalidError("busy timeout", full.BusyTimeout, "it is less than 0")
	case full.MaxGroup < 0:
		return full, messagestore.NewInvalidError("maximal group", full.MaxGroup, "it is less than 0")
	case full.Readers < 0:
		return full, messagestore.NewInvalidError("readers", full.Readers, "it is less than 0")
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
	err := d.write(ctx, b, func(ctx context.Context, db queryer) error {
		var err error
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
		return nil, fmt.Errorf("%w: a %T is no *sql.Tx", messagestore.ErrNotSupported, tx)
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

var errNoTransaction = fmt.Errorf("%w: the store is over no transaction of the caller's (sqlite.New(tx))", messagestore.ErrNotSupported)

// Stage implements [messagestore.Driver]. It appends the message at once, because the transaction
// holds the write lock anyway.
func (d *Driver) Stage(ctx context.Context, a messagestore.Append) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if d.transactions != nil {
		return errNoTransaction
	}
	_, met, err := d.TryAppend(ctx, []messagestore.Append{a})
	if err != nil || met == nil {
		return err
	}
	conflict := &messagestore.VersionConflictError{Stream: a.Stream, Expected: a.Expected, Actual: messagestore.NoStream}
	if last := met.Last[0]; last != nil {
		conflict.Actual = last.Position
	}
	if a.Expected != messagestore.NoStream {
		return conflict
	}
	first, err := d.ReadStream(ctx, messagestore.StreamQuery{Stream: a.Stream, Limit: 1})
	if err != nil {
		return err
	}
	if len(first) == 1 && first[0].Position == 0 && first[0].Type == a.Records[0].Type && exactjson.Equal(first[0].Data, a.Records[0].Data) {
		return nil
	}
	return conflict
}

// TryAppend implements [messagestore.Driver]. It reads the last messages, and the time,
// while it holds the write lock.
func (d *Driver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	b := newBatch(appends)
	b.clock = d.clock
	var written []messagestore.Written
	var met *messagestore.Conflict
	err := d.write(ctx, b, func(ctx context.Context, db queryer) error {
		var err error
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

// Find implements [messagestore.Driver].
func (d *Driver) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	var found []*messagestore.Message
	err := d.writes.do(ctx, &job{
		run: func(ctx context.Context, db queryer) error {
			var err error
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
