// Package redisbroker sends the messages of an outbox to streams of Redis, and passes the entries
// of a stream to a function, which may call an inbox.
//
//	sink, err := redisbroker.NewSink(client, nil)
//	relay, err := outbox.New(store, "payments:outgoing", "toredis", sink, nil)
//	err = relay.Run(ctx)
//
//	receiver, err := redisbroker.NewReceiver(client, "payments:outgoing", "bank", func(ctx context.Context, m redis.XMessage) error {
//		request, err := redisbroker.Request(m, "transfers")
//		if err != nil {
//			return err
//		}
//		_, err = payments.Receive(ctx, request, pay)
//		return err
//	}, func(ctx context.Context, m redis.XMessage, reason error) error {
//		request, _ := redisbroker.Request(m, "transfers")
//		return payments.Refuse(ctx, request, reason)
//	}, nil)
//	err = receiver.Run(ctx)
//
// # Promises of the sink
//
// A message goes to the stream named after its topic, which is its category unless the relay's
// Topic says otherwise. Its entry has the headers of [outbox.Message.Headers] as fields, and its
// data as the field [FieldData].
//
// The stream gets each message once, and the messages of a key in order, however often they are
// sent and whichever relay sends them, even if entries were trimmed: a hash next to the stream has
// the global position of each key's last message, and one script compares it and adds the entry. It
// needs
//
//   - the hash: its name is the stream's name in braces, and ":dibs-sent". It has some 150 bytes
//     for each key. To fill a stream again, delete both and run a relay of another name;
//   - the same database. A database that was restored to an earlier time uses positions again, so a
//     relay must then send to another stream, under another [SinkConfig.Prefix]. The sink notices a
//     message with the position of another ([*ForeignMessageError]), but not a message with a lower
//     position;
//   - a Redis that loses nothing. With appendfsync always an added entry survives the server's end.
//     With everysec the last second may be lost, hash and entries alike, and a failover loses the
//     entries that no replica had: the relay does not send these messages again. A relay of another
//     name does, and the stream takes, for each key, the messages after the last that it has;
//   - maxmemory-policy noeviction.
//
// The sink does not trim streams. XTRIM removes entries even if a group has not read them.
//
// # Promises of the receiver
//
// The receiver acknowledges an entry only after the function has returned nil. So an entry is
// received at least once; with an inbox it takes effect once. A refused message, such as a request
// that no inbox takes, is recorded first: see [NewReceiver]. While one receiver of the group runs,
// messages of one key, which is in the field dibs-stream, come in order, even if one of them fails.
// After the receiver's end, and with several receivers, an entry may come after a later one. An
// entry that was trimmed or deleted before it was delivered is not received.
//
// If a stream is deleted, the sink and the receiver make it again, with the group, for the messages
// that are sent next.
//
// All receivers of a group have the same consumer name, so a process that ends leaves nothing
// behind: its entries go to another receiver when they were not extended for
// [ReceiverConfig.Lease].
//
// Logs and errors name streams, never data. The package needs Redis 6.2 or later, for XAUTOCLAIM.
package redisbroker
