package sqlite

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// SQLite gives the write lock to the first writer that asks once it is free: there is no queue,
// and the writer that has just released it is the first to ask again. So each writer asks often
// while it waits, and a writer that had the lock twice in a row leaves it alone for longer than
// the others' pauses between two questions, if there are others. Measured with one busy process
// beside a caller alone: that caller's longest wait fell from 40-70 ms to 7-10 ms.
const (
	askEvery     = time.Millisecond       // on average, while waiting
	turnPause    = 2 * time.Millisecond   // for the others
	lookEvery    = 100 * time.Millisecond // how often to leave a pause just to see whether there are others
	othersRemain = time.Second            // how long others count as there once seen
)

// turns tells how long to leave the lock alone.
type turns struct {
	commits  int64 // SQLite's count of the others' commits
	again    bool  // no other writer has had a turn since the last of ours
	others   time.Time
	looked   time.Time
	released time.Time
}

// saw notes a sign of another writer.
func (t *turns) saw(now time.Time) { t.others = now.Add(othersRemain) }

// took notes that the lock was taken. SQLite's data_version moves when another
// connection commits.
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
		return messagestore.NewInvalidError("context", nil, "it is nil")
	}
	return ctx.Err()
}

// retry repeats f while it finds the database locked, until limit or the end of ctx. A refused
// f must have had no effect.
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
