package queue_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// A telling driver tells which takes are under way.
type telling[Tx any] struct {
	messagestore.TransactDriver[Tx]
	queuing.Keeper

	mu              sync.Mutex
	outside, inside int
	together        bool // one of each was under way at one time
}

func (d *telling[Tx]) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	under := &d.outside
	if calling.CallerOf(ctx).Transaction {
		under = &d.inside
	}
	d.count(under, 1)
	defer d.count(under, -1)
	return d.Keeper.QueueTake(ctx, t)
}

func (d *telling[Tx]) count(under *int, by int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*under += by
	d.together = d.together || d.outside > 0 && d.inside > 0
}

func (d *telling[Tx]) state() (outside int, together bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.outside, d.together
}

// A call in the function of a transaction does not wait for one that waits for the transaction's
// connection: on PostgreSQL it fails at once if that is the only one, and on SQLite when its time is
// over.
func TestACallInATransactionDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		pgtest.Pool(t)
		pool, _ := pgtest.PoolOfOne(t, nil)
		driver := testkit.Must(postgres.New(pool, nil))
		inside(t, &telling[pgx.Tx]{TransactDriver: driver, Keeper: driver}, func(t *testing.T, err error) {
			t.Helper()
			require.ErrorContains(t, err, "the transaction of this function has the only connection")
		})
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		driver := testkit.Must(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), &sqlite.Config{BusyTimeout: 200 * time.Millisecond}))
		t.Cleanup(func() { require.NoError(t, driver.Close()) })
		inside(t, &telling[*sql.Tx]{TransactDriver: driver, Keeper: driver}, func(t *testing.T, err error) {
			t.Helper()
			require.ErrorIs(t, err, sqlite.ErrBusy)
		})
	})
}

func inside[Tx any](t *testing.T, driver *telling[Tx], refused func(t *testing.T, err error)) {
	t.Helper()
	store := testkit.Must(messagestore.New(driver, nil))
	txs := testkit.Must(messagestore.Transactional[Tx](store))
	for what, call := range map[string]func(ctx context.Context, q *queue.Queue, s queue.Settlement) error{
		"Settle": func(ctx context.Context, q *queue.Queue, s queue.Settlement) error {
			return testkit.ErrorOf(q.Settle(ctx, s))
		},
		"Receive": func(ctx context.Context, q *queue.Queue, _ queue.Settlement) error {
			return testkit.ErrorOf(q.Receive(ctx, 1, &queue.ReceiveOpts{Wait: time.Minute}))
		},
		"both": func(ctx context.Context, q *queue.Queue, s queue.Settlement) error {
			_, _, err := q.SettleAndReceive(ctx, []queue.Settlement{s}, 1, &queue.ReceiveOpts{Wait: time.Minute})
			return err
		},
	} {
		for of, waits := range map[string]func(ctx context.Context, q *queue.Queue, s queue.Settlement) error{
			"ends": func(ctx context.Context, q *queue.Queue, s queue.Settlement) error {
				return testkit.ErrorOf(q.Settle(ctx, s))
			},
			"a line": func(ctx context.Context, q *queue.Queue, _ queue.Settlement) error {
				return testkit.ErrorOf(q.Receive(ctx, 1, &queue.ReceiveOpts{Wait: time.Minute}))
			},
		} {
			t.Run(what+" beside "+of, func(t *testing.T) {
				q := testkit.Must(queue.New(store, storetest.Category(t), &queue.Config{Logger: logger.Silent()}))
				all := complete(t, q, 3)
				driver.mu.Lock()
				driver.together = false
				driver.mu.Unlock()
				outside, stop := context.WithCancel(t.Context())
				defer stop()
				var first <-chan error
				_, err := txs.Transact(t.Context(), func(ctx context.Context, _ Tx) ([]messagestore.StreamWrite, error) {
					first = testkit.Go(func() error { return waits(outside, q, all[0]) })
					testkit.Await(t, "a call outside waits", func() (bool, any) {
						n, _ := driver.state()
						return n > 0, n
					})
					bounded, cancel := context.WithTimeout(ctx, testkit.WaitLimit)
					defer cancel()
					refused(t, call(bounded, q, all[1]))
					return nil, nil
				})
				require.NoError(t, err)
				_, together := driver.state()
				require.True(t, together, "it went by itself")

				stop() // the line's call, if it has not failed
				t.Log(<-first)
				require.Equal(t, []error{nil}, testkit.Do(q.Settle(t.Context(), all[2]))(t))
			})
		}
	}
}
