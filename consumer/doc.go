// Package consumer reads a category from where it left off and hands each message
// to a handler: at least once, in order, and never past one that was not handled.
//
//	c, err := consumer.New(store, "account:command", "accounts", mux, nil)
//	...
//	err = c.Run(ctx)
//
// # What is promised
//
// A message is handed over until the handler returns nil for it, or until it is
// parked by the declared policy. The position that a consumer records is the
// lowest that is unfinished, so a restart hands some messages over again and
// leaves none out: after a crash, at most [Config.PositionInterval] and
// [Config.BatchSize] together.
//
// Messages with one cardinal id (of account-123 and account-123+AAA it is 123) are
// handed over one after the other, in order. With [Config.Concurrency] above 1,
// others are handed over at the same time; with 1, the whole category is in order.
//
// # Where it is recorded
//
// Consumer accounts of category account:command keeps its positions in category
// account:command+position: a ledger of group sizes in the stream of its name, and
// a stream for each member and size. Messages it gave up on are in category
// account:command+deadLetter, a stream for each, beside one in which [Consumer.Redrive]
// notes that it met the claim of another. All of it but these notes is written at expected
// versions, so two processes with one identity find out: the second to record its
// position stops with [ErrConsumerFenced].
//
// # What an operator does
//
// [Positions] tells where every consumer of a category is and how far behind, [Parked]
// what it gave up on, and neither needs a handler. [Reset] has a consumer go on from
// another position: it starts a generation in the ledger, as another group size does,
// so that members that run are fenced. [RequestRedrive] asks the consumer to redrive
// what it parked, by a message in the stream <name>+requests of the dead letters, which
// the consumer looks at each [Config.RedriveInterval].
//
// # What goes wrong
//
// A handler that returns an error, panics or calls runtime.Goexit has failed. It is
// tried again, later and later, and then [ErrorPolicy] decides: the consumer stops
// with a [*MessageError], or parks the message and goes on. An error with a method
// Park() bool that returns true is parked at once, whatever the policy.
//
// The consumer passes no message over in silence. A message is handled when the handler
// returns nil for it. A handler.Mux returns an error for a type that it does not know,
// unless Mux.IgnoreUnknown has it pass such messages over and count them.
//
// A parked message gives up its place: by the time [Consumer.Redrive] hands it over
// again, later ones of its stream are handled. A handler that knows old messages by a
// high-water mark (idempotence by sequence) takes it for an old one and ignores it.
// Such a handler stops, which is the default, or writes under an id derived from the
// message's instead (reservation.DeriveID). Stopping keeps the place, unless the
// error asks for parking.
//
// # What was removed
//
// The tombstone of a stream that was deleted is passed as handled, in its place and
// without the handler, and counted: [Stats.Tombstones]. What was removed before it was
// read is not handed over; what was read is. A parked message whose stream was deleted
// is not redriven. The data of parked messages are copies, in streams of their own.
//
// The streams of positions may be trimmed while the consumer runs, down to their last
// message. If one is deleted, the consumer stops with [ErrConsumerFenced] when it next
// records a position, and does not start again: that is [ErrPositionCorrupt].
//
// # A store that went back
//
// A store that was restored, or failed over to a standby that was behind, has lost its last
// messages and gives out their positions again. A consumer that has read further stops with
// [ErrPositionAhead], whether the store is behind it or has grown past it since: it knows the
// message that it is right behind, and looks for it with each read, before it records a
// position and when it starts, and every 10 s if it does none of that. A message that was
// removed is not missed.
//
// Where all that it has read is still there, what its handlers wrote may be lost. So where the
// store tells of a failover or a restore ([messagestore.Store.Epoch]), or an operator does
// (dibs epoch raise), it begins again, by itself, at the position that the store has: what was
// not recorded is handed over once more, after a failover that lost nothing too.
//
// # Errors of the store
//
// Run goes on through errors of the store: it logs and counts them, and tries again,
// at most 1 s later. Only what cannot heal ends it: [ErrConsumerFenced],
// [ErrPositionAhead], [ErrPositionCorrupt], an error that matches
// [messagestore.ErrInvalid], [messagestore.ErrNotSupported] or
// [messagestore.ErrIDConflict], or one with a method Permanent() bool that returns
// true. CatchUp returns every error.
package consumer
