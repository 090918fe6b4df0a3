package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/queuing"
)

var mail = queuing.Queue{Name: "mail", Category: "mail"}

// A take that only finishes changes the head, and so the time from which tokens are counted.
func TestATakeThatReservesNothingSpendsNoTokens(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver := must.New(postgres.New(pool, nil))
	store := must.New(messagestore.New(driver, nil))
	for _, key := range []string{"a", "b", "c"} {
		_, err := store.Write(t.Context(), mail.Category.Stream(key), messagestore.NoStream, messagestore.Raw{Type: "Send", Data: []byte(`{}`)})
		require.NoError(t, err)
	}
	take := func(want int, finishes ...queuing.Finish) queuing.Taken {
		t.Helper()
		taken, err := driver.QueueTake(t.Context(), queuing.Take{
			Queue: mail, Policy: queuing.Policy{MaxFailures: 5, Rate: 0.001, Burst: 1}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		})
		require.NoError(t, err)
		return taken
	}
	first := take(1)
	require.Len(t, first.Items, 1)
	require.Empty(t, take(1).Items)
	_, err := pool.Exec(t.Context(), "update dibs.queue_heads set at = at - interval '2000 s'")
	require.NoError(t, err)
	take(0, queuing.Finish{Delivery: first.Items[0].Delivery(), Kind: queuing.Complete})
	require.Len(t, take(1).Items, 1, "the token of the time before it")
}

// A caller that has gone leaves its ticket behind. The next one drops it.
func TestTicketsThatAreOverAreDropped(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver := must.New(postgres.New(pool, nil))
	wait := func(session int64) {
		t.Helper()
		taken, err := driver.QueueTake(t.Context(), queuing.Take{
			Queue: mail, Policy: queuing.Policy{MaxFailures: 5}, Session: session, Lease: time.Hour, Want: 1, Wait: time.Minute,
		})
		require.NoError(t, err)
		require.NotZero(t, taken.Ticket)
	}
	wait(1)
	wait(2)
	_, err := pool.Exec(t.Context(), "update dibs.queue_tickets set until = until - interval '2 minutes'")
	require.NoError(t, err)
	wait(3)
	var sessions []int64
	require.NoError(t, pool.QueryRow(t.Context(), "select array_agg(session) from dibs.queue_tickets").Scan(&sessions))
	require.Equal(t, []int64{3}, sessions)
}
