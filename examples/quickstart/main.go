// Quickstart books a deposit once, though its sender sends it three times.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

type Deposit struct{ ID, Amount string }

func (Deposit) MessageType() string { return "Deposit" }
func (d Deposit) Key() string       { return d.ID } // of all deposits with one key, one is booked

type Deposited struct{ Amount string }

func (Deposited) MessageType() string { return "Deposited" }

func main() {
	ctx := context.Background()
	store := must(dibs.Open(ctx, "memory:", nil)) // or sqlite:FILE, or postgres://...
	for range 3 {                                 // the sender gets no answer, and sends it again
		must(store.Write(ctx, "account:command-123", messagestore.AnyVersion, Deposit{"AAA", "10.00"}))
	}
	mux, once := handler.New(), must(reservation.New(store, "accounts", nil))
	handler.Register(mux, reservation.Inline(once, Deposit.Key, func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		event := messagestore.Follow(m.Message, Deposited{m.Body.Amount})
		return []messagestore.StreamWrite{messagestore.To("account-123", messagestore.AnyVersion, event)}, nil
	}))
	fmt.Println(must(consumer.New(store, "account:command", "accounts", mux, nil)).CatchUp(ctx)) // a service calls Run
	fmt.Println(store.Last(ctx, "account-123"))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
