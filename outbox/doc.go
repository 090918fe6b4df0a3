// Package outbox sends the messages of a category to a system outside: a broker, an HTTP endpoint,
// another store.
//
//	sink, err := outbox.HTTP("https://bank.example/hooks", &outbox.HTTPConfig{Secrets: []string{secret}})
//	relay, err := outbox.New(store, "payments:outgoing", "tobank", sink, nil)
//	err = relay.Run(ctx)
//
// The outbox is a category. A service whose state is events relays its events. Any other writes its
// messages, in the transaction of its rows (see package inbox), to streams that are named after the key
// that orders them: payments:outgoing-42. There is no table of an outbox: a relay is a queue over the category
// (package queue), and each message is an item of it.
//
// # What is promised
//
//   - A message is sent if and only if the write that has it was committed.
//   - Each message is sent at least once, always with the id that it has in the store. After a crash at
//     most [Config.Prefetch] messages are sent again.
//   - The messages of one key, which is their stream, are sent one after the other, in their order, none skipped:
//     the next when the sink has taken the one before. Messages of different keys are sent side by side.
//   - A message that was not sent is neither trimmed, forgotten nor deleted, from the relay's first run on.
//   - With [Into] another store has each message once.
//
// So a receiver that ignores known ids, or positions not above the last of their stream, handles each
// message once and in order.
//
// # Failures
//
// A message that fails is sent again after a back-off of its own, which grows to ten minutes, until it is dead. Messages behind it in
// its key wait; other keys flow. A message is dead with its [Config.MaxAttempts]th failed attempt, and not before it is of
// [Config.MaxAge]. Then its key is held, in order: nothing behind it is sent, until an operator has it sent again, or drops it (dibs queue
// retry and drop, [queue.Queue.Retry] and Drop).
//
// A sink that is out makes no message dead, however long it is out. It counts as out when eight different messages have failed
// with none taken in between, as a process sees it. Then an attempt does not count, the workers of the process pause together, up to five
// seconds, between their attempts, and the messages that they have tried wait for up to two minutes. The next message that the sink
// takes ends that. [Stats].OutSince tells it, and the log, every ten minutes. With fewer keys than eight that
// is not known, and their messages are dead after MaxAge.
//
// The sink's error may decide otherwise, by its disposition, however wrapped. With handler.Refuse and handler.Park the message
// is dead at once. handler.RetryAfter sets the pause, above 0 and up to [MaxRetryAfter], and is no failure. With handler.Skip a
// message is not sent: it is logged, counts as Skipped, and the next of its key is sent. No error of a sink stops a relay.
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
// A relay is a queue of its name: dibs queue ls, jobs, show, blocked, retry, drop, cancel, pause and resume are for it, and
// dibs explain tells what it did with a message. Several relays of one category have different names, and each sends all. Replicas
// of one relay have the same name, and share its messages: there is no leader.
//
// To send messages again, run a relay of another name, with [Config.Since]; it sends them under the same ids. To move a relay over
// what it has not sent, cancel or drop the items.
//
// Each message of the category costs the database a row for as long as it is not sent, also if the relay passes it over.
//
// # Headers
//
// A message has headers that a sink passes on: see [Message.Headers].
package outbox
