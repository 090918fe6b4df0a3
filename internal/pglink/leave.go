package pglink

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/calling"
)

// LeaveAfter closes db's connection if the caller still uses it when patience has passed since the
// end of ctx: the pool can open another connection, and the server rolls back. The caller must call
// stop after its last use of db, before it returns db to the pool.
func LeaveAfter(ctx context.Context, db DB, patience time.Duration) (stop func()) {
	conn := Conn(db)
	var mu sync.Mutex
	var timer *time.Timer
	over := false
	leave := func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		over = true
		if pooled, is := db.(*pgxpool.Conn); is {
			pooled.Hijack() // then its Release does nothing
		}
		_ = calling.Call(conn.PgConn().Conn().Close) // the only call that is safe while others use the connection
	}
	unwatch := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			timer = time.AfterFunc(patience, leave)
		}
	})
	return func() {
		unwatch()
		mu.Lock()
		defer mu.Unlock()
		if over = true; timer != nil {
			timer.Stop()
		}
	}
}
