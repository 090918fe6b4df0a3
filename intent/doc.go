// Package intent carries a request out once, by one worker at a time, and keeps its result for
// ever.
//
//	intents, err := intent.New(store, "payment:intent", nil)
//	...
//	receipt, answer, err := intent.Do(ctx, intents, intent.Request{Key: "29401/1998-12", Content: order},
//		func(ctx context.Context, lease *intent.Lease) (Receipt, error) {
//			return bank.Pay(ctx, order, lease.Token())
//		})
//
// An intent is a key: the data that identifies a request. A session reserves it, works under a
// lease, and confirms it with a result, or releases it. A request for an intent gets one of four
// answers: you have the lease ([Reserved]); another session has it ([Held]); it was carried out,
// and this is the result ([Done]); or the key was first used for something else ([KeyReused]).
//
// # Without a clock
//
// An intent is a stream, and its state is the stream's last message. Every step is an append at the
// version that it was decided on, and nothing is ever appended to a confirmed intent. So if several
// sessions take, confirm or release it at once, one succeeds, and a holder that was too slow is
// refused, even if a clock is wrong: a result is confirmed once, and is never lost.
//
// The store's clock decides only when a lease that is not extended may be taken over. A holder
// counts its own time from before each request, and never compares two clocks.
//
// # The fencing token
//
// Each grant has a token that is greater than all earlier ones for that key: the microseconds of
// the grant's time, or one more than the previous token if that is greater. A resource outside the
// store keeps the greatest token that it has seen, and refuses a smaller one. This, and not the
// lease, keeps two workers apart: package intent does not promise that only one works at a time.
//
// A resource in the store needs no token: [Lease.Confirm] appends to other streams in its own step,
// and [Lease.Confirmation] and [Lease.Guarded] are for your own transaction.
//
// After a failover or restore that lost messages, tokens keep rising as long as the new server's
// clock is not behind the old one's by more than the time since the lost grant.
//
// # Over a service
//
// [NewOver] returns a [Manager] whose intents another process keeps, such as dibs serve: package
// serve/client has the way there. What you do with a Manager stays the same.
//
// # Connections
//
// The heartbeat that extends a lease needs a connection. On PostgreSQL it does not wait for
// handlers that hold the whole pool (package postgres). Over a *sql.DB it does: then give the
// intents a store with its own connections, or the contexts of their work end.
//
// # Waiting
//
// With [Request.Wait] a session stands in a line, which is stored in the intent. The first session
// may take the intent as soon as it is free, and each further session a [Config.Turn] later. So a
// waiter that died delays the others by one turn. The message that ends the lease wakes the
// waiters.
//
// Of each Manager's calls for an intent the first eight stand in the line, and the others behind
// them in memory, so a crowd costs little. They are served in the order in which they came. Between
// processes the line decides, in which each call stands once its Manager's earlier ones do.
package intent
