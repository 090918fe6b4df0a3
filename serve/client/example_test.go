package client_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/serve"
	"github.com/dibs-go/dibs/serve/client"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// Orders are produced, and each is paid once, under an intent.
func Example() {
	address, stop := server()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(address, nil)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	q := &v1.QueueName{Category: "order"}
	for n := range 2 {
		item := &v1.NewItem{Id: uuid.NewString(), Type: "Pay", DataJson: fmt.Sprintf(`{"order":%d}`, n+1)}
		if _, err := c.Queues.Produce(ctx, &v1.ProduceRequest{Queue: q, Items: []*v1.NewItem{item}}); err != nil {
			panic(err)
		}
	}
	received, err := c.Queues.Receive(ctx, &v1.ReceiveRequest{Queue: q, ReceiveId: uuid.NewString(), MaxItems: 10, MaxWait: durationpb.New(10 * time.Second)})
	if err != nil {
		panic(err)
	}
	var settlements []*v1.Settlement
	for _, d := range received.GetDeliveries() {
		answer, err := c.Intents.Reserve(ctx, &v1.ReserveRequest{
			Name: &v1.IntentName{Category: "order:intent", Key: d.GetItem().GetId()}, SessionId: uuid.NewString(), ContentJson: d.GetItem().GetDataJson(),
		})
		if err != nil {
			panic(err)
		}
		if answer.GetOutcome() == v1.Outcome_OUTCOME_RESERVED {
			// Here the money moves.
			confirmed, err := c.Intents.Confirm(ctx, &v1.ConfirmRequest{Lease: answer.GetLease(), ResultJson: `{"paid":true}`})
			if err != nil {
				panic(err)
			}
			fmt.Println(d.GetItem().GetDataJson(), confirmed.GetOutcome())
		}
		settlements = append(settlements, &v1.Settlement{DeliveryId: d.GetDeliveryId(), Action: &v1.Settlement_Complete_{}})
	}
	settled, err := c.Queues.Settle(ctx, &v1.SettleRequest{Queue: q, Settlements: settlements})
	fmt.Println(settled.GetOutcomes(), err)
	// Output:
	// {"order":1} LEASE_OUTCOME_OK
	// {"order":2} LEASE_OUTCOME_OK
	// [SETTLEMENT_OUTCOME_DONE SETTLEMENT_OUTCOME_DONE] <nil>
}

// A payment is carried out once, however often it is asked for. With intent.New over a store, the
// rest of the program would be the same.
func ExampleClient_IntentManager() {
	address, stop := server()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(address, nil)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	intents, err := c.IntentManager("payment:intent", nil)
	if err != nil {
		panic(err)
	}
	order := map[string]int{"amount": 10}
	for range 2 {
		receipt, answer, err := intent.Do(ctx, intents, intent.Request{Key: "order 1", Content: order},
			func(_ context.Context, lease *intent.Lease) (string, error) {
				fmt.Println("pay, attempt", lease.Attempt()) // with lease.Token()
				return "receipt 17", nil
			})
		if err != nil {
			panic(err)
		}
		fmt.Println(answer.Outcome, receipt)
	}
	// Output:
	// pay, attempt 1
	// reserved receipt 17
	// done receipt 17
}

// server serves a store in memory.
func server() (address string, stop func()) {
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		panic(err)
	}
	s, err := serve.New(store, &serve.Config{Logger: logger.Silent()})
	if err != nil {
		panic(err)
	}
	ready, ended := make(chan string), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		if err := s.Run(ctx, serve.Listen{Address: "127.0.0.1:0", Ready: func(address string) { ready <- address }}); err != nil {
			panic(err)
		}
	}()
	return "http://" + <-ready, func() {
		cancel()
		<-ended
	}
}
