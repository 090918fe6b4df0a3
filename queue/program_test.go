package queue_test

import (
	"context"
	"fmt"
	"log"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// Welcome is the body of an item: MessageType is its type in the store.
type Welcome struct {
	To string `json:"to"`
}

func (Welcome) MessageType() string { return "Welcome" }

// A whole program: it inserts an item, works on it, and ends.
func Example_program() {
	ctx, stop := context.WithCancel(context.Background()) // or signal.NotifyContext
	defer stop()
	store, err := messagestore.New(memory.New(), nil) // or dibs.Open(ctx, "postgres://…", nil)
	if err != nil {
		log.Fatal(err)
	}
	mail, err := queue.New(store, "mail", nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := mail.Insert(ctx, Welcome{To: "ann"}, nil); err != nil {
		log.Fatal(err)
	}

	mux := handler.New()
	handler.On(mux, func(_ context.Context, m handler.Message[Welcome]) error {
		fmt.Println("welcome,", m.Body.To)
		stop()
		return nil
	})
	if err := mail.Work(ctx, mux, nil); err != nil {
		log.Fatal(err)
	}
	// Output:
	// welcome, ann
}
