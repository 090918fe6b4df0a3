package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNotReplicated is why the outcome of a write is unknown that the server says it
// has committed.
var errNotReplicated = errors.New("the wait for a standby was cancelled: the write may be on this server only")

// Where a connection keeps that it is watched, and that a wait was cancelled.
const (
	watchedKey   = "dibs.watched"
	cancelledKey = "dibs.wait_cancelled"
)

// WatchReplication changes the configuration of a connection that [New] will be given,
// or of the connections of a pool, so that a write whose wait for a standby is
// cancelled is an unknown outcome. It matters where synchronous_standby_names is set:
// PostgreSQL reports such a write as done, with a warning beside it that pgx does not
// show. [Open] has it done.
//
//	config, err := pgxpool.ParseConfig(url)
//	...
//	postgres.WatchReplication(config.ConnConfig)
//	pool, err := pgxpool.NewWithConfig(ctx, config)
//
// What config has for notices and new connections is called as before. A
// transaction of yours is yours to commit, and so is its warning.
func WatchReplication(config *pgx.ConnConfig) {
	onNotice, afterConnect := config.OnNotice, config.AfterConnect
	config.OnNotice = func(conn *pgconn.PgConn, notice *pgconn.Notice) {
		// Its text is in the language of the server, its code is that of any warning.
		if notice.Routine == "SyncRepWaitForLSN" {
			conn.CustomData()[cancelledKey] = true
		}
		if onNotice != nil {
			onNotice(conn, notice)
		}
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		conn.CustomData()[watchedKey] = true
		if afterConnect != nil {
			return afterConnect(ctx, conn)
		}
		return nil
	}
}

func watched(conn *pgx.Conn) bool {
	return conn != nil && conn.PgConn().CustomData()[watchedKey] != nil
}

// replicated calls f, which writes and commits, and fails if f does not but the wait
// for a standby was cancelled.
func replicated(db DB, f func() error) error {
	conn := connOf(db)
	if !watched(conn) {
		return f()
	}
	delete(conn.PgConn().CustomData(), cancelledKey) // from something else
	if err := f(); err != nil {
		return err
	}
	if conn.PgConn().CustomData()[cancelledKey] != nil {
		return errNotReplicated
	}
	return nil
}
