package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// More items than one step has streams are inserted in order per key, and once.
func TestManyItemsAreInsertedOnce(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		var items []queue.Entry
		for n := range 250 {
			opts := &queue.InsertOpts{ID: uuid.New()}
			if n%2 == 0 {
				opts.Key = fmt.Sprint(n % 10)
			}
			items = append(items, queue.Entry{Body: Send{To: opts.Key, N: n}, Opts: opts})
		}
		inserted, err := q.InsertMany(t.Context(), items...)
		require.NoError(t, err)
		again, err := q.InsertMany(t.Context(), items...)
		require.NoError(t, err)
		require.Len(t, inserted, len(items))
		for i := range items {
			require.Equal(t, items[i].Opts.ID, inserted[i].ID)
			require.False(t, inserted[i].Duplicate)
			require.True(t, again[i].Duplicate)
			require.Equal(t, inserted[i].Stream, again[i].Stream)
			require.Equal(t, inserted[i].Position, again[i].Position)
		}
		last, n := map[string]int{}, 0
		for {
			jobs, err := q.Receive(t.Context(), 100, nil)
			require.NoError(t, err)
			if len(jobs) == 0 {
				break
			}
			for _, job := range jobs {
				body, err := messagestore.Decode[Send](job.Message)
				require.NoError(t, err)
				if body.To != "" {
					require.GreaterOrEqual(t, body.N, last[body.To])
					last[body.To] = body.N
				}
				n++
				require.NoError(t, job.Complete(t.Context()))
			}
		}
		require.Equal(t, len(items), n)
	})
}

// An item goes beside other writes: all, or nothing.
func TestAnItemIsWrittenBesideOthers(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		ordered := storetest.Category(t).Stream("1")
		item := must.New(q.Write(Send{To: "ann"}, &queue.InsertOpts{Unique: "1"}))
		_, err := store.WriteStreams(t.Context(), item, messagestore.To(ordered, messagestore.AnyVersion, Send{To: "ann"}))
		require.NoError(t, err)
		item = must.New(q.Write(Send{To: "bob"}, &queue.InsertOpts{Unique: "1"}))
		_, err = store.WriteStreams(t.Context(), item, messagestore.To(ordered, messagestore.AnyVersion, Send{To: "bob"}))
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)

		version, err := store.Version(t.Context(), ordered)
		require.NoError(t, err)
		require.EqualValues(t, 0, version)
		jobs, err := q.Receive(t.Context(), 9, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.JSONEq(t, `{"to":"ann"}`, string(jobs[0].Message.Data))
	})
}

func TestADateInThePastIsNow(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		for _, at := range []time.Time{time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), time.Unix(0, 0), time.Now().Add(-time.Hour)} {
			insert(t, q, Send{}, &queue.InsertOpts{ScheduledAt: at})
		}
		far := insert(t, q, Send{}, &queue.InsertOpts{ScheduledAt: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)})
		jobs, err := q.Receive(t.Context(), 9, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 3)
		require.Equal(t, 9999, awaitState(t, q, far.Position, queue.Later).Due.Year())
	})
}

// Two processes may have other settings: that of the process that gives an item back holds.
func TestTheProcessThatGivesAnItemBackSaysWhenItIsDead(t *testing.T) {
	t.Parallel()
	each(t, &queue.Config{MaxFailures: 2, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		patient := must.New(queue.New(store, q.Category(), &queue.Config{MaxFailures: 9, Logger: logger.Silent()}))
		at := insert(t, q, Send{}, nil)
		fails := func(of *queue.Queue) queue.State {
			jobs, err := of.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute})
			require.NoError(t, err)
			require.Len(t, jobs, 1)
			require.NoError(t, jobs[0].Retry(t.Context(), 0, nil))
			return item(t, q, at.Position).State
		}
		require.Equal(t, queue.Later, fails(patient))
		require.Equal(t, queue.Later, fails(patient))
		require.Equal(t, queue.Dead, fails(q))
	})
}
