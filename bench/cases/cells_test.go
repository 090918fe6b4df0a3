package cases

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAtOnceDoesEachThingOnce(t *testing.T) {
	var mu sync.Mutex
	done := map[int]int{}

	require.NoError(t, atOnce(7, 100, func(i int) error {
		mu.Lock()
		defer mu.Unlock()
		done[i]++
		return nil
	}))

	require.Len(t, done, 100)
	for i, times := range done {
		require.Equal(t, 1, times, i)
		require.Less(t, i, 100)
	}
}

func TestAtOnceReturnsAnError(t *testing.T) {
	wrong := errors.New("wrong")
	require.ErrorIs(t, atOnce(3, 10, func(i int) error {
		if i == 5 {
			return wrong
		}
		return nil
	}), wrong)
}

func TestUntilAsksAgainUntilItIsSoOrFailsOrEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		require.NoError(t, until(t.Context(), "asked thrice", func() (bool, any, error) {
			asked++
			return asked == 3, asked, nil
		}))
		require.Equal(t, 3, asked)

		wrong := errors.New("wrong")
		require.ErrorIs(t, until(t.Context(), "never", func() (bool, any, error) { return false, nil, wrong }), wrong)

		began := time.Now()
		err := until(t.Context(), "never", func() (bool, any, error) { return false, "as it was", nil })
		require.ErrorContains(t, err, "within 1m0s: never: as it was")
		require.Less(t, time.Since(began), 2*mostWaited)

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(wrong)
		require.ErrorIs(t, until(ctx, "never", func() (bool, any, error) { return false, nil, nil }), wrong)
	})
}
