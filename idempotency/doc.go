// Package idempotency is HTTP middleware for the Idempotency-Key header: of any number of requests
// with one key, one is handled, and all get its response.
//
//	intents, err := intent.New(store, "payment:intent", nil)
//	...
//	once, err := idempotency.New(intents, &idempotency.Config{Scope: client})
//	...
//	mux.Handle("POST /payments", once.HandlerFunc(pay))
//
// The first request with a key reserves an intent, and its handler runs under the intent's lease.
// The handler's response is held back until it is stored, as the result that confirms the intent
// for ever, and then sent. Every later request is answered with the stored response, byte for byte,
// and the header Idempotent-Replayed: true.
//
// # Answers
//
// If the handler does not get a request, the answer is a [Problem]:
//
//   - 400 without a key or with an invalid header, or if the body did not arrive completely.
//   - 401 if [Config.Scope] does not know the client.
//   - 409 while another request with the key is being handled. Also, from the first request on, if
//     the response has more than [Config.MaxResponse] bytes: then the request is done.
//   - 411 for an empty body without a declared length: see below.
//   - 413 for a body of more than [Config.MaxBody] bytes.
//   - 422 if the key was used for another request: another method, path, query, content type,
//     encoding, range or body.
//   - 500 if the stored response cannot be read, or the body was read before.
//   - 503 if the store does not answer: the handler never runs without a lease.
//
// Only those responses of the handler are stored that would be the same the next time: see
// [Config.Keep]. After any other response, after a panic and after [Forget], the intent is
// released, and the next request with the key is handled again.
//
// # Crashes
//
// A server that dies at work leaves its lease, and the next request takes it over once its time is
// over. The dead server may have done a part of the work: the handler checks the Attempt of its
// [Lease], which is then 2 or more, and looks before it acts. If the handler's effect is in the
// store's database, the handler can store the response in the transaction of the effect, and the
// two happen together or not at all:
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
// Before a call to an outside system, check the lease's Err; fence the call by its Token.
//
// # Around it
//
// Put the middleware inside any middleware that compresses or decodes bodies, and after the one for
// authentication. If an outer middleware reads a body, it must put it back completely: a body that
// may lack bytes is refused, because otherwise another amount could count as the same request.
// Requests wait for the store: give it its own connections if the handlers may hold all others,
// because the heartbeat of a lease needs one.
package idempotency
