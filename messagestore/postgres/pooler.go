package postgres

import "github.com/jackc/pgx/v5"

// mode returns how statements are sent. A pooler such as PgBouncer in transaction
// mode may send each to another server, so none may count on one that was prepared
// before, nor need two round trips. And none is sent as text with its arguments in
// it, for which a pool may be configured.
func (d *Driver) mode(conn *pgx.Conn) pgx.QueryExecMode {
	if m := d.markOf(conn); m != nil {
		return m.mode
	}
	return modeFor(conn, false)
}

func modeFor(conn *pgx.Conn, pooled bool) pgx.QueryExecMode {
	config := conn.Config()
	unnamed := pgx.QueryExecModeCacheDescribe
	if config.DescriptionCacheCapacity <= 0 {
		unnamed = pgx.QueryExecModeExec
	}
	switch mode := config.DefaultQueryExecMode; mode {
	case pgx.QueryExecModeSimpleProtocol:
		return unnamed
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec:
		if pooled {
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
