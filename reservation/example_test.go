package reservation_test

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

const commands messagestore.Category = "account:command"

type Deposit struct {
	DepositID string `json:"depositId"`
	Amount    int    `json:"amount"`
}

func (Deposit) MessageType() string { return "Deposit" }
func (d Deposit) Key() string       { return d.DepositID }

type Deposited struct {
	Amount int `json:"amount"`
}

func (Deposited) MessageType() string { return "Deposited" }

// issue writes the command as often as its sender would who hears nothing back.
func issue(ctx context.Context, store *messagestore.Store, times int, body messagestore.Body) {
	for range times {
		if _, err := store.Write(ctx, commands.Stream("123"), messagestore.AnyVersion, body); err != nil {
			fmt.Println(err)
		}
	}
}

// consume lets one consumer handle what is there.
func consume(ctx context.Context, store *messagestore.Store, mux *handler.Mux) {
	c, err := consumer.New(store, commands, "accounts", mux, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.CatchUp(ctx); err != nil {
		fmt.Println(err)
	}
}

func ExampleCopy() {
	ctx := context.Background()
	store := messagestore.New(memory.New(), nil)
	once, err := reservation.New(store, &reservation.Config{
		OnOutcome: func(_ context.Context, source *messagestore.Recorded, result reservation.Result) {
			fmt.Printf("%s: %s, by %s\n", source, result.Outcome, result.Winner)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	deposit := func(_ context.Context, m handler.Message[Deposit]) error {
		fmt.Printf("%s: handled\n", m)
		return nil
	}

	mux := handler.New()
	handler.On(mux, reservation.Copy(once, Deposit.Key, deposit))
	issue(ctx, store, 3, Deposit{"AAA", 10})
	consume(ctx, store, mux)
	// Output:
	// Deposit account:command-123@0: reserved, by Deposit account:command-123+AAA@0
	// Deposit account:command-123@1: duplicate, by Deposit account:command-123+AAA@0
	// Deposit account:command-123@2: duplicate, by Deposit account:command-123+AAA@0
	// Deposit account:command-123+AAA@0: handled
}
