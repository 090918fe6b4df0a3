package pglink

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/failure"
)

// LeaveAfter has db's connection closed if the caller still uses it when so long has passed since
// the end of ctx: a pool has its place again, and the server rolls back. The caller calls stop when
// it uses db no more, before it gives it back.
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
			pooled.Hijack() // its Release does nothing then
		}
		_ = failure.Call(conn.PgConn().Conn().Close) // alone of all that a connection has, it may be called beside other calls
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
