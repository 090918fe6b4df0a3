package postgres

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// DB is the database of a driver: a [*pgxpool.Pool], a [*pgxpool.Conn], a [*pgx.Conn] or a
// [pgx.Tx].
type DB = pglink.DB

// A database is what all parts of a driver share. It has a connection for each call.
type database struct {
	link    *pglink.Link
	queries *queries
	fences  fences
}

// with calls f with a connection or transaction that only f uses meanwhile, on a server that passed
// the checks.
func (b *database) with(ctx context.Context, f func(db DB) error) error {
	if ctx == nil {
		return messagestore.NewInvalidError("context", nil, "must not be nil")
	}
	if b.onlyConnection(ctx) {
		return errOnlyConnection
	}
	return matched(b.link.With(ctx, f))
}

func (b *database) query(ctx context.Context, sql string, args []any, each func(pgx.Rows) error) error {
	return b.reads(ctx, func(db DB) error {
		return failed(b.link.Read(ctx, db, sql, args, each))
	})
}

// A held connection is that of a transaction of [Driver.Transact], while its function f runs.
type held struct {
	conn *pgx.Conn
	tx   *pglink.Tx // passed to f; nil for a *sql.Tx, which has begun

	turn sync.Mutex // held by the caller that uses the connection
	over bool       // f has returned
}

// heldKey is the key of a database's held connection in the context of f.
type heldKey struct{ of *database }

// reads calls f with a connection for reading: if ctx belongs to the function of a transaction
// under way, the transaction's connection.
func (b *database) reads(ctx context.Context, f func(db DB) error) error {
	h, is := ctx.Value(heldKey{b}).(*held)
	if !is {
		return b.with(ctx, f)
	}
	h.turn.Lock()
	if h.over {
		h.turn.Unlock()
		return b.with(ctx, f)
	}
	defer h.turn.Unlock()
	if h.tx != nil {
		if err := h.tx.Start(ctx); err != nil {
			return failed(err)
		}
	}
	return f(h.conn)
}

// onlyConnection reports whether ctx belongs to a running function of [Driver.Transact] that holds
// the only connection: a call that takes a connection would wait for the function, and the function
// for the call. Upkeep has its own goroutine and, over a pool, its own connection.
func (b *database) onlyConnection(ctx context.Context) bool {
	h, is := ctx.Value(heldKey{b}).(*held)
	if !is || calling.CallerOf(ctx).Upkeep || b.link.Connections() != 1 {
		return false
	}
	h.turn.Lock()
	defer h.turn.Unlock()
	return !h.over
}

var errOnlyConnection = errors.New("the transaction of this function has the only connection, and the call needs another: " +
	"return the messages from the function, or give the pool more connections")

// atReadCommitted calls f with a transaction at that level, and commits it.
func atReadCommitted(ctx context.Context, db DB, f func(tx DB) error) error {
	tx, err := pglink.Begin(ctx, db)
	if err != nil {
		return err
	}
	defer pglink.RollBack(ctx, tx)
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
