// Package rabbitbroker sends the messages of an outbox to RabbitMQ, and passes the messages of a
// queue of RabbitMQ to a function, which may call an inbox.
//
//	dial := func(context.Context) (*amqp.Connection, error) { return amqp.Dial("amqps://bank@rabbit.example/") }
//	sink, err := rabbitbroker.NewSink(dial, nil)
//	defer sink.Close()
//	relay, err := outbox.New(store, "payments:outgoing", "torabbit", sink, nil)
//	err = relay.Run(ctx)
//
//	receiver, err := rabbitbroker.NewReceiver(dial, "payments:outgoing", func(ctx context.Context, m amqp.Delivery) error {
//		request, err := rabbitbroker.Request(m, "transfers")
//		if err != nil {
//			return err
//		}
//		_, err = payments.Receive(ctx, request, pay)
//		return err
//	}, func(ctx context.Context, m amqp.Delivery, reason error) error {
//		request, _ := rabbitbroker.Request(m, "transfers")
//		return payments.Refuse(ctx, request, reason)
//	}, nil)
//	err = receiver.Run(ctx)
//
// # Promises of the sink
//
// A message goes to [SinkConfig.Exchange], with its topic as the routing key: its category, unless
// the relay's Topic says otherwise. It is persistent and mandatory, its message id is dibs-id, and
// it has the headers of [outbox.Message.Headers]. Exchanges, queues and bindings must exist: the
// sink does not declare them.
//
// Each queue that the exchange routes to gets each message at least once, and the first copies of a
// key's messages in order: the relay sends the next message of a key only when the broker has
// confirmed the previous one. It needs
//
//   - one route for the messages of a key: the same routing key for all of them. To spread keys
//     over several queues use a consistent hashing exchange with the hash-header dibs-stream, which
//     is the same for all messages of a key;
//   - durable queues that keep confirmed messages: in a cluster, quorum queues. A queue that loses
//     its node, overflows by drop-head, or lets messages expire loses confirmed messages.
//
// After a crash or a lost connection, or if the confirmation does not come in time, a message is
// sent again: receivers must deduplicate by dibs-id, like an inbox.
//
// # Promises of the receiver
//
// The receiver acknowledges a message only after the function has returned nil. So a message is
// received at least once; with an inbox it takes effect once. A refused message, such as a request
// that no inbox takes, is recorded first: see [NewReceiver]. While one receiver of the queue runs,
// messages of one key, which is in the header dibs-stream, come in order, even if one of them
// fails. After the receiver's end or a lost connection, and with several receivers, a message may
// come after a later one. A queue with x-single-active-consumer sends its messages to one of
// several receivers.
//
// If a receiver has not acknowledged a message for consumer_timeout, 30 minutes by default, the
// broker closes its channel, and all messages that the receiver holds come again. A quorum queue
// counts deliveries, even of messages that a receiver only held, and drops a message after
// x-delivery-limit, 20 by default since RabbitMQ 4: such a message is recorded nowhere. Set it to
// -1 if the broker supports that, or give the queue a dead-letter exchange.
//
// Logs and errors name exchanges, queues and routing keys, never data, nor the URL of a broker.
package rabbitbroker
