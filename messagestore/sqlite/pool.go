package sqlite

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"
)

// pool reads on connections that cannot write. Readers do not wait for the writer,
// nor the writer for them.
type pool struct {
	db      *sql.DB
	timeout time.Duration
	closed  atomic.Bool

	mu         sync.RWMutex
	statements map[string]*sql.Stmt
}

func (p *pool) read(ctx context.Context, f func(context.Context, queryer) error) error {
	err := retry(ctx, p.timeout, func() error { return f(ctx, p) })
	if err != nil && p.closed.Load() {
		return ErrClosed
	}
	return err
}

func (p *pool) prepare(ctx context.Context, statement string) (*sql.Stmt, error) {
	p.mu.RLock()
	prepared := p.statements[statement]
	p.mu.RUnlock()
	if prepared != nil {
		return prepared, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if prepared = p.statements[statement]; prepared != nil {
		return prepared, nil
	}
	prepared, err := p.db.PrepareContext(ctx, statement)
	if err != nil {
		return nil, err
	}
	if p.statements == nil {
		p.statements = map[string]*sql.Stmt{}
	}
	p.statements[statement] = prepared
	return prepared, nil
}

// ExecContext implements queryer.
func (p *pool) ExecContext(ctx context.Context, statement string, args ...any) (sql.Result, error) {
	prepared, err := p.prepare(ctx, statement)
	if err != nil {
		return nil, err
	}
	return prepared.ExecContext(ctx, args...)
}

// QueryContext implements queryer.
func (p *pool) QueryContext(ctx context.Context, statement string, args ...any) (*sql.Rows, error) {
	prepared, err := p.prepare(ctx, statement)
	if err != nil {
		return nil, err
	}
	return prepared.QueryContext(ctx, args...)
}

func (p *pool) close() error {
	p.closed.Store(true)
	return p.db.Close()
}
