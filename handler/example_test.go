package handler_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
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

// audited wraps a function for messages of any type.
func audited[T messagestore.Body](next handler.Func[T]) handler.Func[T] {
	return func(ctx context.Context, m handler.Message[T]) error {
		err := next(ctx, m)
		fmt.Println(m.Message, "error:", err)
		return err
	}
}

func ExampleHandler_Wrap() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = store.Write(ctx, "account:command-123", messagestore.NoStream, Deposit{10})
	if err != nil {
		fmt.Println(err)
	}

	once, err := reservation.New(store, "accounts", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	deposit := reservation.Inline(once, reservation.ContentKey[Deposit],
		func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) { return nil, nil })
	mux := handler.New()
	handler.Register(mux, deposit.Wrap(audited))

	accounts, err := consumer.New(store, "account:command", "accounts", mux, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := accounts.CatchUp(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// Deposit account:command-123@0 error: <nil>
}

func ExampleMux_Validate() {
	var accounts Accounts
	mux := handler.New()
	handler.On(mux, accounts.deposit)
	handler.On(mux, accounts.deposit)

	fmt.Println(mux.Validate())
	// Output:
	// invalid registration "Deposit": must not be registered twice
}
