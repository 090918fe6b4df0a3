package pglink

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/calling"
)

// The limits of the connections outside of a pool.
const (
	// mostApart bounds the extra connections. There are two, so that a call that waits for a lock
	// does not hold up all others.
	mostApart = 2

	// apartLinger is how long an extra connection stays open after its last use.
	apartLinger = 10 * time.Second

	// apartPing is how long a connection may be unused before it is pinged, like pgx does for a
	// pool.
	apartPing = time.Second

	// fullLook is how often a call that waits for the pool checks whether callers hold all its
	// connections.
	fullLook = 50 * time.Millisecond
)

// An apart has the connections outside of a pool. They are for upkeep while callers hold the whole
// pool, and are made when first needed.
type apart struct {
	turns chan struct{} // holds a token for each connection that may be used

	mu     sync.Mutex
	idle   []apartConn
	linger *time.Timer // until the idle connections are closed
}

// An apartConn is an extra connection.
type apartConn struct {
	*pgx.Conn
	made, used time.Time
}

func newApart() *apart {
	a := &apart{turns: make(chan struct{}, mostApart)}
	for range mostApart {
		a.turns <- struct{}{}
	}
	return a
}

// onPool calls f with a connection of the pool. While callers hold all of them, upkeep does not
// wait but gets an extra connection.
func (l *Link) onPool(ctx context.Context, f func(db DB) error) error {
	if !calling.CallerOf(ctx).Upkeep {
		conn, err := l.pool.Acquire(ctx)
		if err != nil {
			return l.Exhausted(AcquireFailed(err))
		}
		defer conn.Release()
		return f(conn)
	}
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	if !l.full() {
		stop := l.whenFull(waits, cancel)
		conn, err := l.pool.Acquire(waits)
		stop()
		if err == nil {
			defer conn.Release()
			return f(conn)
		}
		if ctx.Err() != nil || waits.Err() == nil {
			return l.Exhausted(AcquireFailed(err))
		}
	}
	return l.onApart(ctx, f)
}

// full reports whether callers hold the whole pool.
func (l *Link) full() bool {
	stat := l.pool.Stat()
	return stat.AcquiredConns() >= stat.MaxConns()
}

// whenFull calls cancel when callers hold the whole pool, until stop is called.
func (l *Link) whenFull(ctx context.Context, cancel func()) (stop func()) {
	ended := make(chan struct{})
	ctx, stopped := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		ticker := time.NewTicker(fullLook)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if l.full() {
					cancel()
					return
				}
			}
		}
	}()
	return func() {
		stopped()
		<-ended
	}
}

// Exhausted extends the error of a context that has ended while a call waited: if callers hold the
// whole pool, the error says so.
func (l *Link) Exhausted(err error) error {
	stat := l.pool.Stat()
	return exhausted(err, int(stat.AcquiredConns()), int(stat.MaxConns()), adviceOfPool)
}

// onApart calls f with an extra connection.
func (l *Link) onApart(ctx context.Context, f func(db DB) error) error {
	select {
	case <-l.apart.turns:
	case <-ctx.Done():
		return l.Exhausted(fmt.Errorf("acquire a connection: %w", ctx.Err()))
	}
	defer func() { l.apart.turns <- struct{}{} }()
	conn, err := l.takeApart(ctx)
	if err != nil {
		stat := l.pool.Stat()
		return fmt.Errorf("all connections of the pool are in use (%d of %d), and none beside it could be made: %w", stat.AcquiredConns(), stat.MaxConns(), err)
	}
	defer func() { l.giveApart(ctx, conn) }()
	return f(conn.Conn)
}

// takeApart returns an idle connection that works, or a new connection.
func (l *Link) takeApart(ctx context.Context) (apartConn, error) {
	for {
		l.apart.mu.Lock()
		n := len(l.apart.idle)
		if n == 0 {
			l.apart.mu.Unlock()
			break
		}
		conn := l.apart.idle[n-1]
		l.apart.idle = l.apart.idle[:n-1]
		l.apart.mu.Unlock()
		if time.Since(conn.used) < apartPing || conn.Ping(ctx) == nil {
			return conn, nil
		}
		HangUp(ctx, conn.Conn)
	}
	conn, _, err := l.ConnectApart(ctx)
	return apartConn{Conn: conn, made: time.Now()}, err
}

// giveApart keeps a connection for the next call, unless it is broken or older than the pool's
// maximum. After a long write pgx may still be reading in a goroutine; giveApart ends that.
func (l *Link) giveApart(ctx context.Context, conn apartConn) {
	syncing, cancel := context.WithTimeout(context.WithoutCancel(ctx), apartPing)
	defer cancel()
	if conn.IsClosed() || conn.PgConn().TxStatus() != 'I' || time.Since(conn.made) > l.pool.Config().MaxConnLifetime ||
		conn.PgConn().SyncConn(syncing) != nil {
		HangUp(ctx, conn.Conn)
		return
	}
	conn.used = time.Now()
	l.apart.mu.Lock()
	defer l.apart.mu.Unlock()
	l.apart.idle = append(l.apart.idle, conn)
	if l.apart.linger != nil {
		l.apart.linger.Stop()
	}
	l.apart.linger = time.AfterFunc(apartLinger, func() {
		_ = calling.Call(func() error { l.CloseApart(); return nil })
	})
}

// CloseApart closes the extra connections that are not in use.
func (l *Link) CloseApart() {
	l.apart.mu.Lock()
	idle := l.apart.idle
	l.apart.idle = nil
	if l.apart.linger != nil {
		l.apart.linger.Stop()
	}
	l.apart.mu.Unlock()
	for _, conn := range idle {
		HangUp(context.Background(), conn.Conn)
	}
}

// Connections returns how many connections calls may have at a time, 0 for any number.
func (l *Link) Connections() int {
	switch {
	case l.pool != nil:
		return int(l.pool.Stat().MaxConns())
	case l.sql != nil:
		return l.sql.Stats().MaxOpenConnections
	}
	return 1
}
