package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// mode returns how statements are sent. A pooler such as PgBouncer in transaction
// mode may send each to another server, so none may count on one that was prepared
// before, nor need two round trips. And none is sent as text with its arguments in
// it, for which a pool may be configured.
func (d *Driver) mode(conn *pgx.Conn) pgx.QueryExecMode {
	config := conn.Config()
	unnamed := pgx.QueryExecModeCacheDescribe
	if config.DescriptionCacheCapacity <= 0 {
		unnamed = pgx.QueryExecModeExec
	}
	switch mode := config.DefaultQueryExecMode; mode {
	case pgx.QueryExecModeSimpleProtocol:
		return unnamed
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec:
		if m := d.markOf(conn); m != nil && m.pooled {
			return unnamed
		}
		return mode
	default:
		return mode
	}
}

// arguments puts the mode before args that a statement has to be sent in.
func (d *Driver) arguments(db DB, args []any) []any {
	conn := connOf(db)
	if conn == nil {
		return args
	}
	return append([]any{d.mode(conn)}, args...)
}

// A batch is one statement, with several lists of arguments, that is sent in one
// round trip and executed in one transaction.
type batch struct {
	sql  string
	args [][]any
}

// send sends a batch, and calls each with the rows of each of its statements. It
// returns nil only if the transaction was committed.
func (d *Driver) send(ctx context.Context, conn *pgx.Conn, b batch, each func(i int, rows pgx.Rows) error) error {
	if mode := d.mode(conn); mode != conn.Config().DefaultQueryExecMode {
		return b.sendUnprepared(ctx, conn, each)
	}
	prepared := &pgx.Batch{}
	for _, args := range b.args {
		prepared.Queue(b.sql, args...)
	}
	results := conn.SendBatch(ctx, prepared)
	for i := range b.args {
		rows, err := results.Query() //nolint:rowserrcheck // each does
		if err == nil {
			err = each(i, rows)
		}
		if err != nil {
			results.Close() // it would say the same
			return err
		}
	}
	return results.Close() // the outcome is known only when the commit has been answered
}

// sendUnprepared does it in a way that pgx has, but not for one batch.
func (b batch) sendUnprepared(ctx context.Context, conn *pgx.Conn, each func(i int, rows pgx.Rows) error) error {
	var statement pgx.ExtendedQueryBuilder
	unprepared := &pgconn.Batch{}
	for _, args := range b.args {
		if err := statement.Build(conn.TypeMap(), nil, args); err != nil {
			return err
		}
		unprepared.ExecParams(b.sql, statement.ParamValues, nil, statement.ParamFormats, statement.ResultFormats)
	}
	results := conn.PgConn().ExecBatch(ctx, unprepared)
	for i := 0; results.NextResult(); i++ {
		rows := pgx.RowsFromResultReader(conn.TypeMap(), results.ResultReader()) //nolint:rowserrcheck // each does
		if err := each(i, rows); err != nil {
			results.Close() // it would say the same
			return err
		}
	}
	return results.Close()
}
