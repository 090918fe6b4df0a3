package pglink

import "github.com/jackc/pgx/v5"

// Mode returns how statements are sent on a connection. A pooler such as PgBouncer in transaction
// mode may send each statement to another server. So no statement relies on an earlier PREPARE, and
// each takes one round trip. Arguments are never sent inside the text of a statement, even if the
// pool is configured for that.
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

// Arguments returns args with the mode of db's connection in front.
func (l *Link) Arguments(db DB, args []any) []any {
	conn := Conn(db)
	if conn == nil {
		return args
	}
	return append([]any{l.Mode(conn)}, args...)
}
