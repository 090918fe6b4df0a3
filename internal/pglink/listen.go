package pglink

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// ConnectApart makes a connection as the pool makes its own, and not one of them. It is for
// a session that keeps its connection, as LISTEN does. pooled reports whether it goes
// through a pooler, where no session is kept. The link has to be over a pool.
func (l *Link) ConnectApart(ctx context.Context) (conn *pgx.Conn, pooled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config := l.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, false, Safe(err)
		}
	}
	config.ConnConfig.OnNotification = nil // the pool's handler is for its own connections
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

// HangUp closes a connection. It says goodbye to the server if that takes no longer than a
// second.
func HangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	conn.Close(ctx)
}
