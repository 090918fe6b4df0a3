package sqlite

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// SQLite gives the free write lock to the first writer that asks: it has no queue, and the writer
// that has just released it can ask first. So each writer asks often while it waits, and if there
// are other writers, a writer that had the lock twice in a row pauses for longer than they do
// between two attempts. With one busy process and one other caller, the caller's longest wait fell
// from 40-70 ms to 7-10 ms.
const (
	askEvery     = time.Millisecond       // on average, while waiting
	turnPause    = 2 * time.Millisecond   // for the others
	lookEvery    = 100 * time.Millisecond // how often to skip a pause, just to see whether there are others
	othersRemain = time.Second            // how long others count as present after a sign of them
)

// turns computes how long to leave the lock to others.
type turns struct {
	commits  int64 // SQLite's count of the others' commits
	again    bool  // no other writer has had a turn since our last
	others   time.Time
	looked   time.Time
	released time.Time
}

// saw records a sign of another writer.
func (t *turns) saw(now time.Time) { t.others = now.Add(othersRemain) }

// took records that we took the lock. SQLite's data_version changes when another connection
// commits.
func (t *turns) took(dataVersion int64, now time.Time) {
	t.again = t.commits == dataVersion
	if !t.again && t.commits != 0 {
		t.saw(now)
	}
	t.commits = dataVersion
}

// pause returns how long to wait before asking for the lock.
func (t *turns) pause(now time.Time) time.Duration {
	if !t.again {
		return 0
	}
	if now.After(t.others) {
		if now.Sub(t.looked) < lookEvery {
			return 0
		}
		t.looked = now
	}
	return max(0, t.released.Add(turnPause).Sub(now))
}

func jitter(mean time.Duration) time.Duration {
	return mean/2 + rand.N(mean)
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return messagestore.NewInvalidError("context", nil, "must not be nil")
	}
	return ctx.Err()
}

// retry repeats f while the database is locked, until limit or the end of ctx. If f finds the
// database locked, it must have had no effect.
func retry(ctx context.Context, limit time.Duration, f func() error) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	begun := time.Now()
	for {
		err := f()
		if err == nil || !isBusy(err) {
			return err
		}
		if waited := time.Since(begun); waited >= limit {
			return &busyError{waited: waited, cause: err}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(jitter(askEvery)):
		}
	}
}

func connect(ctx context.Context, db *sql.DB, timeout time.Duration) (conn *sql.Conn, err error) {
	err = retry(ctx, timeout, func() error {
		conn, err = db.Conn(ctx)
		return err
	})
	return conn, err
}
