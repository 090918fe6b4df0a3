package queue_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/queue"
)

// Items are inserted by callers, one or ten a call, and completed by one process of 64 workers.
func BenchmarkQueue(b *testing.B) {
	pool := pgtest.Pool(b)
	for _, keys := range []int{0, 1000} {
		for _, batch := range []int{1, 10} {
			b.Run(fmt.Sprintf("keys=%d/x%d", keys, batch), func(b *testing.B) {
				store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), &messagestore.Config{Logger: logger.Silent()}))
				category := messagestore.Category("bench" + uuid.NewString()[:8])
				q := testkit.Must(queue.New(store, category, &queue.Config{Logger: logger.Silent()}))
				const callers = 64
				var done, begun atomic.Int64
				finished := make(chan struct{})
				mux := handler.New()
				total := int64((b.N + batch - 1) / batch * batch)
				handler.On(mux, func(context.Context, handler.Message[Send]) error {
					if done.Add(1) == total {
						close(finished)
					}
					return nil
				})
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan error, 1)
				b.ResetTimer()
				go func() { ended <- q.Work(ctx, mux, &queue.WorkConfig{MaxWorkers: 64}) }()
				var group sync.WaitGroup
				for range callers {
					group.Go(func() {
						for begun.Add(int64(batch)) <= total {
							entries := make([]queue.Entry, batch)
							for i := range entries {
								entries[i].Body = Send{To: "ann"}
								if keys > 0 {
									entries[i].Opts = &queue.InsertOpts{Key: fmt.Sprint(uuid.New().ID() % uint32(keys))}
								}
							}
							if _, err := q.InsertMany(ctx, entries...); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				group.Wait()
				<-finished
				b.StopTimer()
				cancel()
				require.NoError(b, <-ended)
				b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "items/s")
			})
		}
	}
}
