package sqlite_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// BenchmarkQueue inserts, reserves and completes items, ten in a call, beside others that are
// scheduled for later.
func BenchmarkQueue(b *testing.B) {
	const batch = 10
	for _, scheduled := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("scheduled=%d", scheduled), func(b *testing.B) {
			driver := open(b, newFile(b), nil)
			q := queuing.Queue{Name: "bench", Category: storetest.Category(b)}
			insert := func(n int, metadata string) {
				for range n / batch {
					each := make([]messagestore.Append, batch)
					for i := range each {
						each[i] = appendOf(q.Category.Stream(uuid.NewString()), messagestore.NoStream, 1)
						each[i].Records[0].Metadata = []byte(metadata)
					}
					must.Do(driver.AppendAll(b.Context(), each))(b)
				}
			}
			take := queuing.Take{Queue: q, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour, Want: batch}
			insert(scheduled, fmt.Sprintf(`{"dueAt":%d}`, time.Now().Add(time.Hour).UnixMicro()))
			for range scheduled/8/batch + 1 {
				require.Empty(b, must.Do(driver.QueueTake(b.Context(), take))(b).Items)
			}
			for b.Loop() {
				insert(batch, `{}`)
				taken := must.Do(driver.QueueTake(b.Context(), take))(b)
				require.Len(b, taken.Items, batch)
				take.Finishes = take.Finishes[:0]
				for _, item := range taken.Items {
					take.Finishes = append(take.Finishes, queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Complete})
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "items/s")
		})
	}
}
