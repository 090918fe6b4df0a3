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
// it has the headers of [outbox.Message.Headers]. Exchanges, queues and bindings have to be there:
// the sink declares none.
//
// Each queue that the exchange routes to has each message at least once, and the first copies of
// the messages of a key in their order: the relay sends the next one of a key only when the broker
// has confirmed the one before. It needs
//
//   - one way for the messages of a key: a routing key that is the same for all of them. To spread
//     keys over several queues take an exchange of consistent hashing whose hash-header is
//     dibs-stream, which the messages of a key have alike;
//   - durable queues that keep what they have confirmed: of the type quorum in a cluster. A queue
//     that loses its node, overflows by drop-head, or lets messages expire loses messages that were
//     confirmed.
//
// After a crash, a lost connection, or a confirmation that did not come in time, a message is sent
// again: a receiver deduplicates by dibs-id, as an inbox does.
//
// # Promises of the receiver
//
// A message is acknowledged only after the function has returned nil. So it is received at least
// once; with an inbox its effect is there once. A refused message, such as a request that no inbox
// takes, is recorded first: see [NewReceiver]. Messages of one key, which is in the header
// dibs-stream, come in order while one receiver of the queue runs, also behind a message that
// fails; after the receiver's end, a lost connection, and among several receivers, a message may
// come behind a later one. A queue with x-single-active-consumer gives its messages to one of
// several receivers.
//
// The broker closes the channel of a receiver that has not acknowledged a message for
// consumer_timeout, 30 minutes by default: all that it has in hand comes again then. A queue of the
// type quorum counts deliveries, of the messages that a receiver only had in hand, too, and drops a
// message after x-delivery-limit, which is 20 by default from RabbitMQ 4 on: such a message is
// recorded nowhere. Set it to -1 where it is supported, or give the queue a dead-letter exchange.
//
// Log and errors name exchanges, queues and routing keys, never data, nor the URL of a broker.
package rabbitbroker
