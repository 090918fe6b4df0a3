package queue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/queue"
)

// A worker that still runs is told, idle or not, and no item is delivered again: neither to it, nor to the next.
func TestWorkersOfARemovedQueueEnd(t *testing.T) {
	for name, busy := range map[string]bool{"Idle": false, "Busy": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
				var handled atomic.Int64
				work := func() error {
					mux := handler.New()
					handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error {
						handled.Add(1)
						if m.Body.To == "bob" {
							<-ctx.Done()
							return context.Cause(ctx)
						}
						return nil
					})
					return q.Work(t.Context(), mux, &queue.WorkConfig{Timeout: time.Hour})
				}
				ended := make(chan error, 1)
				go func() { ended <- work() }()
				insert(t, q, Send{To: "ann"}, nil)
				if busy {
					insert(t, q, Send{To: "bob"}, nil)
				}
				time.Sleep(time.Second)
				before := int(handled.Load())
				require.Positive(t, before)

				_, err := q.Remove(t.Context(), nil)
				if busy {
					var unfinished *queue.UnfinishedError
					require.ErrorAs(t, err, &unfinished)
					require.Equal(t, queue.UnfinishedError{Out: 1}, *unfinished)
					require.EqualError(t, err, "queue mail: remove: items are not finished: 1 out")
					_, err = q.Remove(t.Context(), &queue.RemoveOpts{Unfinished: true})
				}
				require.NoError(t, err)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Len(t, ended, 1, "it has ended")
				require.ErrorIs(t, <-ended, queue.ErrRemoved)
				_, err = q.Receive(t.Context(), 1, nil)
				require.ErrorIs(t, err, queue.ErrRemoved)
				require.ErrorIs(t, work(), queue.ErrRemoved)
				require.ErrorIs(t, q.Pause(t.Context()), queue.ErrRemoved)
				require.EqualValues(t, before, handled.Load())

				kept, err := q.Remove(t.Context(), &queue.RemoveOpts{FreeName: true})
				require.NoError(t, err)
				require.False(t, kept)
				jobs, err := q.Receive(t.Context(), 9, nil)
				require.NoError(t, err)
				require.Len(t, jobs, before, "it begins with the first message of the category")
			})
		})
	}
}
