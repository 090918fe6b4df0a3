package pglink

import "github.com/jackc/pgx/v5"

// Mode returns how statements are sent on a connection. A pooler such as PgBouncer in transaction
// mode may send each statement to another server. So no statement relies on an earlier PREPARE,
// and each takes one round trip. No statement is sent as text with its arguments in it, even if
// the pool is configured so.
func (l *Link) Mode(conn *pgx.Conn) pgx.QueryExecMode {
	if m := l.markOf(conn); m != nil {
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

// Arguments puts the mode of db's connection before the arguments of a statement.
func (l *Link) Arguments(db DB, args []any) []any {
	conn := Conn(db)
	if conn == nil {
		return args
	}
	return append([]any{l.Mode(conn)}, args...)
}
