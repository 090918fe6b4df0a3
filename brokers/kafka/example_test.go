package kafkabroker_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	kafkabroker "github.com/dibs-go/dibs/brokers/kafka"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// A relay produces the messages of payments:outgoing to the topic payments.outgoing, which is
// there.
func ExampleSink() { //nolint:testableexamples // it needs a broker
	send := func(ctx context.Context, store *messagestore.Store) error {
		client, err := kgo.NewClient(kgo.SeedBrokers("localhost:9092"))
		if err != nil {
			return err
		}
		defer client.Close()
		sink, err := kafkabroker.NewSink(client, nil)
		if err != nil {
			return err
		}
		relay, err := outbox.New(store, "payments:outgoing", "tokafka", sink, nil)
		if err != nil {
			return err
		}
		err = relay.Run(ctx)
		fmt.Println(sink.Stats().Produced, "produced")
		return err
	}
	_ = send
}

// The records of the topic "transfers" are requests to an inbox, which all receivers of the group
// "bank" share. A record that the inbox does not take is recorded in it, before its offset is
// committed.
func ExampleReceiver() { //nolint:testableexamples // it needs a broker
	receive := func(ctx context.Context, payments *inbox.Inbox[*sql.Tx], pay func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error)) error {
		options := []kgo.Opt{kgo.SeedBrokers("localhost:9092")}
		receiver, err := kafkabroker.NewReceiver(options, "bank", []string{"transfers"}, func(ctx context.Context, m *kgo.Record) error {
			request, err := kafkabroker.Request(m, "")
			if err != nil {
				return err
			}
			_, err = payments.Receive(ctx, request, pay)
			return err
		}, func(ctx context.Context, m *kgo.Record, reason error) error {
			request, _ := kafkabroker.Request(m, "") // what there is of it
			return payments.Refuse(ctx, request, reason)
		}, nil)
		if err != nil {
			return err
		}
		return receiver.Run(ctx)
	}
	_ = receive
}
