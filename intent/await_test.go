package intent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
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
		store := &slowStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
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

// A silentStore answers no step of the line once it is told so.
type silentStore struct {
	*messagestore.Store
	silent atomic.Bool
}

func (s *silentStore) TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	if s.silent.Load() && expected != messagestore.NoStream {
		<-ctx.Done()
		return messagestore.Written{}, nil, ctx.Err()
	}
	return s.Store.TryWrite(ctx, stream, expected, bodies...)
}

func TestLeavingALineTakesUpToFiveSeconds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait, patience time.Duration // of the request, and of its caller
		gone           bool
	}{
		"its wait is over": {wait: time.Second, patience: time.Hour},
		"its context ends": {wait: time.Hour, patience: time.Second, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &silentStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
				m := manager(t, store, &intent.Config{TTL: time.Hour})
				lease(t, m, request("A"))
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				time.AfterFunc(time.Millisecond, func() { store.silent.Store(true) })
				began := time.Now()
				r := request("B")
				r.Wait = c.wait

				a, err := m.Reserve(ctx, r)

				require.Equal(t, 6*time.Second, time.Since(began))
				if c.gone {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					require.NoError(t, err)
					require.Equal(t, intent.Held, a.Outcome)
				}
				require.Equal(t, []string{"B"}, lookup(t, m).Line, "it costs the others its turn")
			})
		})
	}
}

// A far store takes its time for each call.
type farStore struct {
	*messagestore.Store
	delay time.Duration
}

func (s farStore) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	time.Sleep(s.delay)
	return s.Store.Last(ctx, stream)
}

func (s farStore) TryWrite(
	ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body,
) (messagestore.Written, *messagestore.Conflict, error) {
	time.Sleep(s.delay)
	return s.Store.TryWrite(ctx, stream, expected, bodies...)
}

// Of each round of calls one comes into the line. The others go on trying until they are in it, or have gone.
func TestACrowdWhoseContextsEndWhileItComesLeavesInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		m := manager(t, farStore{store, 40 * time.Millisecond}, &intent.Config{TTL: time.Hour})
		lease(t, m, request("A"))
		began := time.Now()
		var crowd sync.WaitGroup
		for i := range 95 {
			crowd.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				r := request(fmt.Sprint("w", i))
				r.Wait = time.Minute

				_, err := m.Reserve(ctx, r)

				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", r.Session, err)
				}
			})
		}
		crowd.Wait()

		require.Less(t, time.Since(began), 1500*time.Millisecond)
		steps := len(types(t, store, "payment:intent-k")) // seven come in 300 ms
		require.LessOrEqual(t, steps, 1+7+3, "they leave together")
		require.Empty(t, lookup(t, m).Line)
	})
}
