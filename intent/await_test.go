package intent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A slow store takes a second for each read, and counts those that were broken off.
type slowStore struct {
	*messagestore.Store
	reads, pages, broken int
}

func (s *slowStore) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	s.reads++
	time.Sleep(time.Second)
	if ctx.Err() != nil {
		s.broken++
	}
	return s.Store.Last(context.WithoutCancel(ctx), stream)
}

func (s *slowStore) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.pages++
	time.Sleep(time.Second)
	if ctx.Err() != nil {
		s.broken++
	}
	return s.Store.ReadCategoryPage(context.WithoutCancel(ctx), q)
}

// A broken query costs a connection, and callers of HTTP hang up all the time.
func TestAnAwaitThatIsGivenUpBreaksNoQueryOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{Store: must.New(messagestore.New(memory.New(), nil))}
		m, err := intent.New(store, "payment:intent", nil)
		require.NoError(t, err)
		held, err := m.Reserve(t.Context(), intent.Request{Key: "k", Content: "c"})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()

		_, err = m.Await(ctx, "", "k")

		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, store.broken)
		require.Equal(t, 1, store.reads)
		_, err = m.Await(ctx, "", "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, store.reads, "nothing is asked for a caller that is gone already")

		ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second/2)
		defer cancel()
		_, err = m.Await(ctx, "", "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second) // it was the last waiter, and the category was being read
		synctest.Wait()
		require.Equal(t, 1, store.pages)
		require.Zero(t, store.broken)

		time.AfterFunc(5*time.Second, func() { _ = held.Lease.Confirm(t.Context(), "paid") })
		done, err := m.Await(t.Context(), "", "k")
		require.NoError(t, err)
		require.Equal(t, intent.Done, done.Status)
		require.JSONEq(t, `"paid"`, string(done.Result))
		require.Equal(t, 3, store.reads, "the message that woke it up is the answer")
	})
}
