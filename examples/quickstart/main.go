// Quickstart inserts a job once, though its sender inserts it three times.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/queue"
)

type Welcome struct{ To string }

func (Welcome) MessageType() string { return "Welcome" }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	store := must(dibs.Open(ctx, "memory:", nil)) // or sqlite:FILE, or postgres://...
	mail := must(queue.New(store, "mail", nil))
	for range 3 { // as a sender does that got no answer
		job := must(mail.Insert(ctx, Welcome{To: "ann"}, &queue.InsertOpts{Unique: "welcome ann"}))
		fmt.Println("inserted before:", job.Duplicate)
	}
	mux := handler.New()
	handler.On(mux, func(_ context.Context, m handler.Message[Welcome]) error {
		fmt.Println("mail to", m.Body.To)
		stop() // a service goes on until it is told to stop
		return nil
	})
	if err := mail.Work(ctx, mux, nil); err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
