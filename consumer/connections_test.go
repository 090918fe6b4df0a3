package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// Handlers hold every connection of the pool for as long as they like. The consumer writes its
// checkpoint, and extends its lease while another replica waits for it to be over.
func TestHandlersThatHoldThePoolDoNotStarveTheLease(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	t.Cleanup(func() { require.NoError(t, store.Close()) }) // the connections beside the pool
	other := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil))
	category := storetest.Category(t)
	for i := range 3 {
		write(t, other, category.Stream(fmt.Sprint(i)), Deposited{i})
	}
	end := endOf(t, other, category)
	holding, release, first := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
	giveBack := sync.OnceFunc(func() { close(release) })
	t.Cleanup(giveBack)
	var log logbook
	c := newIn(t, store, category, "c", handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		if m.Stream == category.Stream("0") {
			<-first
			return nil
		}
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		holding <- struct{}{}
		<-release
		return nil
	}), &consumer.Config{Concurrency: 3, Lease: time.Second, CheckpointInterval: time.Millisecond, Logger: log.logger()})
	stop := running(t, c)
	for range 2 {
		testkit.Receive(t, "a handler holds a connection", holding)
	}

	close(first)

	testkit.AwaitTrue(t, "the checkpoint moves", func() bool { return positionsNow(t, other, category)[0].Position > 0 })
	few := log.of(t, "Concurrency is greater than the number of connections in the store's pool")
	require.Len(t, few, 1)
	require.Equal(t, []any{3.0, 2.0}, []any{few[0]["concurrency"], few[0]["connections"]})

	giveBack()
	testkit.AwaitTrue(t, "all is handled", func() bool { return positionsNow(t, other, category)[0].Position == end })
	require.NoError(t, stop())
}
