// Quickstart pays ten crowns into an account once, though it is told to three times.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

const (
	account  messagestore.Category = "account"
	commands messagestore.Category = "account:command"
)

type Deposit struct {
	AccountID string `json:"accountId"`
	DepositID string `json:"depositId"`
	Amount    int    `json:"amount"`
}

func (Deposit) MessageType() string { return "Deposit" }
func (d Deposit) Key() string       { return d.DepositID } // of all with this key, one is handled

type Deposited struct {
	Amount int `json:"amount"`
}

func (Deposited) MessageType() string { return "Deposited" }

func main() {
	ctx := context.Background()
	store := must(dibs.Open(ctx, cmp.Or(os.Getenv("DIBS_STORE"), "memory:"), nil)) // or sqlite:FILE, postgres://...
	defer store.Close()

	// Its sender does not know whether a message arrived, and sends it again.
	for range 3 {
		must(store.Write(ctx, commands.Stream("123"), messagestore.AnyVersion, Deposit{"123", "AAA", 10}))
	}

	// Its receiver reserves the key and writes what it decides in one transaction: first write wins.
	once := reservation.New(store, "accounts", nil)
	mux := handler.New()
	handler.On(mux, reservation.Inline(once, Deposit.Key,
		func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			event := messagestore.Follow(m.Message, Deposited{m.Body.Amount})
			return []messagestore.StreamWrite{{
				Stream: account.Stream(m.Body.AccountID), Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{event},
			}}, nil
		}))
	accounts := consumer.New(store, commands, "accounts", mux, nil)
	if err := accounts.CatchUp(ctx); err != nil { // a service calls Run
		log.Fatal(err)
	}

	for m, err := range store.ReadStream(ctx, account.Stream("123"), 0) {
		fmt.Println(must(m, err), string(m.Data))
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
