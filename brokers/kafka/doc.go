// Package kafkabroker sends the messages of an outbox to topics of Kafka, and passes the records of
// topics to a function, which may call an inbox.
//
// It is tested against kfake alone, the fake of Kafka that its client, franz-go, has: no server of
// Kafka was to be had. Try it on yours before you depend on it.
//
//	sink, err := kafkabroker.NewSink(client, nil)
//	relay, err := outbox.New(store, "payments:outgoing", "tokafka", sink, nil)
//	err = relay.Run(ctx)
//
//	options := []kgo.Opt{kgo.SeedBrokers("localhost:9092")}
//	receiver, err := kafkabroker.NewReceiver(options, "bank", []string{"payments.outgoing"}, func(ctx context.Context, m *kgo.Record) error {
//		request, err := kafkabroker.Request(m, "")
//		if err != nil {
//			return err
//		}
//		_, err = payments.Receive(ctx, request, pay)
//		return err
//	}, func(ctx context.Context, m *kgo.Record, reason error) error {
//		request, _ := kafkabroker.Request(m, "")
//		return payments.Refuse(ctx, request, reason)
//	}, nil)
//	err = receiver.Run(ctx)
//
// # Promises of the sink
//
// A message goes to the topic of its own, which is its category unless the relay's Topic says
// otherwise, with a dot for each colon: payments.outgoing. The record has the message's key, and
// the headers that [outbox.Message.Headers] returns. The topic has to be there.
//
// The topic has each message at least once, and the first copies of the messages of a key in their
// order, on one partition, for as long as the number of partitions stays. After a crash, or an
// answer that did not come in time, a message is sent again: a receiver deduplicates by dibs-id, as
// an inbox does.
//
// A topic that is deleted and made again gets the messages that are sent next. Those under way
// meanwhile fail, and are sent again: it may have them twice.
//
// # Promises of the receiver
//
// The offset of a record is committed only after the function has returned nil for it, and for all
// before it on its partition. So it is received at least once; with an inbox its effect is there
// once. A refused message, such as a request that no inbox takes, is recorded first: see
// [NewReceiver]. Messages of one key come in order, also behind a message that fails. Messages of
// other keys pass it; they come again if the receiver ends before it is handled. A record that the
// topic's retention removes before it was received is lost.
//
// A topic that is deleted and made again is received from its first record on, since brokers remove
// the offsets of a group with the topic. Records of the deleted one that the receiver had in hand
// are still passed to the function.
//
// Log and errors name topics, never data.
package kafkabroker
