package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// queryer runs statements: a [*sql.Tx], a [*sql.Conn], or either with prepared statements.
type queryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// prepared prepares each statement once, for the life of its connection or transaction. It has one
// user.
type prepared struct {
	on         preparer
	statements map[string]*sql.Stmt
}

type preparer interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

func newPrepared(on preparer) *prepared {
	return &prepared{on: on, statements: map[string]*sql.Stmt{}}
}

// ExecContext implements queryer.
func (p *prepared) ExecContext(ctx context.Context, statement string, args ...any) (sql.Result, error) {
	s, err := p.prepare(ctx, statement)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

// QueryContext implements queryer.
func (p *prepared) QueryContext(ctx context.Context, statement string, args ...any) (*sql.Rows, error) {
	s, err := p.prepare(ctx, statement)
	if err != nil {
		return nil, err
	}
	return s.QueryContext(ctx, args...)
}

func (p *prepared) prepare(ctx context.Context, statement string) (*sql.Stmt, error) {
	if s := p.statements[statement]; s != nil {
		return s, nil
	}
	s, err := p.on.PrepareContext(ctx, statement)
	if err != nil {
		return nil, err
	}
	p.statements[statement] = s
	return s, nil
}

// A connection is the only one of its user. It is empty before the first use and after a failure.
type connection struct {
	conn *sql.Conn
	on   *prepared
}

// drop closes the connection, which ends its transaction. The next use opens another.
func (c *connection) drop() {
	if c.conn == nil {
		return
	}
	_ = c.conn.Raw(func(any) error { return driver.ErrBadConn }) // so that the pool does not keep it
	_ = c.conn.Close()                                           // Raw has closed it
	*c = connection{}
}
