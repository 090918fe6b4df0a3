package saga_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/saga"
)

// An airline has a bad day. Its keys are those that it was called with.
type airline struct {
	keys      []string
	cancelled []string
	until     time.Time // it answers nothing before
}

func (a *airline) book(ctx context.Context, _ Trip) (string, error) {
	a.keys = append(a.keys, saga.Key(ctx))
	if time.Now().Before(a.until) {
		return "", errors.New("no answer")
	}
	return "OK123", nil
}

func (a *airline) cancel(_ context.Context, _ Trip, reference *string) error {
	if reference != nil { // else it is not known whether there is one
		a.cancelled = append(a.cancelled, *reference)
	}
	return nil
}

func reserveRoom(_ context.Context, t Trip) (int, error) {
	if t.To == "Atlantis" {
		return 0, handler.Refuse(errors.New("no rooms"))
	}
	return 7, nil
}

// trips is the saga as the service makes it, over an airline.
func trips(store *messagestore.Store, a *airline) (*saga.Saga[Trip, string], error) {
	flight := saga.NewStep("flight", a.book, a.cancel, nil)
	hotel := saga.NewStep("hotel", reserveRoom, nil, nil)
	return saga.New(store, "trip", func(s *saga.Run, t Trip) (string, error) {
		reference, err := flight.Do(s, t)
		if err != nil {
			return "", err
		}
		_, err = hotel.Do(s, t)
		return reference, err
	}, saga.Steps{flight, hotel}, nil)
}

// bookTrip runs a trip to its end. In a bubble of synctest no pause takes time.
func bookTrip(t *testing.T, a *airline, trip Trip) saga.Status[string] {
	t.Helper()
	store, err := messagestore.New(memory.New(), nil)
	require.NoError(t, err)
	booking, err := trips(store, a)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- booking.Run(ctx) }()

	_, err = booking.Begin(ctx, "7", trip)
	require.NoError(t, err)
	status, err := booking.Wait(ctx, "7")
	require.NoError(t, err)
	stop()
	require.NoError(t, <-ended)
	return status
}

func TestAFlightIsCancelledWhereThereIsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		air := &airline{}

		status := bookTrip(t, air, Trip{To: "Atlantis"})

		require.Equal(t, saga.StateCompensated, status.State)
		require.Equal(t, "hotel: no rooms", status.Reason)
		require.Equal(t, []string{"OK123"}, air.cancelled)
	})
}

func TestAnAirlineThatIsDownIsAskedAgainWithTheSameKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		air := &airline{until: time.Now().Add(2 * time.Second)}

		status := bookTrip(t, air, Trip{To: "Lisbon"})

		require.Equal(t, saga.StateCompleted, status.State)
		require.Greater(t, len(air.keys), 1)
		for _, key := range air.keys {
			require.Equal(t, "trip:saga-7+flight", key)
		}
	})
}
