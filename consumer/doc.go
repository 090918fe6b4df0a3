// Package consumer reads a category from its last checkpoint and delivers each message to a
// handler: at least once, in order, and never past a message that was not handled.
//
//	c, err := consumer.New(store, "account:command", "accounts", mux, nil)
//	err = c.Run(ctx)
//
// # What is promised
//
// A message is delivered until its handler returns nil, or until it is parked or skipped.
// The checkpoint of a consumer is the position of its first unfinished message, so a
// restart redelivers some messages and skips none, and so does a slot that goes from one
// process to another: at most [Config.CheckpointMessages] plus [Config.BatchSize], also after a
// crash. With a [Config.Concurrency] of 1 a stop in order redelivers none.
//
// Messages of one cardinal id (123 in account-123 and account-123+AAA) are delivered one
// after the other, in order. With [Config.Concurrency] above 1, messages of different
// cardinal ids are delivered at the same time; with 1, the whole category is in order.
//
// # Replicas
//
// Several processes may run one consumer. They join it as the members of a group, without a
// number or a size:
//
//   - With a [Config.Concurrency] of 1, the default, one handles the category in order, and
//     the others stand by.
//   - With more, each has about as many cardinal ids as the others. A newcomer gets its
//     share as soon as the messages in flight of the others are finished.
//
// A member that stops frees its slots at once. A member that is killed, paused or cut off is
// replaced when it has been silent for [Config.Lease]. If it comes back, its next write is refused,
// and it starts over as a newcomer while Run goes on. A process that is started alone after a
// member was killed waits for that member's lease, too.
//
// Replicas have the same OnlyKnown, and all a Concurrency of 1 or none.
//
// CatchUp wants the whole category. Where the group has members it joins as one, and waits until no
// other has any of it. Where it has none, CatchUp goes on without a lease, and a crash of it keeps
// nobody waiting. A process that starts meanwhile, with Run or with CatchUp, takes over: it goes on from the last
// checkpoint, and CatchUp stops with [ErrConsumerFenced] at its next. No message is skipped, and those since
// that checkpoint are delivered to both.
//
// # Where positions are stored
//
// Consumer accounts of category account:command keeps its positions in category
// account:command+position: a ledger of generations in the stream of its name, and a
// stream of checkpoints for each generation, such as account:command+position-accounts+0 for
// the first. A checkpoint has the state of the group with it, if there are members. All of it
// is written at expected versions. Its parked messages are the items of the queue account:command:parked:accounts.
//
// # What an operator does
//
// Package operate shows where the consumers of a category are, and their lag; it resets a
// consumer to another position by a new generation, at which members that run start over. It asks a
// consumer to park the message that it is stuck at, and has the queue of its parked messages, by which
// these are listed, redriven and dropped. It needs no handler.
//
// # Failures
//
// A handler that returns an error, panics or calls runtime.Goexit has failed. The message is
// retried with back-off, for five minutes by default, and then [ErrorPolicy] decides: the
// consumer stops with a [*MessageError], or parks the message and moves on. A failure that no
// retry helps is not retried: see there. A handler decides otherwise by the disposition of its error:
// handler.Park, RetryAfter, Skip or Refuse.
//
// A consumer that will stop at a message logs a warning with the command line by which an operator has it parked, when the retries
// have a minute left, or less if they are shorter. The error of the stop has it too.
//
// While a message waits for its next retry, later messages of its cardinal id wait behind it; with a
// Concurrency of 1, the whole category waits. The checkpoint stays before the message. Messages of other
// cardinal ids are delivered until the consumer is as far ahead of its checkpoint as a crash may redeliver: it
// takes no message that is [Config.CheckpointMessages] plus [Config.BatchSize] behind the waiting message, and
// holds at most two batches. Then it stands still until the message is handled, parked or skipped.
//
// Failing messages are stored with the checkpoint, for operators, at most once a second, each with the number of its
// attempts, its last error and the time of the first. operate.Consumers returns them, and dibs consumers prints them.
// The text of the error is the handler's, cut at 1 KiB. A consumer that cannot store them goes on.
//
// A message of a type that the handler does not know is retried in the same way. During a deploy a
// newer replica may know the type. When the older one stops, a newer one takes the message over, at
// the checkpoint.
//
// A message whose handler returns nil is handled, also if a handler.Mux ignored it because
// of its type: see IgnoreUnknown there.
//
// A parked message gives up its place: when it is redriven, later messages of its stream
// are handled already. A handler that recognizes old messages by a high-water mark
// (idempotence by sequence) ignores it. Such a handler stops, which is the default, or
// writes under an id derived from the message's (reservation.DeriveID). Stopping keeps the
// place, unless the error is one of handler.Park.
//
// A consumer that goes on has no way to keep later messages of a cardinal id behind a parked one. A queue over
// the same category has: with Hold of package queue, a dead item keeps the later ones of its key until it is retried
// and finished, or dropped, and other keys go on.
//
// # Removed messages
//
// The tombstone of a deleted stream is passed in its place without the handler, and counted
// in [Stats].Tombstones. A message that is removed before it is read is not delivered, and
// neither is a parked message whose stream was deleted: its item ends.
//
// The streams of checkpoints may be trimmed while the consumer runs, down to their last
// message. If one is deleted, the consumer stops with [ErrConsumerFenced] at its next
// checkpoint, and a new start ends with [ErrPositionCorrupt].
//
// # Rollback of the store
//
// A store that was restored, or failed over to a standby that was behind, has lost its last
// messages and gives out their positions again. A consumer that has read further stops with
// [ErrPositionAhead], also if the store has grown past its position since: it knows the
// last message before its position. It looks for that message with each read, before each
// checkpoint, when it starts, and every 10 s otherwise. A message that was removed is not
// missed.
//
// If all messages that it has read are still there, the writes of its handlers may be lost.
// So if the store has another epoch, by a failover or a restore
// ([messagestore.Store.Epoch]) or by dibs epoch raise, the consumer begins again at its last
// checkpoint: messages since then are redelivered, also after a failover that lost none.
//
// # Errors of the store
//
// Run continues after errors of the store: it counts them, logs the first and the end of an
// outage, once for all that share the store in a process, and retries at most 1 s later. Only
// lasting errors end it: [ErrConsumerFenced],
// [ErrPositionAhead], [ErrPositionCorrupt], an error that matches [messagestore.ErrInvalid],
// [messagestore.ErrNotSupported] or [messagestore.ErrIDConflict], a missing right (SQLSTATE
// 42501, [messagestore.ErrNotPermitted]), a closed handle ([messagestore.ErrClosed]), and a schema or a server that the
// driver refuses until an operator acts. The first contact of Run also returns the answer of a database to a wrong
// password, user or name; a server that does not answer is asked again. CatchUp returns every
// error.
package consumer
