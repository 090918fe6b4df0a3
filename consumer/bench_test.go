package consumer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// One operation is one message, from memory, with a handler that does nothing: the cost of
// a consumer by itself.
func BenchmarkConsumer(b *testing.B) {
	for _, concurrency := range []int{1, 16} {
		b.Run(fmt.Sprintf("Concurrency%d", concurrency), func(b *testing.B) {
			store := newStore()
			bodies := make([]messagestore.Body, 100)
			for i := range bodies {
				bodies[i] = Deposited{i}
			}
			for i := 0; i < b.N; i += len(bodies) {
				if _, err := store.Write(b.Context(), account.Stream(fmt.Sprint(i%97)), messagestore.AnyVersion, bodies[:min(len(bodies), b.N-i)]...); err != nil {
					b.Fatal(err)
				}
			}
			c := newNamed(store, account, "ledger", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }),
				&consumer.Config{Concurrency: concurrency})
			b.ReportAllocs()
			b.ResetTimer()
			if err := c.CatchUp(b.Context()); err != nil {
				b.Fatal(err)
			}
			if n := c.Stats().Handled; n != int64(b.N) {
				b.Fatalf("handled %d of %d", n, b.N)
			}
		})
	}
}
