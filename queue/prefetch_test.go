package queue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// prefetching calls f with a queue of n items, of which a worker with a prefetch of 100 handles each for as long as takes
// says, four at a time. It returns how many handlers were called. Time passes only while f waits.
func prefetching(t *testing.T, n int, takes func(nth int64) time.Duration, f func(q *queue.Queue, stop context.CancelFunc)) (called int64) {
	t.Helper()
	return prefetchingOn(t, memory.New(), n, takes, f)
}

func prefetchingOn(t *testing.T, driver messagestore.Driver, n int, takes func(nth int64) time.Duration, f func(q *queue.Queue, stop context.CancelFunc)) (called int64) {
	t.Helper()
	store := testkit.Must(messagestore.New(driver, nil))
	q := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	for range n {
		insert(t, q, Send{To: "ann"}, nil)
	}
	var running, count atomic.Int64
	handle := func(ctx context.Context, _ *messagestore.Message) error {
		defer running.Add(-1)
		if running.Add(1) > 4 {
			t.Error("more than four handlers at a time")
		}
		select {
		case <-time.After(takes(count.Add(1))):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- q.Work(ctx, handler.HandlerFunc(handle), &queue.WorkConfig{MaxWorkers: 4, Prefetch: 100, PollInterval: time.Hour, Lease: time.Hour, Timeout: 24 * time.Hour})
	}()
	f(q, stop)
	stop()
	require.NoError(t, <-ended)
	return count.Load()
}

func always(d time.Duration) func(int64) time.Duration { return func(int64) time.Duration { return d } }

func outOf(t *testing.T, q *queue.Queue) int64 {
	t.Helper()
	status, err := q.Status(t.Context())
	require.NoError(t, err)
	return status.Out
}

// As many items are reserved as handlers return from in 100 ms, up to Prefetch, and all that handlers are called with.
func TestAWorkerReservesAsManyItemsAsItHandles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ takes, least, most time.Duration }{
		{takes: time.Millisecond, least: 100, most: 100}, {takes: 20 * time.Millisecond, least: 16, most: 24}, {takes: time.Second, least: 4, most: 4},
	} {
		t.Run(c.takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				called := prefetching(t, 5000, always(c.takes), func(q *queue.Queue, _ context.CancelFunc) {
					most := int64(0)
					for range 100 {
						time.Sleep(9900 * time.Microsecond)
						synctest.Wait()
						most = max(most, outOf(t, q))
					}
					require.GreaterOrEqual(t, most, int64(c.least))
					require.LessOrEqual(t, most, int64(c.most))
				})
				require.InDelta(t, 4*time.Second/c.takes, called, float64(4*time.Second/c.takes)/20+4, "no handler waits for a take")
			})
		})
	}
}

// A takingDriver counts takes, each of which takes a millisecond.
type takingDriver struct {
	queuing.Driver

	takes atomic.Int64
}

func (d *takingDriver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	d.takes.Add(1)
	time.Sleep(time.Millisecond)
	return d.Driver.QueueTake(ctx, t)
}

// Handlers return from four items in a millisecond. While they have more ahead of them, a take is for some 50 items, and not
// for the four that have ended since the last one.
func TestATakeIsForManyItemsWhileHandlersHaveEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := &takingDriver{Driver: memory.New()}
		called := prefetchingOn(t, driver, 5000, always(time.Millisecond), func(q *queue.Queue, _ context.CancelFunc) {
			time.Sleep(time.Second)
			driver.takes.Store(0) // it has begun with takes for four
			time.Sleep(200 * time.Millisecond)
			require.Less(t, driver.takes.Load(), int64(60))
		})
		require.InDelta(t, 4800, called, 200, "no handler waits for a take")
	})
}

// What is reserved and was given to no handler is given back by a stop, at once and without a failure.
func TestAStopGivesBackWhatIsPrefetched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		called := prefetching(t, 500, always(time.Millisecond), func(q *queue.Queue, stop context.CancelFunc) {
			time.Sleep(50*time.Millisecond + 500*time.Microsecond)
			synctest.Wait()
			require.Greater(t, outOf(t, q), int64(50))
			stop()
			synctest.Wait()
			require.EqualValues(t, 4, outOf(t, q))
			later, err := q.Items(t.Context(), queue.Later, 0, 1000)
			require.NoError(t, err)
			require.Greater(t, len(later), 50)
			for _, item := range later {
				require.Zero(t, item.Failures)
				require.Equal(t, 1, item.Version)
			}
		})
		require.Less(t, called, int64(250))
	})
}

// What an operator cancels while it is reserved, and no handler has it, is not handled.
func TestAPrefetchedItemThatIsLostIsNotHandled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		takes := func(nth int64) time.Duration {
			if nth > 200 {
				return 10 * time.Hour
			}
			return time.Millisecond
		}
		called := prefetching(t, 300, takes, func(q *queue.Queue, _ context.CancelFunc) {
			time.Sleep(time.Second)
			synctest.Wait()
			require.EqualValues(t, 200, q.Counts().Completed, "what has ended is told though handlers have enough")
			out, err := q.Items(t.Context(), queue.Out, 0, 1000)
			require.NoError(t, err)
			require.Len(t, out, 100)
			for _, item := range out {
				_, err := q.Cancel(t.Context(), "not needed", item.Position)
				require.NoError(t, err)
			}
			time.Sleep(time.Hour) // the session is extended meanwhile
			synctest.Wait()
			require.EqualValues(t, 100, q.Counts().Lost)
		})
		require.EqualValues(t, 204, called)
	})
}
