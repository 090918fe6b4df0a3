package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/queue"
)

// ends are the ways in which a handler ends its job.
var ends = map[string]func(ctx context.Context, j *queue.Job) error{
	"complete": func(ctx context.Context, j *queue.Job) error { return j.Complete(ctx) },
	"retry":    func(ctx context.Context, j *queue.Job) error { return j.Retry(ctx, time.Hour, errors.New("later")) },
	"defer":    func(ctx context.Context, j *queue.Job) error { return j.Defer(ctx, time.Hour) },
	"bury":     func(ctx context.Context, j *queue.Job) error { return j.Bury(ctx, errors.New("never")) },
}

// A handler that waits for the answer to the end of its job knows when its session has ended.
func TestALeaseThatEndsWhileAJobIsEndedEndsTheHandler(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
				const lease = 10 * time.Second
				type over struct {
					cause error
					after time.Duration
				}
				ended := make(chan over, 10)
				working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
					driver.set(is("take", "extend"), nil)
					began := time.Now()
					go func() { _ = end(context.WithoutCancel(ctx), queue.JobOf(ctx)) }()
					<-ctx.Done()
					ended <- over{context.Cause(ctx), time.Since(began)}
					driver.set(nil, nil)
					return nil
				}, &queue.WorkConfig{Lease: lease})
				insert(t, q, Send{}, nil)

				first := <-ended
				require.ErrorIs(t, first.cause, queue.ErrLost)
				require.Less(t, first.after, lease)
			})
		})
	}
}

// A job that an operator has taken away in the meantime is over for the handler that is told so.
func TestAJobWhoseEndIsToldToBeLostEndsTheHandler(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
				handled := make(chan error, 10)
				working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
					_, err := q.Cancel(ctx, "not wanted", m.GlobalPosition)
					if err == nil {
						err = end(ctx, queue.JobOf(ctx))
					}
					if errors.Is(err, queue.ErrLost) {
						err = context.Cause(ctx)
					}
					handled <- err
					return nil
				}, &queue.WorkConfig{Lease: time.Hour})
				insert(t, q, Send{}, nil)

				require.ErrorIs(t, <-handled, queue.ErrLost)
			})
		})
	}
}

// What was reserved so long ago that its lease may be over is handled by nobody, unless the store says that it is the
// session's still.
func TestATakeThatIsAnsweredAfterItsLeaseStartsNoHandler(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const lease = 10 * time.Second
		insert(t, q, Send{}, nil)
		driver.delay("take", lease+time.Second)
		var handled seen
		working(t, q, func(context.Context, handler.Message[Send]) error {
			handled.add("mail")
			return nil
		}, &queue.WorkConfig{Lease: lease})

		time.Sleep(lease + 2*time.Second)
		synctest.Wait()
		require.Empty(t, handled.list(), "its lease was over when the take was answered")
		driver.delay("take", 0)

		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"mail"}, handled.list())
	})
}

// What a take reserved for a session that its process has given up in the meantime is another's, or will be, also while the
// session that follows is extended.
func TestATakeForASessionThatWasGivenUpStartsNoHandler(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const lease = 10 * time.Second
		deliveries := make(chan int, 10)
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			if m.Body.To == "first" {
				time.Sleep(time.Second)
				_ = queue.JobOf(ctx).Complete(context.WithoutCancel(ctx)) // reported with the next take
				return nil
			}
			deliveries <- queue.JobOf(ctx).Deliveries
			return nil
		}, &queue.WorkConfig{Lease: lease, Timeout: time.Hour})
		insert(t, q, Send{To: "first"}, nil)
		synctest.Wait()

		driver.delay("take", lease*3/2)
		driver.set(is("extend"), nil)
		insert(t, q, Send{To: "second"}, nil)
		time.Sleep(lease + time.Second) // the session is given up
		driver.set(nil, nil)
		driver.mu.Lock()
		driver.late["extend"] = lease / 2 // the one that is under way when the take is answered
		driver.mu.Unlock()
		time.Sleep(lease)
		driver.delay("take", 0)

		require.Positive(t, <-deliveries, "it is begun under its next version")
	})
}

// A process that was stopped may send an extension before it takes in the answer of a take that it sent before. The session was
// over, as the extension is told of what it names: what the take had reserved is another's too.
func TestAnExtensionOfASessionThatWasOverStartsNoHandler(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const lease = 10 * time.Second
		deliveries := make(chan int, 10)
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			if m.Body.To == "first" {
				<-ctx.Done()
				return nil
			}
			deliveries <- queue.JobOf(ctx).Deliveries
			return nil
		}, &queue.WorkConfig{Lease: lease, Timeout: time.Hour})
		insert(t, q, Send{To: "first"}, nil)
		time.Sleep(lease / 10)

		driver.mu.Lock()
		driver.late = map[string]time.Duration{"take": lease * 5 / 2, "extend": 2 * lease} // the process is stopped
		driver.mu.Unlock()
		insert(t, q, Send{To: "second"}, nil)
		time.Sleep(lease)
		driver.mu.Lock()
		driver.late["extend"] = lease * 4 / 10 // of the first that is sent when it goes on: the take is answered meanwhile
		driver.mu.Unlock()
		time.Sleep(lease)
		driver.mu.Lock()
		driver.late["take"] = 0
		driver.mu.Unlock()

		require.Positive(t, <-deliveries, "it is begun under its next version")
		synctest.Wait()
		require.Empty(t, deliveries, "and once")
	})
}

// What was begun while an extension was under way is lost with the session, too, as that could not be extended.
func TestAFailedExtensionEndsTheHandlersThatItDidNotName(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const lease = 10 * time.Second
		ended := make(chan time.Duration, 10)
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			began := time.Now()
			<-ctx.Done()
			if m.Body.To == "second" {
				ended <- time.Since(began)
			}
			return nil
		}, &queue.WorkConfig{Lease: lease, Timeout: time.Hour})
		insert(t, q, Send{To: "first"}, nil)
		time.Sleep(lease / 2)
		driver.set(nil, is("extend"))
		driver.delay("extend", lease*65/100)
		time.Sleep(lease / 5)
		insert(t, q, Send{To: "second"}, nil) // while the second extension is under way

		require.Less(t, <-ended, lease*9/10)
	})
}

// A take that is answered late and in time starts its handlers once the store has said that the session goes on.
func TestATakeThatIsAnsweredLateIsHandledOnceItsLeaseIsCertain(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const lease = 10 * time.Second
		insert(t, q, Send{}, nil)
		driver.delay("take", lease*8/10)
		began := time.Now()
		handled := make(chan time.Duration, 10)
		working(t, q, func(context.Context, handler.Message[Send]) error {
			driver.delay("take", 0)
			handled <- time.Since(began)
			return nil
		}, &queue.WorkConfig{Lease: lease})

		require.Less(t, <-handled, lease, "and not after the lease is over, with a failure")
	})
}

// What was reserved ahead of its handler is left alone once its lease may be over, also while nobody has found that out.
func TestWhatIsReservedAheadIsNotStartedAfterItsLease(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const lease, slow = 10 * time.Second, 300
		for range 2 * slow {
			insert(t, q, Send{}, nil)
		}
		var mu sync.Mutex
		var called int
		var returned time.Time // the slow one
		early := 0
		working(t, q, func(context.Context, handler.Message[Send]) error {
			mu.Lock()
			called++
			n := called
			if !returned.IsZero() && time.Since(returned) < lease {
				early++
			}
			mu.Unlock()
			if n == slow {
				driver.delay("extend", 3*lease)
				time.Sleep(lease + time.Second)
				mu.Lock()
				returned = time.Now()
				mu.Unlock()
			}
			time.Sleep(time.Millisecond)
			return nil
		}, &queue.WorkConfig{Lease: lease, MaxWorkers: 1, Prefetch: 100, Timeout: time.Hour})

		time.Sleep(3 * lease)
		driver.delay("extend", 0)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		require.Zero(t, early, "handlers that were called though the lease was over")
		mu.Unlock()
		status, err := q.Status(t.Context())
		require.NoError(t, err)
		require.Zero(t, status.Out+status.Later+status.Dead, "all were handled in the end")
	})
}

// A caller is given no job whose time was over when the take was answered.
func TestReceiveReturnsNoJobWhoseTimeIsOver(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const visible = 10 * time.Second
		at := insert(t, q, Send{}, nil)
		driver.delay("take", visible+time.Second)

		jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: visible})
		require.NoError(t, err)
		require.Empty(t, jobs)

		driver.delay("take", 0)
		time.Sleep(time.Minute)
		jobs, err = q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: visible})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.Equal(t, at.Position, jobs[0].Message.GlobalPosition)
		require.NoError(t, jobs[0].Complete(t.Context()))
	})
}
