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

type postgresDriver struct{ *postgres.Driver }

func (d postgresDriver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := d.Driver.Append(ctx, a)
	noteLost(ctx, err)
	return written, err
}

func (d postgresDriver) AppendAll(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, error) {
	written, err := d.Driver.AppendAll(ctx, all)
	noteLost(ctx, err)
	return written, err
}

func (d postgresDriver) TryAppend(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	written, met, err := d.Driver.TryAppend(ctx, all)
	noteLost(ctx, err)
	return written, met, err
}

type sqliteDriver struct{ *sqlite.Driver }

func (d sqliteDriver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := d.Driver.Append(ctx, a)
	noteLost(ctx, err)
	return written, err
}

func (d sqliteDriver) AppendAll(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, error) {
	written, err := d.Driver.AppendAll(ctx, all)
	noteLost(ctx, err)
	return written, err
}

func (d sqliteDriver) TryAppend(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	written, met, err := d.Driver.TryAppend(ctx, all)
	noteLost(ctx, err)
	return written, met, err
}
