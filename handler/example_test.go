package handler_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

type Deposit struct {
	Amount int `json:"amount"`
}

func (Deposit) MessageType() string { return "Deposit" }

type Accounts struct{}

func (*Accounts) deposit(_ context.Context, m handler.Message[Deposit]) error {
	if m.Body.Amount <= 0 {
		return errors.New("an amount is more than 0")
	}
	fmt.Println("deposit", m.Body.Amount, "from", m.Stream)
	return nil
}

func ExampleOn() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = store.Write(ctx, "account:command-123", messagestore.NoStream, Deposit{10}, Deposit{0})
	if err != nil {
		fmt.Println(err)
	}

	var accounts Accounts
	mux := handler.New()
	mux.Use(handler.Timeout(time.Minute))
	handler.On(mux, accounts.deposit)

	// A consumer does this, and remembers how far it came.
	for m, err := range store.ReadCategory(ctx, "account:command", 0, messagestore.Filter{}) {
		if err == nil {
			err = mux.Handle(ctx, m)
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// deposit 10 from account:command-123
	// handle Deposit account:command-123@1: an amount is more than 0
}

func ExampleMux_Validate() {
	var accounts Accounts
	mux := handler.New()
	handler.On(mux, accounts.deposit)
	handler.On(mux, accounts.deposit)

	fmt.Println(mux.Validate())
	// Output:
	// invalid registration "Deposit": the type is registered twice
}
