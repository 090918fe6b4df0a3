package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve"
)

// Items that are there when a worker begins: in a process with the store, and over a server.
func BenchmarkWork(b *testing.B) {
	for _, workers := range []int{16, 64} {
		for _, way := range []string{"process", "server"} {
			b.Run(fmt.Sprintf("%s/workers=%d", way, workers), func(b *testing.B) {
				store := openStore(b)
				q := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
				for left := b.N; left > 0; left -= 1000 {
					insertAll(b, q, min(left, 1000), nil)
				}
				var calls atomic.Int64
				if way == "server" {
					s := testkit.Must(serve.New(store, &serve.Config{Logger: logger.Silent()}))
					served := s.Handler()
					h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if strings.HasPrefix(r.URL.Path, "/dibs.v1.QueueService/") {
							calls.Add(1)
						}
						served.ServeHTTP(w, r)
					}))
					h.Config.Protocols = &http.Protocols{}
					h.Config.Protocols.SetUnencryptedHTTP2(true)
					h.Start()
					defer h.Close()
					defer s.Drain()
					q = queueAt(b, h.Listener.Addr().String(), nil)
				}
				ctx, stop := context.WithCancel(b.Context())
				defer stop()
				var done atomic.Int64
				mux := handler.New()
				handler.On(mux, func(context.Context, handler.Message[Send]) error {
					if done.Add(1) == int64(b.N) {
						stop()
					}
					return nil
				})
				b.ResetTimer()
				began := time.Now()
				require.NoError(b, q.Work(ctx, mux, &queue.WorkConfig{MaxWorkers: workers}))
				b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "items/s")
				b.ReportMetric(float64(calls.Load())/float64(b.N), "calls/item")
			})
		}
	}
}
