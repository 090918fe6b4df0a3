package saga_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/saga"
)

func TestASagaGoesThroughItsSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := travel(t, store, w, nil)
		defer running(t, s)()

		begin(t, s, "7", trip{"LIS"})
		status := waitFor(t, s, "7")

		require.Equal(t, saga.StateCompleted, status.State)
		require.Equal(t, itinerary{ticket{"flight to LIS"}, ticket{"hotel to LIS"}, ticket{"car to LIS"}}, status.Out)
		require.Equal(t, "book flight, book hotel, book car", w.did())
		require.Equal(t, []string{
			"Started", "Began flight", "Done flight", "Began hotel", "Done hotel", "Began car", "Done car", "Completed",
		}, events(t, store, "7"))
	})
}

func TestARefusalUndoesTheBegunStepsInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book car", 9, refusal("no cars in LIS"))
		s := travel(t, store, w, nil)
		defer running(t, s)()

		begin(t, s, "7", trip{"LIS"})
		status := waitFor(t, s, "7")

		require.Equal(t, saga.StateCompensated, status.State)
		require.Equal(t, "car: no cars in LIS", status.Reason)
		require.Equal(t, "book flight, book hotel, book car, cancel car?, cancel hotel, cancel flight", w.did())
		require.Equal(t, []string{
			"Started", "Began flight", "Done flight", "Began hotel", "Done hotel", "Began car", "Failed car", "Compensating",
			"Undone car", "Undone hotel", "Undone flight", "Compensated",
		}, events(t, store, "7"))
		require.Equal(t, 1, w.keysOf("book car"))
	})
}

func TestAFailureIsTriedAgainAndThenUndone(t *testing.T) {
	t.Parallel()
	for _, failures := range []int{1, 4, 5} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			w.fails("book hotel", failures, errDown)
			s := travel(t, store, w, nil)
			defer running(t, s)()

			begin(t, s, "7", trip{"LIS"})
			began := time.Now()
			status := waitFor(t, s, "7")

			if failures < 5 {
				require.Equal(t, saga.StateCompleted, status.State)
				require.Equal(t, failures+1, w.calls["book hotel"])
			} else {
				require.Equal(t, saga.StateCompensated, status.State)
				require.Equal(t, "hotel: the server is down", status.Reason)
				require.Equal(t, 5, w.calls["book hotel"])
			}
			require.Greater(t, time.Since(began), 400*time.Millisecond)
			require.Equal(t, 1, w.calls["book flight"])
			require.Equal(t, 1, w.keysOf("book hotel"), "all attempts have one key")
		})
	}
}

func TestAnUndoIsTriedAgainForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book car", 9, refusal("no cars"))
		w.fails("cancel hotel", 30, errDown)
		s := travel(t, store, w, nil)
		defer running(t, s)()

		begin(t, s, "7", trip{"LIS"})
		status := waitFor(t, s, "7")

		require.Equal(t, saga.StateCompensated, status.State)
		require.Equal(t, 31, w.calls["cancel hotel"])
		require.Equal(t, 1, w.calls["cancel flight"])
		require.Equal(t, 1, w.keysOf("cancel hotel"))
	})
}

// A saga that is the first of its name, sleeps, ends, and is stopped has nothing to warn of.
func TestASagaThatIsWellSaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
		s, err := saga.New(newStore(), "booking", func(r *saga.Run, _ trip) (itinerary, error) {
			return itinerary{}, r.Sleep("a while", time.Hour)
		}, nil, &saga.Config{Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&lines)).Level(zerolog.WarnLevel))})
		require.NoError(t, err)
		stop := running(t, s)
		time.Sleep(time.Minute)
		_, err = s.Begin(t.Context(), "7", trip{})
		require.NoError(t, err)
		require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
		time.Sleep(90 * time.Second)
		stop()

		require.Empty(t, lines.String())
	})
}
