// Package outbox sends the messages of a category to a system outside: a broker, an HTTP endpoint,
// another store.
//
//	sink, err := outbox.HTTP("https://bank.example/hooks", &outbox.HTTPConfig{Secrets: []string{secret}})
//	relay, err := outbox.New(store, "payments:outgoing", "tobank", sink, nil)
//	err = relay.Run(ctx)
//
// The outbox is a category. A service whose state is events relays its events. Any other writes its
// messages, in the transaction of its rows (see package inbox), to streams that are named after the key
// that orders them: payments:outgoing-42. There is no table of an outbox, and nothing is marked as sent:
// the relay has a checkpoint.
//
// # What is promised
//
//   - A message is sent if and only if the write that has it was committed.
//   - Each message is sent at least once, always with the id that it has in the store. After a crash at
//     most [Config.CheckpointMessages] and the messages of one read are sent again; nothing else is.
//   - The messages of one key, which is the cardinal id of their streams, are sent one after the other, in
//     their order, none skipped: the next when the sink has taken the one before. Messages of different
//     keys are sent side by side.
//   - With [Into] another store has each message once.
//
// So a receiver that ignores known ids, or positions not above the last of their stream, handles each
// message once and in order.
//
// # Failures
//
// The sink's error decides, by its disposition, however wrapped. With handler.Refuse and handler.Park the message can
// never be sent: it is parked, and so are later messages of its key, behind it, without being sent. Messages of
// other keys flow. After a redrive of the message, or when it is dropped (package deadletter, dibs parked), those
// behind it are sent in order, by the relay itself. [consumer.ParkInOrder] tells how.
//
// With any other error the message is sent again, for ever: a sink that is down for a night parks nothing,
// and no error of a sink stops a relay. The pauses grow to 30 s; handler.RetryAfter sets its own, above 0
// and up to [MaxRetryAfter]. Meanwhile messages of its key wait, and others flow, until the relay is as
// far ahead of its checkpoint as a crash may send again: [Config.CheckpointMessages] plus the messages of
// one read, and at most the messages of two reads, 2,000.
//
// With handler.Skip a message is not sent: it is logged, counts as Skipped, and the next of its key is sent.
//
// # Types
//
// A relay sends all messages of its category, or only the types of [Config.Types]. Then a message of a
// type that is neither there nor in [Config.Ignore] is not passed over: its key waits until a relay that
// knows the type takes it over. A message is sent as it is stored, under the type and in the form that it
// was written with.
//
// # Operation
//
// A relay is a consumer: name, checkpoint, replicas, leases, fencing, lag, reset, parked messages and
// their commands are as package consumer has them. To send everything again is a reset. Several relays of
// one category have different names. Replicas of one relay have the same name.
//
// # Headers
//
// A message has headers that a sink passes on: see [Message.Headers].
package outbox
