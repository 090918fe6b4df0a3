package main

import (
	"context"

	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// The categories of accounts.
const (
	accounts messagestore.Category = "account"         // events: account-123 has those of account 123
	commands messagestore.Category = "account:command" // commands: account:command-123
)

// Deposit is a command: it asks for money to be booked.
type Deposit struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Amount  int    `json:"amount"` // in hundredths
}

func (Deposit) MessageType() string { return "Deposit" }

// Key is the idempotence key: of all deposits with one key, one is booked.
func (d Deposit) Key() string { return d.ID }

// Deposited is an event: money was booked.
type Deposited struct {
	Amount int `json:"amount"`
}

func (Deposited) MessageType() string { return "Deposited" }

// Account is folded from its events.
type Account struct {
	Balance int `json:"balance"`
}

func projection() *entity.Projection[Account] {
	p := entity.NewProjection[Account]()
	entity.On(p, func(a Account, e Deposited) Account {
		a.Balance += e.Amount
		return a
	})
	return p
}

// handlers books deposits. Inline writes the reservation of the key and the event as one.
func handlers(store *messagestore.Store) (*handler.Mux, error) {
	once, err := reservation.New(store, "accounts", nil)
	if err != nil {
		return nil, err
	}
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, Deposit.Key, deposit))
	return mux, nil
}

func deposit(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
	booked := messagestore.Follow(m.Message, Deposited{Amount: m.Body.Amount})
	return []messagestore.StreamWrite{
		messagestore.To(accounts.Stream(m.Body.Account), messagestore.AnyVersion, booked),
	}, nil
}
