package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

func (d *cut) QueueItem(ctx context.Context, q queuing.Queue, at messagestore.GlobalPosition) (item queuing.Item, err error) {
	err = d.call("item", func() (err error) { item, err = d.Driver.QueueItem(ctx, q, at); return err })
	return item, err
}

// An awaited is the answer to Await.
type awaited struct {
	item   queue.Item
	result []*messagestore.Message
	err    error
}

// awaiting waits for an item for a time at most.
func awaiting(ctx context.Context, most time.Duration, q *queue.Queue, at messagestore.GlobalPosition, in ...messagestore.StreamName) <-chan awaited {
	answers := make(chan awaited, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		var a awaited
		a.item, a.result, a.err = q.Await(ctx, at, in...)
		answers <- a
	}()
	return answers
}

func TestAwaitReturnsAnItemWithItsResult(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		sent, copies := storetest.Category(t).Stream("ann"), storetest.Category(t).Stream("ann")
		begin := make(chan struct{})
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			<-begin
			first := queue.JobOf(ctx).Failures == 0
			for _, stream := range []messagestore.StreamName{sent, copies} {
				if _, err := store.Write(ctx, stream, messagestore.AnyVersion, messagestore.Follow(m.Message, Send{To: "receipt", N: m.Body.N})); err != nil {
					return err
				}
			}
			if m.Body.N == 1 && first {
				return errors.New("not yet")
			}
			return nil
		}, &queue.WorkConfig{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		testkit.Must(store.Write(t.Context(), sent, messagestore.NoStream, Send{To: "before"}))
		other, at := insert(t, q, Send{N: 0}, nil), insert(t, q, Send{N: 1}, nil)

		answers := awaiting(t.Context(), time.Minute, q, at.Position, sent, copies, sent)
		close(begin)
		a := <-answers

		require.NoError(t, a.err)
		require.Equal(t, at.Position, a.item.Position)
		require.Equal(t, queue.Finished, a.item.State)
		require.Equal(t, "r", whats(a.item))
		require.Len(t, a.result, 4, "two of each attempt")
		for i, m := range a.result {
			require.Equal(t, []messagestore.StreamName{sent, sent, copies, copies}[i], m.Stream)
			require.True(t, m.Metadata.Follows(a.item.Message))
			require.True(t, i%2 == 0 || m.Position > a.result[i-1].Position, "in their order")
		}
		first, result, err := q.Await(t.Context(), other.Position)
		require.NoError(t, err)
		require.Equal(t, queue.Finished, first.State)
		require.Empty(t, result)
	})
}

func TestAwaitReturnsAnItemThatIsDeadOrCancelled(t *testing.T) {
	t.Parallel()
	each(t, &queue.Config{MaxFailures: 2, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		working(t, q, func(context.Context, handler.Message[Send]) error { return errors.New("no such mailbox") },
			&queue.WorkConfig{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		fails, far := insert(t, q, Send{}, nil), insert(t, q, Send{}, &queue.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
		dead, cancelled := awaiting(t.Context(), time.Minute, q, fails.Position), awaiting(t.Context(), time.Minute, q, far.Position)

		a := <-dead
		testkit.Must(q.Cancel(t.Context(), "not needed", far.Position))
		c := <-cancelled

		require.NoError(t, a.err)
		require.Equal(t, queue.Dead, a.item.State)
		require.Equal(t, 2, a.item.Failures)
		require.Contains(t, a.item.Error, "no such mailbox")
		require.NoError(t, c.err)
		require.Equal(t, queue.Finished, c.item.State)
		require.Equal(t, "C", whats(c.item))
		require.Equal(t, "not needed", c.item.Log[0].Text)
	})
}

func TestAwaitEndsWithItsContextAndAsksSeldom(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, d *cut) {
		at := insert(t, q, Send{}, nil)

		a := <-awaiting(t.Context(), 15*time.Minute, q, at.Position)

		require.ErrorIs(t, a.err, context.DeadlineExceeded)
		require.Equal(t, queue.Waiting, a.item.State, "as it was last")
		require.Less(t, d.calls("item"), 15*60+100, "after ten seconds every second")
	})
}

func TestAwaitHearsOfAResult(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		at := insert(t, q, Send{}, nil)
		jobs := testkit.Must(q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: 24 * time.Hour}))
		answers := awaiting(t.Context(), 24*time.Hour, q, at.Position, q.Category().Stream("next"))
		time.Sleep(time.Hour)
		synctest.Wait()
		began := time.Now()

		require.NoError(t, jobs[0].Complete(t.Context()))
		insert(t, q, Send{}, &queue.InsertOpts{Key: "next"})

		require.NoError(t, (<-answers).err)
		require.Zero(t, time.Since(began))
	})
}

func TestAwaitRefusesWhatIsNoItem(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		at := insert(t, q, Send{}, nil)
		elsewhere := testkit.Must(store.Write(t.Context(), storetest.Category(t).Stream("1"), messagestore.NoStream, Send{}))
		for what, position := range map[string]messagestore.GlobalPosition{"unknown": 1 << 60, "another category's": elsewhere.GlobalPosition} {
			_, _, err := q.Await(t.Context(), position)
			require.ErrorIs(t, err, messagestore.ErrNotFound, what)
		}
		_, _, err := q.Await(t.Context(), -1)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		_, _, err = q.Await(t.Context(), at.Position, "no stream")
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		ended, end := context.WithCancel(t.Context())
		end()
		_, _, err = q.Await(ended, at.Position)
		require.ErrorIs(t, err, context.Canceled)
	})
}
