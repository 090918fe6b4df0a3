package intent_test

import (
	"context"
	"fmt"
	"log"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

type payment struct {
	Account string `json:"account"`
	Amount  int    `json:"amount"`
}

// A payment is carried out once, however often it is asked for.
func ExampleDo() {
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	intents, err := intent.New(store, "payment:intent", nil)
	if err != nil {
		log.Fatal(err)
	}

	for range 2 {
		request := intent.Request{Key: "29401/1998-12", Content: payment{"29401", 2452}}
		receipt, answer, err := intent.Do(context.Background(), intents, request, func(ctx context.Context, lease *intent.Lease) (string, error) {
			fmt.Println("pay, attempt", lease.Attempt())
			return "receipt 17", nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Outcome, receipt)
	}
	// Output:
	// pay, attempt 1
	// reserved receipt 17
	// done receipt 17
}

// The four answers to a request.
func ExampleManager_Reserve() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	intents, err := intent.New(store, "payment:intent", nil)
	if err != nil {
		log.Fatal(err)
	}
	ask := func(session string, amount int) intent.Answer {
		answer, err := intents.Reserve(ctx, intent.Request{
			Key: "29401/1998-12", Session: session, Content: payment{"29401", amount},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(session, "-", answer.Outcome)
		return answer
	}

	mine := ask("A", 2452)
	ask("B", 2452)
	ask("C", 9999)
	if err := mine.Lease.Confirm(ctx, "receipt 17"); err != nil {
		log.Fatal(err)
	}
	ask("B", 2452)
	// Output:
	// A - reserved
	// B - held
	// C - key reused
	// B - done
}

// One process reserves, and another carries out: the session and the token are all that it needs.
func ExampleManager_Resume() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	intents, err := intent.New(store, "payment:intent", nil)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := intents.Reserve(ctx, intent.Request{Key: "29401/1998-12", Content: payment{"29401", 2452}})
	if err != nil {
		log.Fatal(err)
	}
	session, token := answer.Lease.Session(), answer.Lease.Token()

	lease, err := intents.Resume(ctx, "", "29401/1998-12", session, token)
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Confirm(ctx, "receipt 17"); err != nil {
		log.Fatal(err)
	}
	i, err := intents.Lookup(ctx, "", "29401/1998-12")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %s\n", i.Status, i.Result)
	// Output: done, "receipt 17"
}
