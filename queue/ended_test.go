package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// The end of an item tells a caller who waits in the same process that the next one of its key is offered.
func TestAWaitEndsWithTheItemBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		defer store.Close()
		q := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
		for n := range 2 {
			insert(t, q, Send{To: "ann", N: n}, &queue.InsertOpts{Key: "ann"})
		}
		first := testkit.Must(q.Receive(t.Context(), 2, nil))
		require.Len(t, first, 1)
		next := testkit.Go(func() []*queue.Job {
			return testkit.Must(q.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute}))
		})
		synctest.Wait()
		began := time.Now()
		require.NoError(t, first[0].Complete(t.Context()))
		require.Len(t, <-next, 1)
		require.Zero(t, time.Since(began))
	})
}
