package redisbroker_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/redis/go-redis/v9"

	redisbroker "github.com/dibs-go/dibs/brokers/redis"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// A relay adds the messages of payments:outgoing to the stream of Redis of that name.
func ExampleSink() { //nolint:testableexamples // it needs a server
	send := func(ctx context.Context, store *messagestore.Store) error {
		client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
		defer client.Close()
		sink, err := redisbroker.NewSink(client, nil)
		if err != nil {
			return err
		}
		relay, err := outbox.New(store, "payments:outgoing", "toredis", sink, nil)
		if err != nil {
			return err
		}
		err = relay.Run(ctx)
		fmt.Println(sink.Stats().Added, "added")
		return err
	}
	_ = send
}

// The entries of the stream "transfers" are requests to an inbox, which all receivers of the group
// "bank" share. An entry that the inbox does not take is recorded.
func ExampleReceiver() { //nolint:testableexamples // it needs a server
	receive := func(ctx context.Context, payments *inbox.Inbox[*sql.Tx], pay func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error)) error {
		client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
		defer client.Close()
		receiver, err := redisbroker.NewReceiver(client, "transfers", "bank", func(ctx context.Context, m redis.XMessage) error {
			request, err := redisbroker.Request(m, "")
			if err != nil {
				return err
			}
			_, err = payments.Receive(ctx, request, pay)
			return err
		}, func(ctx context.Context, m redis.XMessage, reason error) error {
			request, _ := redisbroker.Request(m, "") // what there is of it
			return payments.Refuse(ctx, request, reason)
		}, nil)
		if err != nil {
			return err
		}
		return receiver.Run(ctx)
	}
	_ = receive
}
