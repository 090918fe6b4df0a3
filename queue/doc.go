// Package queue reserves the messages of a category for workers: first come, first served, in order per key,
// again after a failure or a crash, at a date, and in the end as dead items that a person looks at.
//
//	mail, err := queue.New(store, "mail", nil)
//	_, err = mail.Insert(ctx, Send{To: "ann"}, &queue.InsertOpts{Key: "ann"})
//	...
//	mux := handler.New()
//	handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error { return send(ctx, m.Body) })
//	err = mail.Work(ctx, mux, nil)
//
// An item is a message of the queue's category, by whatever way it was written: [Queue.Insert], a
// [messagestore.StreamWrite] of [Queue.Write] beside other writes, or a client in another language. The store needs
// no server beside the database, and no process leads: any number of processes may work on one queue.
//
// # Once, or more often
//
// An item is delivered at least once, and finished once. A worker that dies, or is cut off from the store, loses
// its items when its lease is over, and they are delivered again under a higher version. A completion that comes
// late is refused, and the worker is told so ([ErrLost]). So a handler may run twice for one item, in part at the same
// time. Effects in the same database are made once by [Job.CompleteTx]; effects elsewhere by the idempotence key
// that the message's id is.
//
// # Order
//
// Items with one Key are delivered one at a time, in the order in which they were inserted, also across retries and
// deferrals. Items of other keys do not wait for them. A dead item lets go what is behind it, unless
// [Config.WhenDead] is [Hold]. Items without a key are delivered in the order of insertion, and not in that of
// their completion. Callers that wait for items are served in the order in which they came, across processes.
//
// # What becomes of an item
//
// The error of a handler says it, as for a consumer: see package handler.
//
//	nil                    completed
//	an error, a panic      a failure: again after a back-off; dead after MaxFailures
//	handler.RetryAfter     again after the time, and no failure
//	handler.Park, Refuse   dead now
//	handler.Skip           completed; counted, logged
//
// A session that is over is a failure of an item that it had out alone; of several nobody knows which ended it, and it is a failure of
// none. An item whose session was over twice is delivered alone, so that one that kills its process is dead in the end, and those
// beside it are not. A handler that neither returns nor heeds its context past its time is abandoned: see [WorkConfig].
package queue
