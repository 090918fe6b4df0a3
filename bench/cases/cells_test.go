package cases

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

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
		require.NoError(t, until(t.Context(), func() (bool, error) {
			asked++
			return asked == 3, nil
		}))
		require.Equal(t, 3, asked)

		wrong := errors.New("wrong")
		require.ErrorIs(t, until(t.Context(), func() (bool, error) { return false, wrong }), wrong)

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(wrong)
		require.ErrorIs(t, until(ctx, func() (bool, error) { return false, nil }), wrong)
	})
}
