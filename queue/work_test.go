package queue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// seen collects what handlers were given.
type seen struct {
	mu  sync.Mutex
	all []string
}

func (s *seen) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, text)
}

func (s *seen) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.all...)
}

func (s *seen) await(t *testing.T, n int) []string {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("%d deliveries", n), func() (bool, any) { all := s.list(); return len(all) >= n, all })
	return s.list()
}

func insert(t *testing.T, q *queue.Queue, body Send, opts *queue.InsertOpts) queue.Inserted {
	t.Helper()
	inserted, err := q.Insert(t.Context(), body, opts)
	require.NoError(t, err)
	return inserted
}

func awaitState(t *testing.T, q *queue.Queue, at messagestore.GlobalPosition, want queue.State) queue.Item {
	t.Helper()
	var item queue.Item
	testkit.Await(t, fmt.Sprintf("item %d is %s", at, want), func() (bool, any) {
		var err error
		item, err = q.Item(context.Background(), at)
		require.NoError(t, err)
		return item.State == want, item
	})
	return item
}

func TestItemsOfAKeyAreHandledInOrderOneAtATime(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		const keys, items = 5, 20
		last := map[string]int{}
		var mu sync.Mutex
		busy := map[string]bool{}
		var handled seen
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			mu.Lock()
			wrong := busy[m.Body.To] || m.Body.N != last[m.Body.To]+1
			busy[m.Body.To] = true
			mu.Unlock()
			runtime.Gosched()
			mu.Lock()
			defer mu.Unlock()
			busy[m.Body.To] = false
			if wrong {
				handled.add("out of order")
				return nil
			}
			if m.Body.N%7 == 0 && queue.JobOf(ctx).Failures == 0 {
				return errors.New("not yet")
			}
			last[m.Body.To] = m.Body.N
			handled.add("ok")
			return nil
		}, &queue.WorkConfig{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		for n := 1; n <= items; n++ {
			for k := range keys {
				key := fmt.Sprint("k", k)
				insert(t, q, Send{To: key, N: n}, &queue.InsertOpts{Key: key})
			}
		}
		for _, what := range handled.await(t, keys*items) {
			require.Equal(t, "ok", what)
		}
		status, err := q.Status(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 0, status.Dead)
	})
}

func TestFailuresBuryAnItem(t *testing.T) {
	t.Parallel()
	each(t, &queue.Config{MaxFailures: 3, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		var handled seen
		working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			switch m.Body.To {
			case "panics":
				panic("no")
			case "panics with Park":
				panic(handler.Park(errors.New("look at it")))
			case "panics with RetryAfter":
				panic(handler.RetryAfter(time.Hour, errors.New("later")))
			case "panics with Skip":
				panic(handler.Skip("not mine"))
			case "panics with an unknown type":
				panic(handler.ErrUnknownType)
			case "exits":
				runtime.Goexit()
			case "fails":
				return errors.New("no such mailbox")
			case "parks":
				return handler.Park(errors.New("look at it"))
			case "refuses":
				return handler.Refuse(nil)
			case "skips":
				return handler.Skip("not mine")
			}
			return nil
		}, &queue.WorkConfig{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		at := map[string]queue.Inserted{}
		for _, to := range []string{"panics", "panics with Park", "panics with RetryAfter", "panics with Skip", "panics with an unknown type", "exits", "fails", "parks", "refuses", "skips", "works"} {
			at[to] = insert(t, q, Send{To: to}, nil)
		}
		for to, text := range map[string]string{
			"panics": "panic: no", "panics with Park": "panic: look at it", "panics with RetryAfter": "panic: later", "panics with Skip": "panic: not mine",
			"panics with an unknown type": "panic: ", "exits": "the function ended its goroutine", "fails": "no such mailbox",
		} {
			item := awaitState(t, q, at[to].Position, queue.Dead)
			require.Equal(t, 3, item.Failures, to)
			require.Len(t, item.Log, 3, to)
			require.Contains(t, item.Error, text)
			require.Contains(t, item.Log[0].Text, text)
		}
		require.Len(t, awaitState(t, q, at["parks"].Position, queue.Dead).Log, 1)
		require.Len(t, awaitState(t, q, at["refuses"].Position, queue.Dead).Log, 1)
		awaitState(t, q, at["skips"].Position, queue.Finished)
		awaitState(t, q, at["works"].Position, queue.Finished)
	})
}

func TestACompletionBeforeTheHandlersEndStands(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		completed, goOn := make(chan error, 1), make(chan struct{})
		var handled seen
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			completed <- queue.JobOf(ctx).Complete(ctx)
			<-goOn
			return errors.New("no space left on device")
		}, nil)
		at := insert(t, q, Send{To: "ann"}, nil)
		require.NoError(t, testkit.Receive(t, "the completion", completed))
		awaitState(t, q, at.Position, queue.Finished)
		close(goOn)
		at = insert(t, q, Send{To: "bob"}, nil)
		awaitState(t, q, at.Position, queue.Finished)
		require.Equal(t, []string{"ann", "bob"}, handled.await(t, 2))
	})
}

func TestAHandlerThatNeverReturnsIsAbandoned(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		end := make(chan struct{})
		t.Cleanup(func() { close(end) })
		var handled seen
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			if m.Body.To == "hangs" && queue.JobOf(ctx).Failures == 0 {
				<-end
			}
			return nil
		}, &queue.WorkConfig{MaxWorkers: 1, Timeout: 20 * time.Millisecond, Grace: 20 * time.Millisecond, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		at := insert(t, q, Send{To: "hangs"}, nil)
		behind := insert(t, q, Send{To: "other"}, nil)
		awaitState(t, q, behind.Position, queue.Finished)
		item := awaitState(t, q, at.Position, queue.Finished)
		require.Contains(t, item.Log[0].Text, "abandoned")
		require.EqualValues(t, 1, q.Counts().Abandoned)
	})
}

func TestReceiveWaitsInLine(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		jobs, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Empty(t, jobs)
		got := make(chan []*queue.Job, 1)
		go func() {
			jobs, _ := q.Receive(context.Background(), 10, &queue.ReceiveOpts{Wait: time.Minute})
			got <- jobs
		}()
		at := insert(t, q, Send{To: "ann"}, nil)
		jobs = testkit.Receive(t, "a job", got)
		require.Len(t, jobs, 1)
		require.NoError(t, jobs[0].Extend(t.Context(), time.Hour))
		require.NoError(t, jobs[0].Complete(t.Context()))
		require.NoError(t, jobs[0].Complete(t.Context()), "again")
		require.ErrorIs(t, jobs[0].Bury(t.Context(), nil), queue.ErrLost)
		awaitState(t, q, at.Position, queue.Finished)
	})
}

func TestUniqueItemsAreInsertedOnce(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		first := insert(t, q, Send{To: "ann"}, &queue.InsertOpts{Unique: "report 2026-11"})
		again := insert(t, q, Send{To: "ann"}, &queue.InsertOpts{Unique: "report 2026-11"})
		require.False(t, first.Duplicate)
		require.True(t, again.Duplicate)
		require.Equal(t, first.Position, again.Position)
		_, err := q.Insert(t.Context(), Send{To: "bob"}, &queue.InsertOpts{Unique: "report 2026-11"})
		var reused *queue.KeyReusedError
		require.ErrorAs(t, err, &reused)
	})
}

func TestAnItemIsNotDeliveredBeforeItsDate(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		now, err := store.Now(t.Context())
		require.NoError(t, err)
		date := now.Add(300 * time.Millisecond)
		soon := insert(t, q, Send{To: "soon"}, &queue.InsertOpts{ScheduledAt: date})
		far := insert(t, q, Send{To: "far"}, &queue.InsertOpts{ScheduledAt: now.Add(time.Hour)})
		early := make(chan bool, 1)
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			at, err := store.Now(ctx)
			early <- at.Before(date)
			return err
		}, nil)
		require.False(t, testkit.Receive(t, "the delivery", early))
		awaitState(t, q, soon.Position, queue.Finished)
		require.Equal(t, queue.Later, awaitState(t, q, far.Position, queue.Later).State)
		changed, err := q.Cancel(t.Context(), "not needed", far.Position)
		require.NoError(t, err)
		require.Len(t, changed, 1)
		awaitState(t, q, far.Position, queue.Finished)
	})
}

func TestAStopGivesBackWhatIsNotHandled(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		begun := make(chan struct{}, 1)
		stop := working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}, &queue.WorkConfig{Grace: 2 * time.Second}) // after it a busy machine has as long for the handler to return
		at := insert(t, q, Send{To: "ann"}, nil)
		testkit.Receive(t, "the handler", begun)
		require.NoError(t, stop())
		item := awaitState(t, q, at.Position, queue.Later)
		require.Zero(t, item.Failures)
		require.Equal(t, 1, item.Version)
	})
}
