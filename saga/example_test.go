package saga_test

import (
	"context"
	"errors"
	"fmt"
	"time"

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

type Approval struct {
	By string `json:"by"`
}

// A saga waits for a person. The signal may come before it waits.
func ExampleReceive() {
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	trips, err := saga.New(store, "booking", func(r *saga.Run, t Trip) (string, error) {
		approval, err := saga.Receive[Approval](r, "approved", 24*time.Hour)
		return "to " + t.To + ", approved by " + approval.By, err
	}, nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- trips.Run(ctx) }()

	if _, err := trips.Begin(ctx, "7", Trip{"OPO"}); err != nil {
		fmt.Println(err)
	}
	if _, err := store.WriteStreams(ctx, trips.Signal("7", "approved", Approval{"ann"})); err != nil {
		fmt.Println(err)
	}
	status, err := trips.Wait(ctx, "7")
	fmt.Println(status.State, status.Out, err)
	stop()
	fmt.Println(<-ended)
	// Output:
	// completed to OPO, approved by ann <nil>
	// <nil>
}

// A Rental is the input of the saga that another one starts.
type Rental struct {
	Trip string `json:"trip"`
	Car  string `json:"car"`
}

// A Rented tells the trip how its rental has ended.
type Rented struct {
	Trip  string `json:"trip"`
	Plate string `json:"plate"`
	Wrong string `json:"wrong,omitempty"`
}

// A saga starts another by a step, and awaits it by a signal. To undo the step is to cancel the other, and to wait until that
// is undone. The other tells its end by a step, also if it fails; if it is cancelled its function is not run, and the
// time-out of the signal tells.
func Example_child() {
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var trips *saga.Saga[Trip, string]

	car := saga.NewStep("car",
		func(_ context.Context, r Rental) (string, error) { return "the " + r.Car, nil },
		func(_ context.Context, r Rental, _ *string) error { fmt.Println("give back the", r.Car); return nil }, nil)
	told := saga.NewStep("told", func(ctx context.Context, r Rented) (bool, error) {
		_, err := store.WriteStreams(ctx, trips.Signal(r.Trip, "rented", r))
		return true, err
	}, nil, nil)
	rentals, err := saga.New(store, "rental", func(r *saga.Run, in Rental) (string, error) {
		plate, err := car.Do(r, in)
		end := Rented{Trip: in.Trip, Plate: plate}
		if failed, is := errors.AsType[*saga.StepError](err); is {
			end.Wrong = failed.Error()
		} else if err != nil {
			return "", err
		}
		_, toldErr := told.Do(r, end)
		return plate, errors.Join(err, toldErr)
	}, saga.Steps{car, told}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	rental := saga.NewStep("rental",
		func(ctx context.Context, r Rental) (string, error) {
			_, err := rentals.Begin(ctx, r.Trip, r)
			return r.Trip, err
		},
		func(ctx context.Context, r Rental, _ *string) error {
			status, err := rentals.Cancel(ctx, r.Trip, "the trip is undone")
			switch {
			case errors.Is(err, messagestore.ErrNotFound):
				return nil // it was not begun
			case err != nil:
				return err
			case status.State == saga.StateCompleted: // too late to cancel it
				return handler.Park(fmt.Errorf("the rental %s has ended: give it back by hand", r.Trip))
			case !status.IsOver():
				return handler.RetryAfter(10*time.Millisecond, errors.New("the rental is being undone"))
			}
			return nil
		}, nil)
	trips, err = saga.New(store, "booking", func(r *saga.Run, t Trip) (string, error) {
		if _, err := rental.Do(r, Rental{r.ID(), "van"}); err != nil {
			return "", err
		}
		rented, err := saga.Receive[Rented](r, "rented", time.Hour)
		if err == nil && rented.Wrong != "" {
			err = errors.New(rented.Wrong)
		}
		return "to " + t.To + " with " + rented.Plate, err
	}, saga.Steps{rental}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- trips.Run(ctx) }()
	go func() { ended <- rentals.Run(ctx) }()
	if _, err := trips.Begin(ctx, "7", Trip{"OPO"}); err != nil {
		fmt.Println(err)
	}
	status, err := trips.Wait(ctx, "7")
	fmt.Println(status.State, status.Out, err)
	stop()
	fmt.Println(<-ended, <-ended)
	// Output:
	// completed to OPO with the van <nil>
	// <nil> <nil>
}
