// Package outbox sends the messages of a category to an outside system: a broker, an HTTP endpoint,
// or another store.
//
//	sink, err := outbox.HTTP("https://bank.example/hooks", &outbox.HTTPConfig{Secrets: []string{secret}})
//	relay, err := outbox.New(store, "payments:outgoing", "tobank", sink, nil)
//	err = relay.Run(ctx)
//
// The outbox is a category. A service that stores its state as events relays these events. Any
// other service writes its messages, in the transaction of its rows (see package inbox), to streams
// named after the key that orders them: payments:outgoing-42. An outbox table is not needed: a
// relay is a queue over the category (package queue), and each message is an item of it.
//
// # What is promised
//
//   - A message is sent if and only if the write that contains it was committed.
//   - Each message is sent at least once, always with its id in the store. After a crash at most
//     [Config.Prefetch] messages are sent again.
//   - The messages of one key, which is their stream, are sent one after the other, in order and
//     without gaps: the next one when the sink has taken the previous one. Messages of different
//     keys are sent side by side.
//   - A message that was not sent is never trimmed, forgotten or deleted, from the relay's first
//     run on.
//   - With [Into] another store has each message once.
//
// So a receiver that ignores known ids, or positions not above the last of their stream, handles
// each message once and in order.
//
// # Failures
//
// A message that fails is sent again after a back-off, which grows to ten minutes, until it is
// dead. Messages behind it with the same key wait; other keys go on. A message is dead after
// [Config.MaxAttempts] failed attempts, but not before it is [Config.MaxAge] old. Then its key
// stops: no later message of the key is sent until an operator has the dead one sent again, or
// drops it (dibs queue retry and drop, [queue.Queue.Retry] and Drop).
//
// While the sink is out, no message becomes dead, even if that lasts long. A process considers the
// sink out when eight different messages have failed and none was taken in between. Then attempts
// do not count, all workers of the process pause together, up to five seconds, between their
// attempts, and the messages that they have tried wait for up to two minutes. The next message that
// the sink takes ends this. [Stats].OutSince reports it, and so does the log, every ten minutes.
// With fewer than eight keys a process cannot detect it, and the messages are dead after MaxAge.
//
// The sink's error may decide otherwise, by its disposition, even if it is wrapped. With
// handler.Refuse and handler.Park the message is dead at once. handler.RetryAfter sets the pause,
// above 0 and up to [MaxRetryAfter], and does not count as a failure. With handler.Skip the message
// is not sent: it is logged, counts as Skipped, and the next of its key is sent. No error of a sink
// stops a relay.
//
// # Types
//
// A relay sends all messages of its category, or only the types of [Config.Types]. In the second
// case a message of a type that is neither there nor in [Config.Ignore] is not skipped: its key
// waits until a relay that knows the type takes it over. A message is sent in its stored form, with
// the type with which it was written.
//
// # Operation
//
// A relay is a queue with the relay's name: dibs queue ls, jobs, show, blocked, retry, drop,
// cancel, pause and resume work on it, and dibs explain shows what it did with a message. Several
// relays of one category have different names, and each sends all messages. Replicas of one relay
// have the same name, and share its messages, without a leader.
//
// To send messages again, run a relay with another name, with [Config.Since]; it sends them with
// the same ids. To make a relay skip messages that it has not sent, cancel or drop the items.
//
// Each message of the category costs the database a row until it is sent or skipped.
//
// # Headers
//
// A sink passes on headers with each message: see [Message.Headers].
package outbox
