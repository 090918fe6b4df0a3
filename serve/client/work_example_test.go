package client_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve/client"
)

// A worker of a server's queue: only its set-up says that it is one.
func ExampleClient_Queue() {
	address, stop := server()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(address, nil)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	mail, err := c.Queue("mail", &queue.Config{Logger: logger.Silent()}) // or queue.New(store, "mail", …)
	if err != nil {
		panic(err)
	}

	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error {
		if queue.JobOf(ctx).Deliveries == 0 {
			return handler.RetryAfter(10*time.Millisecond, fmt.Errorf("%s is not in", m.Body.To))
		}
		fmt.Println("sent to", m.Body.To)
		return nil
	})
	work, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mail.Work(work, mux, nil) }()

	inserted, err := mail.Insert(ctx, Send{To: "ann"}, &queue.InsertOpts{Key: "ann"})
	if err != nil {
		panic(err)
	}
	item, _, err := mail.Await(ctx, inserted.Position)
	fmt.Println(item.State, item.Log[0].What, err)
	end()
	fmt.Println(<-ended)
	// Output:
	// sent to ann
	// finished deferred <nil>
	// <nil>
}
