package work

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A store that loses the answer to a write looks the write up, and says where it is. It
// then cannot tell whether it was this write or an earlier one with the same ids. So that
// this is no lie in the history, the drivers here tell, by the context of the call, that an
// answer was lost.

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

// A losing driver has the writes of the one that it is for.
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
	// A driver is one level deeper than what notes its losses, which goes first.
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
