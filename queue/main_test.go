package queue_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// The test binary is also the processes that an item kills.
func TestMain(m *testing.M) {
	if url := os.Getenv(killerStore); url != "" {
		os.Exit(killerChild(url, messagestore.Category(os.Getenv(killerCategory))))
	}
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

type Send struct {
	To string `json:"to"`
	N  int    `json:"n,omitempty"`
}

func (Send) MessageType() string { return "Send" }

// stores are the stores that a test of the whole runs on.
var stores = map[string]func(t *testing.T) *messagestore.Store{
	"memory": func(*testing.T) *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) },
	"SQLite": func(t *testing.T) *messagestore.Store {
		driver := testkit.Must(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil))
		t.Cleanup(func() { require.NoError(t, driver.Close()) })
		return testkit.Must(messagestore.New(driver, nil))
	},
	"PostgreSQL": func(t *testing.T) *messagestore.Store {
		return testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil))
	},
}

// each runs a test with a queue of a category of its own on each store.
func each(t *testing.T, config *queue.Config, test func(t *testing.T, q *queue.Queue, store *messagestore.Store)) {
	t.Helper()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			c := queue.Config{Logger: logger.Silent()}
			if config != nil {
				c = *config
			}
			test(t, testkit.Must(queue.New(store, storetest.Category(t), &c)), store)
		})
	}
}

// working runs Work until the test ends or stop is called, which waits for it.
func working(t *testing.T, q *queue.Queue, f func(ctx context.Context, m handler.Message[Send]) error, config *queue.WorkConfig) (stop func() error) {
	t.Helper()
	mux := handler.New()
	handler.On(mux, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Work(ctx, mux, config) }()
	var err error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			select {
			case err = <-done:
			case <-time.After(time.Minute):
				t.Error("Work did not return within a minute")
			}
		}
		return err
	}
	t.Cleanup(func() { require.NoError(t, stop()) })
	return stop
}
