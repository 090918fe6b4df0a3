// Package kafkabroker sends the messages of an outbox to topics of Kafka, and passes the records of
// topics to a function, which may call an inbox.
//
// It is tested only with kfake, the fake of Kafka in its client, franz-go, and not with a real
// Kafka. Try it on yours before you depend on it.
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
// A message goes to its topic, which is its category unless the relay's Topic says otherwise, with
// a dot for each colon: payments.outgoing. The record has the message's key, and the headers of
// [outbox.Message.Headers]. The topic must exist.
//
// The topic gets each message at least once, and the first copies of a key's messages in order, on
// one partition, as long as the number of partitions stays the same. After a crash, or if the
// answer does not come in time, a message is sent again: receivers must deduplicate by dibs-id,
// like an inbox.
//
// If a topic is deleted and made again, it gets the messages that are sent next. Messages under way
// meanwhile fail and are sent again: the topic may have them twice.
//
// # Promises of the receiver
//
// The receiver commits the offset of a record only after the function has returned nil for it and
// for all earlier records of its partition. So a record is received at least once; with an inbox it
// takes effect once. A refused message, such as a request that no inbox takes, is recorded first:
// see [NewReceiver]. Messages of one key come in order, even if one of them fails. Messages of
// other keys pass it; they come again if the receiver ends before it is handled. If the topic's
// retention removes a record before it was received, it is lost.
//
// If a topic is deleted and made again, it is received from its first record on, because brokers
// remove a group's offsets with the topic. The function still gets the records of the deleted topic
// that the receiver held.
//
// Logs and errors name topics, never data.
package kafkabroker
