// Package queue delivers the messages of a category to workers: first come, first served, in order
// per key, again after a failure or a crash, at a date, and finally as dead items for a person to
// look at.
//
//	mail, err := queue.New(store, "mail", nil)
//	_, err = mail.Insert(ctx, Send{To: "ann"}, &queue.InsertOpts{Key: "ann"})
//	...
//	mux := handler.New()
//	handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error { return send(ctx, m.Body) })
//	err = mail.Work(ctx, mux, nil)
//
// An item is a message of the queue's category. It may be written by [Queue.Insert], as a
// [messagestore.StreamWrite] of [Queue.Write] together with other writes, or by a client in another
// language. The store needs no server except the database, and no process leads: any number of
// processes may work on one queue.
//
// A program that has no connection to the database calls a server of package serve: its client
// returns a [*Queue] with the same methods, handlers and workers. If a caller of [Queue.Receive]
// hangs up there, an answer that was already on its way is given back by the client, except for a
// call with an ID: repeat that, or its items come again when their time is over, as a failure.
//
// # Once, or more often
//
// An item is delivered at least once, and finished once. If a worker dies, or is cut off from the
// store, it loses its items when its lease is over, and they are delivered again under a higher
// version. A completion that comes too late is refused, and the worker gets [ErrLost]. So a handler
// may run twice for one item, and the two runs may overlap. To make effects in the same database
// once, use [Job.CompleteTx]; for effects elsewhere, use the message's id as an idempotence key.
//
// # Order
//
// Items with one Key are delivered one at a time, in the order in which they were inserted, even
// across retries and deferrals. Items of other keys do not wait for them. After a dead item the
// next items of its key are delivered, unless [Config.WhenDead] is [Hold].
//
// Items that are offered again (after a failure, a deferral, at their date, or since an earlier one
// of their key has ended) come before all items that no worker has met, and among themselves in the
// order of the times from which they were offered. Items that no worker has met come in the order
// of insertion; one delivery in eight is such an item, although others are offered again. Items
// without a key may complete in another order.
//
// Callers that wait for items at one [Queue] are served in the order in which they came. Several
// Queues of one name, also of several processes, take turns, each with the first of its callers. One
// that finds no other in the line serves all who wait at it, so a later caller of one may come
// before an earlier one of another.
//
// # What becomes of an item
//
// The error of a handler decides it, as for a consumer: see package handler.
//
//	nil                    completed
//	an error, a panic      a failure: again after a back-off; dead after MaxFailures
//	handler.RetryAfter     again after the time, and no failure
//	handler.Park, Refuse   dead now
//	handler.Skip           completed; counted, logged
//
// If a worker's session ends with one item out, that is a failure of the item. If it ends with
// several out, nobody knows which item caused it, and it is not a failure of any. After two such
// ends an item is delivered alone, so that an item that kills its process becomes dead in the end,
// and other items do not. A handler that neither returns nor ends with its context is abandoned:
// see [WorkConfig].
package queue
