package work

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// If a store loses the answer to a write, it looks the write up and returns its place. It cannot
// know then whether this write or an earlier write with the same ids wrote it. To keep the history
// true, the drivers here report, by the context of the call, that an answer was lost.

type lostKey struct{}

func withLost(ctx context.Context) (context.Context, *atomic.Bool) {
	lost := &atomic.Bool{}
	return context.WithValue(ctx, lostKey{}, lost), lost
}

func noteLost(ctx context.Context, err error) {
	if lost, ok := ctx.Value(lostKey{}).(*atomic.Bool); ok && errors.Is(err, messagestore.ErrOutcomeUnknown) {
		lost.Store(true)
	}
}

// A losing driver wraps the writes of the next driver.
type losing struct{ next messagestore.Driver }

func (d losing) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := d.next.Append(ctx, a)
	noteLost(ctx, err)
	return written, err
}

func (d losing) AppendAll(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, error) {
	written, err := d.next.AppendAll(ctx, all)
	noteLost(ctx, err)
	return written, err
}

func (d losing) TryAppend(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	written, met, err := d.next.TryAppend(ctx, all)
	noteLost(ctx, err)
	return written, met, err
}

type (
	// The driver is embedded one level deeper than the recorder of its losses, so that the
	// recorder's methods win.
	deepPostgres struct{ *postgres.Driver }
	deepSQLite   struct{ *sqlite.Driver }

	postgresDriver struct {
		losing
		deepPostgres
	}
	sqliteDriver struct {
		losing
		deepSQLite
	}
)
