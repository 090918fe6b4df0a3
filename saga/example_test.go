package saga_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/saga"
)

type Trip struct {
	To string `json:"to"`
}

// Two steps, of which the second is refused for one of the trips.
func Example() {
	flight := saga.NewStep("flight",
		func(ctx context.Context, t Trip) (string, error) {
			fmt.Println("book a flight with key", saga.Key(ctx))
			return "OK123", nil
		},
		func(ctx context.Context, _ Trip, reference *string) error {
			if reference != nil { // else it is not known whether there is one
				fmt.Println("cancel", *reference)
			}
			return nil
		}, nil)
	hotel := saga.NewStep("hotel",
		func(_ context.Context, t Trip) (int, error) {
			if t.To == "LIS" {
				return 0, handler.Refuse(errors.New("no rooms")) // to try again does not help
			}
			return 7, nil
		}, nil, nil)

	book := func(s *saga.Run, t Trip) (string, error) {
		reference, err := flight.Do(s, t)
		if err != nil {
			return "", err
		}
		room, err := hotel.Do(s, t)
		return fmt.Sprintf("flight %s, room %d", reference, room), err
	}

	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	booking, err := saga.New(store, "booking", book, saga.Steps{flight, hotel}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- booking.Run(ctx) }()

	for id, trip := range []Trip{{"OPO"}, {"LIS"}} {
		if _, err := booking.Begin(ctx, fmt.Sprint(id), trip); err != nil {
			fmt.Println(err)
		}
		status, err := booking.Wait(ctx, fmt.Sprint(id))
		fmt.Println(status.State, status.Out, status.Reason, err)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// book a flight with key booking:saga-0+flight
	// completed flight OK123, room 7  <nil>
	// book a flight with key booking:saga-1+flight
	// cancel OK123
	// compensated  hotel: no rooms <nil>
	// <nil>
}
