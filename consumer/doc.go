// Package consumer reads a category from its last checkpoint and delivers each message to a
// handler: at least once, in order, and never past a message that was not handled.
//
//	c, err := consumer.New(store, "account:command", "accounts", mux, nil)
//	err = c.Run(ctx)
//
// # What is promised
//
// A message is delivered until its handler returns nil, or until it is parked or skipped. The
// checkpoint of a consumer is the position of its first unfinished message, so a restart redelivers
// some messages and skips no message, and so does a slot that moves from one process to another: at
// most [Config.CheckpointMessages] plus [Config.BatchSize], even after a crash. With a
// [Config.Concurrency] of 1, a regular stop causes no redelivery.
//
// Messages of one cardinal id (123 in account-123 and account-123+AAA) are delivered one
// after the other, in order. With [Config.Concurrency] above 1, messages of different
// cardinal ids are delivered at the same time; with 1, the whole category is in order.
//
// # Replicas
//
// Several processes may run one consumer. They join it as the members of a group, without a
// configured number or size:
//
//   - With a [Config.Concurrency] of 1, the default, one handles the category in order, and the
//     others stand by.
//   - With more, each gets about the same number of cardinal ids. A newcomer gets its share as soon
//     as the others have finished their messages in flight.
//
// A member that stops frees its slots at once. A member that is killed, paused or cut off is
// replaced when it has been silent for [Config.Lease]. If it comes back, its next write is refused,
// and it starts over as a newcomer while Run goes on. If the only member was killed, a process
// started afterwards waits for that member's lease, too.
//
// All replicas must have the same OnlyKnown, and either all or none a Concurrency of 1.
//
// CatchUp needs the whole category. If the group has members, CatchUp joins it and waits until no
// other member holds any part. If it has none, CatchUp works without a lease, so a crash of it
// makes nobody wait. A process that starts meanwhile, with Run or with CatchUp, takes over: it goes
// on from the last checkpoint, and the first CatchUp stops with [ErrConsumerFenced] at its next
// checkpoint. No message is skipped, and those since that checkpoint are delivered to both.
//
// # Where positions are stored
//
// Consumer accounts of category account:command keeps its positions in category
// account:command+position: a ledger of generations in the stream of its name, and a stream of
// checkpoints for each generation, such as account:command+position-accounts+0 for the first. If
// there are members, each checkpoint includes the state of the group. All of these are written at
// expected versions. The consumer's parked messages are the items of the queue
// account:command:parked:accounts.
//
// # For an operator
//
// Package operate shows where the consumers of a category are, and their lag. It resets a consumer
// to another position by a new generation, and running members then start over. It asks a consumer
// to park the message at which it is stuck, and it opens the queue of parked messages, which lists,
// redrives and drops them. It needs no handler.
//
// # Failures
//
// A handler that returns an error, panics or calls runtime.Goexit has failed. The message is
// retried with back-off, for five minutes by default, and then [ErrorPolicy] decides: the consumer
// stops with a [*MessageError], or parks the message and moves on. If a retry cannot help, the
// failure is not retried: see there. A handler can decide differently by the disposition of its
// error: handler.Park, RetryAfter, Skip or Refuse.
//
// Before a consumer stops at a message, it logs a warning with the command line with which an
// operator can park the message: when the retries have a minute left, or less if they are shorter.
// The error of the stop has it too.
//
// While a message waits for its next retry, later messages of its cardinal id wait behind it; with
// a Concurrency of 1, the whole category waits. The checkpoint stays before the message. Messages
// of other cardinal ids are delivered until the consumer is as far ahead of its checkpoint as a
// crash may redeliver: it takes no message that is [Config.CheckpointMessages] plus
// [Config.BatchSize] behind the waiting message, and holds at most two batches. Then it stands
// still until the message is handled, parked or skipped.
//
// Failing messages are stored with the checkpoint, for operators, at most once a second, each with
// the number of its attempts, its last error and the time of the first failure. operate.Consumers
// returns them, and dibs consumers prints them. The text of the error comes from the handler, cut
// at 1 KiB. If the consumer cannot store them, it goes on.
//
// A message of a type that the handler does not know is retried in the same way. During a deploy a
// newer replica may know the type. When the older one stops, a newer one takes over the message, at
// the checkpoint.
//
// If a handler returns nil, its message is handled, even if a handler.Mux ignored it because of its
// type: see IgnoreUnknown there.
//
// A parked message gives up its place: when it is redriven, later messages of its stream are
// already handled. A handler that recognizes old messages by a high-water mark (idempotence by
// sequence) ignores it. Such a handler must stop the consumer, which is the default, or write under
// an id derived from the message's (reservation.DeriveID). Stopping keeps the place, unless the
// error comes from handler.Park.
//
// A consumer that goes on cannot keep later messages of a cardinal id behind a parked one. A queue
// over the same category can: with Hold of package queue, a dead item keeps the later ones of its
// key until it is retried and finished, or dropped, and other keys go on.
//
// # Removed messages
//
// The tombstone of a deleted stream is skipped in its place without the handler, and counted in
// [Stats].Tombstones. A message that is removed before it is read is not delivered. Nor is a parked
// message whose stream was deleted: a redrive ends its item.
//
// The streams of checkpoints may be trimmed while the consumer runs, down to their last
// message. If one is deleted, the consumer stops with [ErrConsumerFenced] at its next
// checkpoint, and a new start ends with [ErrPositionCorrupt].
//
// # Rollback of the store
//
// A store that was restored, or failed over to a standby that was behind, has lost its last
// messages and assigns their positions again. A consumer that has read further stops with
// [ErrPositionAhead], even if the store has grown past its position since: it knows the last
// message before its position. It looks for that message with each read, before each checkpoint,
// when it starts, and every 10 s otherwise. A message that was removed causes no error.
//
// Even if all messages that it has read are still there, the writes of its handlers may be lost. So
// if the store has another epoch, after a failover, a restore ([messagestore.Store.Epoch]) or dibs
// epoch raise, the consumer begins again at its last checkpoint: messages since then are
// redelivered, even after a failover that lost none.
//
// # Errors of the store
//
// Run continues after errors of the store: it counts them, logs the first and the end of an outage,
// once for all that share the store in a process, and retries at most 1 s later. Only lasting
// errors end it: [ErrConsumerFenced], [ErrPositionAhead], [ErrPositionCorrupt], an error that
// matches [messagestore.ErrInvalid], [messagestore.ErrNotSupported] or
// [messagestore.ErrIDConflict], a missing right (SQLSTATE 42501, [messagestore.ErrNotPermitted]), a
// closed store ([messagestore.ErrClosed]), and a schema or a server that the driver refuses until
// an operator acts. On its first call of the store, Run also returns the error of a database that
// refuses the password, user or database name; if the server does not answer, Run tries again.
// CatchUp returns every error.
package consumer
