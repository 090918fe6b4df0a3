package sqlite_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// BenchmarkAppend appends one message at a time, each to a stream of its own, with
// and without sharing commits.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 32} {
		for _, group := range []int{1, 256} {
			b.Run(fmt.Sprintf("callers=%d/group=%d", callers, group), func(b *testing.B) {
				driver := open(b, newFile(b), &sqlite.Config{MaxGroup: group})
				appendFrom(b, driver, callers, b.N)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
			})
		}
	}
}

// BenchmarkAppendToOneStream appends to the end of one stream that gets long.
func BenchmarkAppendToOneStream(b *testing.B) {
	driver := open(b, newFile(b), nil)
	stream := storetest.Category(b).Stream("1")
	var failed atomic.Value
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := driver.Append(b.Context(), appendOf(stream, messagestore.AnyVersion, 1)); err != nil {
				failed.Store(err)
			}
		}
	})
	require.Nil(b, failed.Load())
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
}

// BenchmarkReadCategory reads 1,000 messages a page.
func BenchmarkReadCategory(b *testing.B) {
	driver := open(b, newFile(b), nil)
	category := storetest.Category(b)
	const messages = 20_000
	for range messages / 500 {
		testkit.Do(driver.Append(b.Context(), appendOf(category.Stream(uuid.NewString()), messagestore.NoStream, 500)))(b)
	}
	read := 0
	for b.Loop() {
		from, more := messagestore.GlobalPosition(0), true
		for more {
			page := testkit.Do(driver.ReadCategory(b.Context(), messagestore.CategoryQuery{Category: category, From: from, Limit: 1000}))(b)
			from, more, read = page.Next, page.More, read+len(page.Messages)
		}
	}
	b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "messages/s")
}

// appendFrom appends count messages from so many callers at once.
func appendFrom(t testing.TB, driver *sqlite.Driver, callers, count int) {
	t.Helper()
	category := storetest.Category(t)
	var next atomic.Int64
	failures := make(chan error, callers)
	if b, ok := t.(*testing.B); ok {
		b.ResetTimer()
	}
	for range callers {
		go func() {
			for next.Add(1) <= int64(count) {
				if _, err := driver.Append(t.Context(), appendOf(category.Stream(uuid.NewString()), messagestore.NoStream, 1)); err != nil {
					failures <- err
					return
				}
			}
			failures <- nil
		}()
	}
	for range callers {
		require.NoError(t, testkit.Receive(t, "a caller ends", failures))
	}
}

// appendOf returns an append of so many new messages.
func appendOf(stream messagestore.StreamName, expected messagestore.Version, messages int) messagestore.Append {
	a := messagestore.Append{Stream: stream, Expected: expected}
	for range messages {
		id, err := uuid.NewV7()
		if err != nil {
			panic(err)
		}
		a.Records = append(a.Records, messagestore.Encoded{
			ID: id, Type: "Deposited", Data: []byte(`{"account": "123", "amount": 10.00, "note": "the first of many"}`),
			Metadata: []byte(`{"properties":{"user":"ann"}}`),
		})
	}
	return a
}

// BenchmarkReadShort reads the last message of a stream, and ten messages of a category.
func BenchmarkReadShort(b *testing.B) {
	driver := open(b, newFile(b), nil)
	category := storetest.Category(b)
	testkit.Do(driver.Append(b.Context(), appendOf(category.Stream("1"), messagestore.NoStream, 10)))(b)
	b.Run("last", func(b *testing.B) {
		for b.Loop() {
			testkit.Do(driver.Last(b.Context(), category.Stream("1"), ""))(b)
		}
	})
	b.Run("page", func(b *testing.B) {
		for b.Loop() {
			testkit.Do(driver.ReadCategory(b.Context(), messagestore.CategoryQuery{Category: category, Limit: 10}))(b)
		}
	})
}

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
					testkit.Do(driver.AppendAll(b.Context(), each))(b)
				}
			}
			take := queuing.Take{Queue: q, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour, Want: batch}
			insert(scheduled, fmt.Sprintf(`{"dueAt":%d}`, time.Now().Add(time.Hour).UnixMicro()))
			for range scheduled/8/batch + 1 {
				require.Empty(b, testkit.Do(driver.QueueTake(b.Context(), take))(b).Items)
			}
			for b.Loop() {
				insert(batch, `{}`)
				taken := testkit.Do(driver.QueueTake(b.Context(), take))(b)
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
