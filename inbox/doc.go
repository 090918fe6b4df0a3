// Package inbox carries out a request from outside once, together with your own SQL: key, rows and
// messages are one transaction.
//
//	txs, err := messagestore.Transactional[pgx.Tx](store)
//	b, err := inbox.New(txs, "payments", nil)
//	...
//	result, err := b.Receive(ctx, inbox.Request{ID: key, Source: "POST /deposits", Data: body},
//		func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
//			_, err := tx.Exec(ctx, "insert into deposits values ($1, $2)", key, amount)
//			return []messagestore.StreamWrite{reservation.Answer(Accepted{key})}, err
//		})
//
// [Inbox.Receive] is for a request from outside, such as one over HTTP: its key is reserved in a
// separate category, the inbox. For the commands of a category use [reservation.Transact].
//
// # Once
//
// The function's SQL, the reservation of the key and the messages that the function returns are
// committed together, or not at all. So of any number of copies, redeliveries and concurrent
// attempts exactly one is committed, and the others get its answer: see [reservation.Result]. If a
// process is killed before COMMIT, nothing has happened; if it is killed after COMMIT, the next
// copy finds the key reserved. If the answer to COMMIT is lost, the id of the reservation shows
// whether it happened.
//
// [Inbox.Undo] gives a request back, once. The first write wins here too: a request that comes
// after its undo is not carried out, and its outcome is [reservation.Undone]. So a sender that does
// not know whether its request arrived may undo it.
//
// A key is taken for ever, or until dibs forget removes the request: then a copy of it is carried
// out again. If a request's key was used for another request, it is recorded as [Refused], and the
// outcome is [reservation.KeyReused]. This settles the request, because a broker that got it back
// would send it for ever.
//
// The function may be called more than once, each time in a new transaction, because another stream
// or a row may have changed. So its effects outside of tx may happen more than once.
package inbox
