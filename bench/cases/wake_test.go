package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/bench/measure"
)

// A wire is a store of a wake-up test: a message arrives after a delay.
func wire(delay time.Duration) (write func(context.Context, sent) error, l listener) {
	const most = 1000
	arrives := make(chan json.RawMessage, most)
	write = func(_ context.Context, m sent) error {
		arrives <- json.RawMessage(fmt.Sprintf(`{"at":%d}`, m.At))
		return nil
	}
	return write, func(ctx context.Context, hand func(json.RawMessage) error) error {
		for {
			select {
			case data := <-arrives:
				time.Sleep(delay)
				if err := hand(data); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func TestListenMeasuresFromBeforeTheWriteToTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := &measure.Cell{}
		write, l := wire(3 * time.Millisecond)
		require.NoError(t, write(t.Context(), sent{}))

		seen, err := listen(t.Context(), cell, l, 20, func(wait func() error) error {
			return errors.Join(send(t.Context(), cell, 20, write), wait())
		})

		require.NoError(t, err)
		require.Equal(t, int64(20), seen)
		metrics := cell.Tally().Metrics()
		require.InEpsilon(t, 0.003, metrics[measure.P50], 0.02)
		require.InEpsilon(t, 0.003, metrics[measure.P99], 0.02)
	})
}

func TestListenReturnsWhyTheListenerStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := errors.New("wrong")
		stops := func(context.Context, func(json.RawMessage) error) error { return wrong }

		_, err := listen(t.Context(), &measure.Cell{}, stops, 1, func(wait func() error) error { return wait() })

		require.ErrorIs(t, err, wrong)
	})
}

func TestMessagesAreSentAtTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell, began, n := &measure.Cell{}, time.Now(), 0
		require.NoError(t, send(t.Context(), cell, 2*wakeRate, func(_ context.Context, m sent) error {
			n++
			require.Equal(t, time.Now().UnixNano(), m.At)
			time.Sleep(time.Millisecond)
			return nil
		}))

		require.Equal(t, 2*wakeRate, n)
		require.InDelta(t, 2*time.Second, time.Since(began), float64(5*time.Millisecond))
		require.InEpsilon(t, 0.001, cell.Tally().Metrics()[measure.WriteP99], 0.02)
	})
}
