package work

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThoseWhoFailedWaitUntilOneIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), 0
		g := newGate(func(context.Context) error {
			if asked++; time.Since(began) < time.Second {
				return errors.New("it recovers")
			}
			return nil
		})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { g.wait(t.Context(), began) })
		}
		all.Wait()
		require.GreaterOrEqual(t, time.Since(began), time.Second)
		require.Less(t, time.Since(began), time.Second+2*pingEvery)
		require.LessOrEqual(t, asked, 22)

		g.wait(t.Context(), time.Now()) // a later failure asks again
		require.Greater(t, g.open, began.Add(time.Second-1))
	})
}

func TestNobodyWaitsForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		g := newGate(func(context.Context) error { return errors.New("it is gone") })
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { g.wait(t.Context(), began) })
		}
		all.Wait()
		require.Less(t, time.Since(began), pingFor+2*pingEvery)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		now := time.Now()
		g.wait(ctx, now)
		require.Equal(t, now, time.Now())
	})
}
