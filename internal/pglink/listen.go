package pglink

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// ConnectApart makes a connection outside of the pool, with the pool's configuration, for a session
// that keeps its connection, like LISTEN. pooled reports whether it goes through a pooler, which
// keeps no session. The link must be over a pool.
func (l *Link) ConnectApart(ctx context.Context) (conn *pgx.Conn, pooled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config := l.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, false, Safe(err)
		}
	}
	config.ConnConfig.OnNotification = nil // the pool's handler is for the pool's connections
	conn, err = pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, false, Safe(err)
	}
	if config.AfterConnect != nil {
		err = config.AfterConnect(ctx, conn)
	}
	var m *mark
	if err == nil {
		m, err = l.check(ctx, conn)
	}
	if err != nil {
		HangUp(ctx, conn)
		return nil, false, Failed(err)
	}
	return conn, m.pooled, nil
}

// HangUp closes a connection. It waits at most a second for the server.
func HangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	conn.Close(ctx)
}
