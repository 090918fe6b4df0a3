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
// account:command+deadLetter, a stream for each. All of it is written at expected
// versions, so two processes with one identity find out: the second to record its
// position stops with [ErrConsumerFenced].
//
// # What goes wrong
//
// A handler that returns an error, panics or calls runtime.Goexit has failed. It is
// tried again, later and later, and then [ErrorPolicy] decides: the consumer stops
// with a [*MessageError], or parks the message and goes on. An error with a method
// Park() bool that returns true is parked at once, whatever the policy. A message is
// never passed over in silence.
//
// Run goes on through errors of the store: it logs and counts them, and tries again,
// at most 5 s later. Only what cannot heal ends it: [ErrConsumerFenced],
// [ErrPositionAhead], [ErrPositionCorrupt], an error that matches
// [messagestore.ErrInvalid], [messagestore.ErrNotSupported] or
// [messagestore.ErrIDConflict], or one with a method Permanent() bool that returns
// true. CatchUp returns every error.
package consumer
