package admin_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/reservation"
)

// Everything that may happen to a store happens at once, and no alarm is raised.
func TestVerifyRaisesNoFalseAlarmUnderLoad(t *testing.T) {
	t.Parallel()
	const streams = 20
	rounds, messages := 3, int64(300)
	if tier.Long() {
		rounds, messages = 12, 1000
	}
	url := pgtest.Migrated(t)
	pgtest.WaitForLocks(t, url, "dibs")
	pool := pgtest.Connect(t, url)
	store := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))
	adm := must.New(admin.New(pool, nil))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	failures := make(chan error, 100)
	repeat := func(what string, f func(ctx context.Context, n int) error) {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				// Each call ends by itself, so that none is cut off half-way.
				if err := f(context.WithoutCancel(ctx), n); err != nil && ctx.Err() == nil {
					failures <- fmt.Errorf("%s: %w", what, err)
					return
				}
			}
		})
	}
	account := func() messagestore.StreamName {
		return messagestore.Category("account").Stream(fmt.Sprint(rand.IntN(streams)))
	}
	event := body{"Happened", fields{"n": 1}}

	for range 2 {
		repeat("write", func(ctx context.Context, _ int) error {
			_, err := store.Write(ctx, account(), messagestore.AnyVersion, event, event)
			return err
		})
	}
	repeat("roll back", func(ctx context.Context, _ int) error {
		return rollBack(ctx, pool, account(), event)
	})
	repeat("write as a client of message-db", func(ctx context.Context, _ int) error {
		_, err := pool.Exec(ctx, "select message_store.write_message(gen_random_uuid()::varchar, $1::varchar, 'Happened', '{}')", string(account()))
		return err
	})
	repeat("trim", func(ctx context.Context, _ int) error {
		for _, stream := range []messagestore.StreamName{account(), "account:position-watcher+0"} {
			if _, err := adm.Trim(ctx, stream, &retention.TrimOptions{Keep: 3, MinAge: retention.AnyAge}); err != nil && !errors.Is(err, messagestore.ErrNotFound) {
				return err
			}
		}
		return nil
	})
	repeat("delete", func(ctx context.Context, n int) error {
		_, err := adm.Delete(ctx, account(), messagestore.AnyVersion, &retention.DeleteOptions{EraseName: n%2 == 0})
		if errors.Is(err, messagestore.ErrNotFound) {
			err = nil
		}
		return err
	})
	reserver := must.New(reservation.New(store, "accounts", nil))
	repeat("reserve", func(ctx context.Context, n int) error {
		stream := messagestore.Category("account:command").Stream(fmt.Sprint(n % streams))
		if _, err := store.Write(ctx, stream, messagestore.AnyVersion, event); err != nil {
			return err
		}
		source, err := store.Last(ctx, stream)
		if err != nil {
			return err
		}
		_, err = reserver.Reserve(ctx, source, fmt.Sprint(n/2))
		return err
	})
	handled := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if m.GlobalPosition%50 == 0 {
			return errors.New("no")
		}
		return nil
	})
	watcher := must.New(consumer.New(store, "account", "watcher", handled, &consumer.Config{
		CheckpointMessages: 5, Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
	}))
	load.Go(func() {
		if err := watcher.Run(ctx); err != nil {
			failures <- fmt.Errorf("consume: %w", err)
		}
	})

	var found *retention.Verification
	for range rounds {
		found = must.Do(adm.Verify(t.Context(), nil))(t)
		require.Empty(t, found.Violations)
	}
	await.That(t, "the load has made something of every kind, or failed", func() (bool, any) {
		found = must.Do(adm.Verify(t.Context(), nil))(t)
		require.Empty(t, found.Violations)
		c := found.Checked
		return c.Messages > messages && c.Consumers > 0 && c.Positions > 0 && c.Reservations > 0 && c.Queues > 0 && c.Erased > 0 || len(failures) > 0, c
	})
	stop()
	await.Receive(t, "the end of the load", over(&load))
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}

	found = must.Do(adm.Verify(t.Context(), nil))(t)
	require.Empty(t, found.Violations)
	t.Logf("looked at %+v", found.Checked)
}

func rollBack(ctx context.Context, pool *pgxpool.Pool, stream messagestore.StreamName, event messagestore.Body) error {
	errRollBack := errors.New("rolled back")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := must.New(messagestore.New(must.New(postgres.New(tx, nil)), nil)).Write(ctx, stream, messagestore.AnyVersion, event); err != nil {
			return err
		}
		return errRollBack
	})
	if errors.Is(err, errRollBack) {
		return nil
	}
	return err
}
