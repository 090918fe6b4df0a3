package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

var (
	_ messagestore.AtomicDriver            = (*SQLDriver)(nil)
	_ messagestore.TransactDriver[*sql.Tx] = (*SQLDriver)(nil)
)

// SQLDriver is a [Driver] over a *sql.DB: see [NewSQL].
type SQLDriver struct {
	*Driver
	db *sql.DB
}

// NewSQL returns a driver over db, whose connections have to be those of pgx's package
// stdlib, as sql.Open("pgx", url) and stdlib.OpenDBFromPool make them. With others every call
// returns an error that matches [messagestore.ErrNotSupported]. The caller keeps and closes
// db.
//
// It is for services whose own SQL goes by database/sql, GORM, sqlx or Bun. Each write is by
// itself, and the driver does not listen: of those New over a pool is faster.
func NewSQL(db *sql.DB, config *Config) *SQLDriver {
	d := New(nil, config)
	if d.invalid == nil {
		d.link = pglink.NewSQL(db, pglink.Config{Schema: d.schema, Version: schemaVersion, Logger: d.log})
	}
	return &SQLDriver{d, db}
}

// Transact implements [messagestore.TransactDriver]. It is [Driver.Transact] with a *sql.Tx,
// and differs in two ways. The look at first is a round trip of its own. And a *sql.Tx cannot
// be kept from Commit and Rollback: if f calls them, no message is written and the error
// matches [messagestore.ErrTransactionEnded], but SQL that f committed is committed.
func (d *SQLDriver) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx *sql.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	if d.invalid != nil {
		return nil, d.invalid
	}
	if f == nil {
		return nil, nil
	}
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire a connection: %w", pglink.Safe(err))
	}
	defer conn.Close()
	t := &transaction{driver: d.Driver}
	err = pglink.Raw(conn, func(c *pgx.Conn) error {
		t.conn = c
		return d.link.Check(ctx, c)
	})
	if err != nil {
		return nil, d.failed(err)
	}

	hold, tx, err := beginSQL(ctx, conn)
	if err != nil {
		return nil, d.failed(err)
	}
	defer t.finish(hold, conn, tx)
	var begun *messagestore.Message
	err = pglink.Raw(conn, func(*pgx.Conn) (err error) {
		begun, err = t.begin(ctx, "", first)
		return err
	})
	if err != nil {
		return nil, d.failed(err)
	}
	appends, failed := f(ctx, tx, begun)
	var written []messagestore.Written
	err = errors.Join(failed, errLost) // if the connection cannot be had any more
	_ = pglink.Raw(conn, func(*pgx.Conn) error {
		written, err = t.end(ctx, appends, failed, false)
		return nil
	})
	return written, err
}

// failed makes an error one that callers can match and a log may show.
func (d *SQLDriver) failed(err error) error {
	if errors.Is(err, pglink.ErrNotPgx) {
		return fmt.Errorf("%w: %w", pglink.ErrNotPgx, messagestore.ErrNotSupported)
	}
	return d.Driver.failed(err)
}

// A held is the context of a *sql.Tx. Package database/sql rolls a transaction back when its
// context ends, and discards the connection. So it is not the caller's context.
type held struct {
	context.Context
	cancel context.CancelFunc
	over   atomic.Bool
}

var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done returns a closed channel once the transaction is over.
func (h *held) Done() <-chan struct{} {
	if h.over.Load() {
		return ended
	}
	return h.Context.Done()
}

// Err returns an error once the transaction is over.
func (h *held) Err() error {
	if h.over.Load() {
		return context.Canceled
	}
	return h.Context.Err()
}

func beginSQL(ctx context.Context, conn *sql.Conn) (*held, *sql.Tx, error) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	hold := &held{Context: inner, cancel: cancel}
	stop := context.AfterFunc(ctx, cancel) // while BEGIN is under way
	tx, err := conn.BeginTx(hold, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	stop()
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	return hold, tx, nil
}

// finish rolls back a transaction that is still open, and lets package database/sql know that
// it is over.
func (t *transaction) finish(hold *held, conn *sql.Conn, tx *sql.Tx) {
	defer hold.cancel()
	open := true
	_ = pglink.Raw(conn, func(c *pgx.Conn) error {
		if c.PgConn().IsBusy() { // rows that f left open
			ctx, cancel := context.WithTimeout(hold, time.Second)
			defer cancel()
			return c.Close(ctx)
		}
		open = !c.IsClosed() && c.PgConn().TxStatus() != 'I'
		return nil
	})
	if open {
		timer := time.AfterFunc(time.Second, hold.cancel)
		defer timer.Stop()
		_ = tx.Rollback() // or f has ended it
		return
	}
	// It is over in the database. With a context that has ended pgx sends no COMMIT, which
	// the server would log as a warning.
	hold.over.Store(true)
	_ = tx.Commit()
}
