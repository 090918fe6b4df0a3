package outbox_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
)

// A service tells a bank of each payment, in order of the account.
func Example() {
	ctx := context.Background()
	bank := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Println(r.Header.Get("dibs-stream"), r.Header.Get("dibs-position"), r.Header.Get("dibs-type"), string(body), err)
	}))
	defer bank.Close()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, amount := range []int{7, 12} {
		if _, err := store.Write(ctx, "payments:outgoing-42", messagestore.AnyVersion, Paid{amount}); err != nil {
			fmt.Println(err)
		}
	}

	sink, err := outbox.HTTP(bank.URL, &outbox.HTTPConfig{Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	if err != nil {
		log.Fatal(err)
	}
	defer sink.Close()
	relay, err := outbox.New(store, "payments:outgoing", "tobank", sink, &outbox.Config{Logger: logger.Silent()})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(relay.CatchUp(ctx)) // a service calls Run
	// Output:
	// payments:outgoing-42 0 Paid {"amount":7} <nil>
	// payments:outgoing-42 1 Paid {"amount":12} <nil>
	// <nil>
}

// Another store has each message once, by its id.
func ExampleInto() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	archive, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.Write(ctx, "payments:outgoing-42", messagestore.NoStream, Paid{7}); err != nil {
		fmt.Println(err)
	}

	sink, err := outbox.Into(archive, func(m *outbox.Message) messagestore.StreamName {
		return messagestore.Category("archive").Stream(m.Stream.CardinalID())
	})
	if err != nil {
		log.Fatal(err)
	}
	relay, err := outbox.New(store, "payments:outgoing", "toarchive", sink, &outbox.Config{Logger: logger.Silent()})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(relay.CatchUp(ctx))
	m, err := archive.Last(ctx, "archive-42")
	fmt.Println(m, string(m.Data), err)
	// Output:
	// <nil>
	// Paid archive-42@0 {"amount":7} <nil>
}
