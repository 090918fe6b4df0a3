package outage_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/outage"
)

func TestPauseDoublesUpToTheMostAndVaries(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		least := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "least"))
		most := time.Duration(rapid.Int64Range(int64(least), int64(24*time.Hour)).Draw(t, "most"))
		failures := rapid.IntRange(1, 2000).Draw(t, "failures")
		longest := time.Duration(min(float64(least)*math.Pow(2, float64(failures-1)), float64(most)))

		pause := outage.Pause(failures, least, most)

		require.GreaterOrEqual(t, pause, longest/2-1)
		require.LessOrEqual(t, pause, longest+1)
	})
}

func TestThereIsNoPauseWithoutAFailure(t *testing.T) {
	t.Parallel()
	require.Zero(t, outage.Pause(0, time.Second, time.Minute))
}

func TestWaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		require.NoError(t, outage.Wait(t.Context(), time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, outage.Wait(ctx, time.Hour), context.DeadlineExceeded)
	})
}
