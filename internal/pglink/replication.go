package pglink

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotReplicated is the cause of an unknown outcome: the server has committed, and the
// standby may not have the write.
var ErrNotReplicated = errors.New("the wait for a standby was cancelled: the write may be on this server only")

// Keys of a connection's custom data.
const (
	watchedKey   = "dibs.watched"
	cancelledKey = "dibs.wait_cancelled"
)

// WatchReplication changes the configuration of a connection so that [Replicated] notices when the
// wait for a standby is cancelled: PostgreSQL reports such a write as done, with a warning that pgx
// does not show. The configuration's own handlers of notices and of new connections are still
// called.
func WatchReplication(config *pgx.ConnConfig) {
	onNotice, afterConnect := config.OnNotice, config.AfterConnect
	config.OnNotice = func(conn *pgconn.PgConn, notice *pgconn.Notice) {
		// The text is in the server's language, and all warnings have this code.
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

// Replicated calls f, which writes and commits. It returns [ErrNotReplicated] if f succeeds
// and the wait for a standby was cancelled meanwhile.
func Replicated(db DB, f func() error) error {
	conn := Conn(db)
	if !watched(conn) {
		return f()
	}
	delete(conn.PgConn().CustomData(), cancelledKey) // of an earlier call
	if err := f(); err != nil {
		return err
	}
	if conn.PgConn().CustomData()[cancelledKey] != nil {
		return ErrNotReplicated
	}
	return nil
}
