package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// A consumer goes on where the last one of its name left off. CatchUp ends when
// nothing is left; a service calls Run.
func ExampleNew() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	balance := 0
	h := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		deposited, err := messagestore.Decode[Deposited](m)
		if err != nil {
			return err
		}
		balance += deposited.Amount
		return nil
	})

	for _, amount := range []int{10, 20} {
		if _, err := store.Write(ctx, "account-123", messagestore.AnyVersion, Deposited{amount}); err != nil {
			log.Fatal(err)
		}
		c, err := consumer.New(store, "account", "balances", h, nil)
		if err != nil {
			log.Fatal(err)
		}
		if err := c.CatchUp(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("handled %d, balance %d\n", c.Stats().Handled, balance)
	}

	// Output:
	// handled 1, balance 10
	// handled 1, balance 30
}

// A message that cannot be handled is parked, the others go on, and when the cause
// is mended it is taken up again.
func Example_parkAndRedrive() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.Write(ctx, "account-123", messagestore.NoStream, Deposited{10}, Deposited{-1}, Deposited{20}); err != nil {
		log.Fatal(err)
	}
	mended := false
	h := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		deposited, err := messagestore.Decode[Deposited](m)
		if err != nil {
			return err
		}
		if deposited.Amount < 0 && !mended {
			return errors.New("negative deposit")
		}
		fmt.Println("deposited", deposited.Amount)
		return nil
	})
	c, err := consumer.New(store, "account", "balances", h, &consumer.Config{
		Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.CatchUp(ctx); err != nil {
		log.Fatal(err)
	}
	parked, err := operate.Consumer(store, "account", "balances").Parked()
	if err != nil {
		log.Fatal(err)
	}
	items, err := parked.Items(ctx, queue.Dead, 0, 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, item := range items {
		fmt.Printf("parked %s %s@%d: %s\n", item.Message.Type, item.Message.Stream, item.Message.Position, item.Error)
	}

	mended = true
	if _, err := parked.Retry(ctx, "deposits may be negative", items[0].Position); err != nil {
		log.Fatal(err)
	}
	if err := c.CatchUp(ctx); err != nil {
		log.Fatal(err)
	}

	// Output:
	// deposited 10
	// deposited 20
	// parked Deposited account-123@1: negative deposit
	// deposited -1
}
