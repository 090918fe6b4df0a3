package rabbitbroker_test

import (
	"context"
	"database/sql"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	rabbitbroker "github.com/dibs-go/dibs/brokers/rabbitmq"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

func dial(context.Context) (*amqp.Connection, error) { return amqp.Dial("amqp://localhost/") }

// A relay publishes to the exchange "bank", with the routing key "payments:outgoing". The exchange,
// a queue and a binding are there: what no queue takes comes back, and is sent again.
func ExampleSink() { //nolint:testableexamples // it needs a broker
	send := func(ctx context.Context, store *messagestore.Store) error {
		sink, err := rabbitbroker.NewSink(dial, &rabbitbroker.SinkConfig{Exchange: "bank"})
		if err != nil {
			return err
		}
		defer sink.Close()
		relay, err := outbox.New(store, "payments:outgoing", "torabbit", sink, nil)
		if err != nil {
			return err
		}
		err = relay.Run(ctx)
		fmt.Println(sink.Stats().Published, "published")
		return err
	}
	_ = send
}

// The messages of the queue "transfers" are requests to an inbox. A message that the inbox does not
// take is recorded.
func ExampleReceiver() { //nolint:testableexamples // it needs a broker
	receive := func(ctx context.Context, payments *inbox.Inbox[*sql.Tx], pay func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error)) error {
		receiver, err := rabbitbroker.NewReceiver(dial, "transfers", func(ctx context.Context, m amqp.Delivery) error {
			request, err := rabbitbroker.Request(m, "")
			if err != nil {
				return err
			}
			_, err = payments.Receive(ctx, request, pay)
			return err
		}, func(ctx context.Context, m amqp.Delivery, reason error) error {
			request, _ := rabbitbroker.Request(m, "") // what there is of it
			return payments.Refuse(ctx, request, reason)
		}, nil)
		if err != nil {
			return err
		}
		return receiver.Run(ctx)
	}
	_ = receive
}
