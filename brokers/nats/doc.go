// Package natsbroker sends the messages of an outbox to NATS JetStream, and passes the messages of
// a JetStream consumer to a function, which may call an inbox.
//
//	sink, err := natsbroker.NewSink(js, nil)
//	relay, err := outbox.New(store, "payments:outgoing", "tonats", sink, nil)
//	err = relay.Run(ctx)
//
//	receiver, err := natsbroker.NewReceiver(c, func(ctx context.Context, m jetstream.Msg) error {
//		request, err := natsbroker.Request(m, "")
//		if err != nil {
//			return err
//		}
//		_, err = payments.Receive(ctx, request, pay)
//		return err
//	}, func(ctx context.Context, m jetstream.Msg, reason error) error {
//		request, _ := natsbroker.Request(m, "")
//		return payments.Refuse(ctx, request, reason)
//	}, nil)
//	err = receiver.Run(ctx)
//
// # Subjects
//
// A message goes to the subject topic.key, two tokens after [SinkConfig.Prefix]: its topic, which
// is its category unless the relay's Topic says otherwise, and its key, the identifier of its
// stream. [Escape] escapes each, so that a dot, a wildcard or a space stays inside its token. A
// JetStream stream with payments:outgoing.* among its subjects takes all messages of that category.
//
// # Promises of the sink
//
// The stream gets each message once, and the messages of a key in order, however often they are
// sent and whichever relay sends them. The sink publishes a message with the expected sequence of
// its subject's last message, so that the server refuses it if the subject has moved on. Then the
// sink reads the last message and compares global positions: if the last message's position is not
// lower than that of the message to send, the stream has the message already. This holds for ever,
// not only while the server remembers ids. It needs
//
//   - the last message of each subject: a stream of the limits policy, with limits that never
//     remove a subject's last message. If it was removed, by age, by an operator or by a work
//     queue's consumer, only the server's deduplication by Nats-Msg-Id remains, for the stream's
//     Duplicates, 2 minutes by default;
//   - one relay per subject: positions are compared within a category and a relay. If two relays
//     send different messages of one category to one subject, each would take the other's messages
//     for its own;
//   - the same database. A database that was restored to an earlier time uses positions again, so a
//     relay must then send to another stream, or under another [SinkConfig.Prefix]. The sink
//     notices a message with the position of another, but not a message with a lower position.
//
// A relay of another name sends all messages again, but the stream has them already: nothing
// changes. To fill a stream again, purge it first, and wait for its Duplicates. If a stream is
// deleted and made again, it gets the messages that are sent next.
//
// # Promises of the receiver
//
// The receiver acknowledges a message only after the function has returned nil, and the server
// confirms it. So a message is received at least once; with an inbox it takes effect once. A
// refused message, such as a request that no inbox takes, is recorded first: see [NewReceiver]. Run
// ends when the stream or the consumer is deleted; call it again to go on with a new consumer of
// the same name.
//
// Logs and errors name subjects, which hold keys; never data, nor the URL of a server.
package natsbroker
