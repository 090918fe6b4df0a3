package entity_test

import (
	"context"
	"fmt"
	"log"
	"maps"

	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

type Account struct {
	Customer string
	Balance  int
}

type Opened struct {
	Customer string `json:"customer"`
}

type Deposited struct {
	Amount int `json:"amount"`
}

type Withdrawn struct {
	Amount int `json:"amount"`
}

func (Opened) MessageType() string    { return "Opened" }
func (Deposited) MessageType() string { return "Deposited" }
func (Withdrawn) MessageType() string { return "Withdrawn" }

func account() *entity.Projection[Account] {
	p := entity.NewProjection[Account]()
	entity.On(p, func(a Account, e Opened) Account { a.Customer = e.Customer; return a })
	entity.On(p, func(a Account, e Deposited) Account { a.Balance += e.Amount; return a })
	entity.On(p, func(a Account, e Withdrawn) Account { a.Balance -= e.Amount; return a })
	return p
}

// Load, decide, and write at the version that was loaded.
func Example() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	accounts, err := entity.New(store, "account", account(), nil)
	if err != nil {
		log.Fatal(err)
	}

	withdraw := func(amount int) error {
		a, version, err := accounts.Get(ctx, "123")
		if err != nil {
			return err
		}
		if a.Balance < amount {
			return fmt.Errorf("%s has %d", a.Customer, a.Balance)
		}
		_, err = store.Write(ctx, accounts.Stream("123"), version, Withdrawn{amount})
		return err
	}

	if _, err := store.Write(ctx, accounts.Stream("123"), messagestore.NoStream, Opened{"Ann"}, Deposited{10}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(withdraw(7))
	fmt.Println(withdraw(7))
	// Output:
	// <nil>
	// Ann has 3
}

func ExampleStore_Get() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	accounts, err := entity.New(store, "account", account(), nil)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(accounts.Get(ctx, "123"))
	if _, err := store.Write(ctx, "account-123", messagestore.NoStream, Opened{"Ann"}, Deposited{10}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(accounts.Get(ctx, "123"))
	// Output:
	// { 0} no stream <nil>
	// {Ann 10} 1 <nil>
}

// An entity with a map in it says how it is copied.
type Basket struct {
	Items map[string]int
}

func (b Basket) Clone() Basket {
	return Basket{maps.Clone(b.Items)}
}

type Put struct {
	Item string `json:"item"`
}

func (Put) MessageType() string { return "Put" }

func ExampleOn() {
	basket := entity.NewProjection[Basket]()
	entity.On(basket, func(b Basket, e Put) Basket {
		if b.Items == nil {
			b.Items = map[string]int{}
		}
		b.Items[e.Item]++
		return b
	})

	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	baskets, err := entity.New(store, "basket", basket, nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.Write(ctx, "basket-1", messagestore.NoStream, Put{"pear"}, Put{"plum"}, Put{"pear"}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(baskets.Get(ctx, "1"))
	// Output:
	// {map[pear:2 plum:1]} 2 <nil>
}
