// Package idempotency is HTTP middleware for the Idempotency-Key header: of any number of
// requests with one key, one is handled, and all get its response.
//
//	intents, err := intent.New(store, "payment:intent", nil)
//	...
//	once, err := idempotency.New(intents, &idempotency.Config{Scope: client})
//	...
//	mux.Handle("POST /payments", once.HandlerFunc(pay))
//
// The first request with a key reserves an intent, and its handler runs under the intent's
// lease. The handler's response is held back until it is stored, as the result that the intent is
// confirmed with for ever, and then sent. Every later request is answered with the stored
// response, byte for byte, and the header Idempotent-Replayed: true.
//
// # Answers
//
// A request that the handler does not get is answered with a [Problem]:
//
//   - 400 without a key, or with a header that is none; or for a body that did not come whole.
//   - 401 if [Config.Scope] does not know the client.
//   - 409 while another request with the key is at work, and, from the first request on, for a
//     response of more than [Config.MaxResponse] bytes: the request is done.
//   - 411 for an empty body of no declared length: see below.
//   - 413 for a body of more than [Config.MaxBody] bytes.
//   - 422 if the key was used for another request: another method, path, query, content type,
//     encoding, range or body.
//   - 500 if the stored response cannot be read, or the body was read before.
//   - 503 if the store does not answer: the handler never runs without a lease.
//
// Of the handler's responses those are stored that would be the same the next time: see
// [Config.Keep]. After any other, after a panic and after [Forget], the intent is released, and
// the next request with the key is handled again.
//
// # Crashes
//
// A server that dies at work leaves its lease, which the next request takes over once its time is
// over. The dead server may have done a part of the work: the handler asks [Lease] for its
// Attempt, which is 2 or more, and looks before it acts. Where the handler's effect is in the
// database of the store, it stores the response in the transaction of the effect, and the two
// happen together or not at all:
//
//	txs, err := messagestore.Transactional[pgx.Tx](store) // the store of the intents
//	...
//	_, err = txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
//		if _, err := tx.Exec(ctx, "insert into payments ..."); err != nil {
//			return nil, err
//		}
//		return idempotency.Response{Status: http.StatusCreated, Body: receipt}.Write(ctx)
//	})
//
// A call to a system outside is fenced by the lease's Token, and comes after a look at its Err.
//
// # Around it
//
// Put the middleware inside a middleware that compresses or decodes bodies, and behind the one for
// authentication. One in front of it that reads a body puts it back whole: a body that may lack bytes is
// refused, since another amount would be the same request. Requests wait for the store: give it
// connections of its own if the handlers may hold all others, since the heartbeat of a lease needs one.
package idempotency
