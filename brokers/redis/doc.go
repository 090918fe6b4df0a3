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
// A message goes to the stream that is named after its topic, which is its category unless the
// relay's Topic says otherwise. Its entry has the headers of [outbox.Message.Headers] as fields,
// and its data as the field [FieldData].
//
// The stream has each message once, and the messages of a key in their order, however often they
// are sent and whichever relay sends them, also where entries were trimmed: a hash beside the
// stream has the global position of the last message of each key, and one script compares it and
// adds the entry. It needs
//
//   - the hash: its name is that of the stream in braces, and ":dibs-sent". It has some 150 bytes
//     for each key. To have a stream filled again, delete both and run a relay of another name;
//   - the same database. A database that was restored to an earlier time gives positions again:
//     after that a relay sends to another stream, under another [SinkConfig.Prefix]. A message with
//     the position of another is noticed ([*ForeignMessageError]), one with a lower position is
//     not;
//   - a Redis that loses nothing. With appendfsync always an entry that was added survives the
//     server's end. With everysec the last second may be lost, hash and entries alike, and a
//     failover loses the entries that no replica had: the relay has passed these messages. A relay
//     of another name sends them again, and the stream takes, of each key, those behind the last
//     one that it has;
//   - maxmemory-policy noeviction.
//
// The sink trims no stream. XTRIM removes entries also if a group has not read them.
//
// # Promises of the receiver
//
// An entry is acknowledged only after the function has returned nil. So it is received at least
// once; with an inbox its effect is there once. A refused message, such as a request that no inbox
// takes, is recorded first: see [NewReceiver]. Messages of one key, which is in the field
// dibs-stream, come in order while one receiver of the group runs, also behind a message that
// fails; after the receiver's end, and among several receivers, an entry may come behind a later
// one. An entry that was trimmed or deleted before it was delivered is not received.
//
// A stream that is deleted has what is sent and received next: the sink and the receiver make it
// again, and the group with it.
//
// All receivers of a group have one consumer's name, so nothing is left behind by a process that
// ends: its entries go to another when they were not extended for [ReceiverConfig.Lease].
//
// Log and errors name streams, never data. Redis 6.2 or later, for XAUTOCLAIM.
package redisbroker
