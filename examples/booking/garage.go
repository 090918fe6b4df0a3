package booking

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// The garage is a separate component: it only knows the ids of trips.
const (
	cars        messagestore.Category = "car"
	carCommands messagestore.Category = "car:command"
)

// A Rental is the input of the step car.
type Rental struct {
	Trip  string `json:"trip"`
	Class string `json:"class"`
}

// RentCar asks for a car.
type RentCar struct{ Rental }

// ReturnCar gives a car back, or says that it is no longer wanted.
type ReturnCar struct{ Rental }

// CarRented is the garage's answer.
type CarRented struct {
	Plate string `json:"plate"`
}

// CarRefused is its other answer.
type CarRefused struct {
	Reason string `json:"reason"`
}

// CarReturned says that a rental has ended.
type CarReturned struct{}

// MessageType implements [messagestore.Body].
func (RentCar) MessageType() string { return "RentCar" }

// MessageType implements [messagestore.Body].
func (ReturnCar) MessageType() string { return "ReturnCar" }

// MessageType implements [messagestore.Body].
func (CarRented) MessageType() string { return "CarRented" }

// MessageType implements [messagestore.Body].
func (CarRefused) MessageType() string { return "CarRefused" }

// MessageType implements [messagestore.Body].
func (CarReturned) MessageType() string { return "CarReturned" }

// rentCar is the command of the step. Both commands of a trip are in one stream, so they are
// handled in order.
func rentCar(_ context.Context, r Rental) (messagestore.StreamWrite, error) {
	return messagestore.To(carCommands.Stream(r.Trip), messagestore.AnyVersion, RentCar{r}), nil
}

func returnCar(_ context.Context, r Rental, _ *string) (messagestore.StreamWrite, error) {
	return messagestore.To(carCommands.Stream(r.Trip), messagestore.AnyVersion, ReturnCar{r}), nil
}

// garage handles the commands. A command that is delivered again meets the event that it wrote.
func garage(store *messagestore.Store) *handler.Mux {
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[RentCar]) error {
		var event messagestore.Body = CarRented{"DIB-" + m.Body.Trip}
		if m.Body.Class == "limousine" {
			event = CarRefused{"no limousine"}
		}
		_, err := store.WriteInitial(ctx, cars.Stream(m.Body.Trip), messagestore.Follow(m.Message, event))
		return err
	})
	handler.On(mux, func(ctx context.Context, m handler.Message[ReturnCar]) error {
		car, err := store.Last(ctx, cars.Stream(m.Body.Trip))
		if err != nil || car.Type != (CarRented{}).MessageType() {
			return err // nil if it was refused, or is returned
		}
		_, err = store.Write(ctx, car.Stream, car.Position, messagestore.Follow(m.Message, CarReturned{}))
		return err
	})
	return mux
}

// answers makes replies to the step of the garage's events.
func answers(trips *saga.Saga[Trip, Itinerary]) *handler.Mux {
	mux := handler.New()
	mux.IgnoreUnknown() // CarReturned: no step waits for it
	handler.Register(mux, saga.Answer(trips, "car", func(_ context.Context, m handler.Message[CarRented]) (string, error) {
		return m.Body.Plate, nil
	}))
	handler.Register(mux, saga.Answer(trips, "car", func(_ context.Context, m handler.Message[CarRefused]) (string, error) {
		return "", handler.Refuse(errors.New(m.Body.Reason))
	}))
	return mux
}
