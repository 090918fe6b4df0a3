package sqlite

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// pool reads on connections that cannot write. Readers do not wait for the writer,
// nor the writer for them.
type pool struct {
	db      *sql.DB
	timeout time.Duration
	closed  atomic.Bool

	statements map[string]*sql.Stmt
}

// newPool prepares the frequent statements. database/sql prepares them again on each connection
// that needs them.
func newPool(ctx context.Context, db *sql.DB, timeout time.Duration) (*pool, error) {
	p := &pool{db: db, timeout: timeout, statements: map[string]*sql.Stmt{}}
	for _, statement := range []string{
		streamSQL, streamBackwardsSQL, lastOfTypeSQL, versionSQL, categorySQL, categoryHorizonSQL, categoryFilteredSQL,
	} {
		err := retry(ctx, timeout, func() (err error) {
			p.statements[statement], err = db.PrepareContext(ctx, statement)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pool) read(ctx context.Context, f func(context.Context, queryer) error) error {
	err := retry(ctx, p.timeout, func() error { return f(ctx, p) })
	if err != nil && p.closed.Load() {
		return messagestore.ErrClosed
	}
	return err
}

func (p *pool) alive(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if p.closed.Load() {
		return messagestore.ErrClosed
	}
	return nil
}

// ExecContext implements queryer.
func (p *pool) ExecContext(ctx context.Context, statement string, args ...any) (sql.Result, error) {
	if prepared := p.statements[statement]; prepared != nil {
		return prepared.ExecContext(ctx, args...)
	}
	return p.db.ExecContext(ctx, statement, args...)
}

// QueryContext implements queryer.
func (p *pool) QueryContext(ctx context.Context, statement string, args ...any) (*sql.Rows, error) {
	if prepared := p.statements[statement]; prepared != nil {
		return prepared.QueryContext(ctx, args...)
	}
	return p.db.QueryContext(ctx, statement, args...)
}

func (p *pool) close() error {
	p.closed.Store(true)
	return p.db.Close()
}

// reader runs functions that do not write.
type reader interface {
	read(ctx context.Context, f func(context.Context, queryer) error) error

	// alive returns the error of all calls after the end, or nil.
	alive(ctx context.Context) error
}
