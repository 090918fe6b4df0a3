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
// A message goes to the subject topic.key, of two tokens behind [SinkConfig.Prefix]: its topic,
// which is its category unless the relay's Topic says otherwise, and its key, which is the
// identifier of its stream. Each is written by [Escape], so that a dot, a wildcard or a space in it
// stays inside its token. The JetStream stream that has payments:outgoing.* among its subjects
// takes all messages of that category.
//
// # Promises of the sink
//
// The stream has each message once, and the messages of a key in their order, however often they
// are sent and whichever relay sends them. A message is published with the sequence that its
// subject's last message is expected to have, so that the server refuses it if the subject has gone
// on. Then the sink reads the last message, and compares global positions: if the last message's is
// not lower than the position of the message to be sent, the stream has the message. This holds for
// ever, and not only for the time in which the server remembers ids. It needs
//
//   - the last message of each subject: a stream of the limits policy whose limits never remove a
//     subject's last message. Where it was removed, by age, by an operator or by a work queue's
//     consumer, the server's deduplication by Nats-Msg-Id remains, for the stream's Duplicates, 2
//     minutes by default;
//   - one relay to a subject: positions are compared within a category and a relay. Two relays that
//     send different messages of one category to one subject would take each other's for their own;
//   - the same database. A database that was restored to an earlier time gives positions again:
//     after that a relay sends to another stream, or under another [SinkConfig.Prefix]. A message
//     with the position of another is noticed, one with a lower position is not.
//
// A relay of another name sends messages again, and the stream has them: nothing changes. To have a
// stream filled again, purge it first, and wait for its Duplicates. A stream that is deleted and
// made again has the messages that are sent next.
//
// # Promises of the receiver
//
// A message is acknowledged only after the function has returned nil, and the server confirms it.
// So it is received at least once; with an inbox its effect is there once. A message that is
// refused, since no inbox takes it for instance, is recorded first: see [NewReceiver]. Run ends
// when the stream or the consumer is deleted; call it again, and it goes on with a consumer of the
// same name that was made in its place.
//
// Positions in the log, and errors, name subjects, which hold keys; never data, nor the URL of a
// server.
package natsbroker
