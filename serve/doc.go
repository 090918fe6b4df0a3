// Package serve offers intents, queues and the store to programs in any language: over gRPC,
// gRPC-Web and HTTP with JSON, on one port.
//
//	server, err := serve.New(store, nil)
//	...
//	err = server.Run(ctx, serve.Listen{Address: "127.0.0.1:7070"})
//
// The services are a second door to packages [intent], [queue] and [messagestore], and have no
// semantics of their own. The files under proto/dibs/v1 say what each call does.
//
// Whatever a program should decide on is a field of the answer: reserved, held or done; written or
// a conflict; settled or lost. An error says that the call was refused, or that the server cannot
// answer now, by a code of Connect and gRPC:
//
//	invalid_argument     a field breaks a rule: see BadRequest in the details
//	unauthenticated      there is no such key, or it was revoked
//	permission_denied    the key has no right to the category
//	not_found            the intent or item does not exist
//	failed_precondition  the queue was removed, or the intent is done
//	resource_exhausted   too many calls, with RetryInfo; or a request that is too large, with BadRequest
//	unavailable          the store or the server cannot answer now: send the call again
//
// A client may send every call again, because it makes the ids: a repeated call gets the answer of
// the first one. So for the client an unknown outcome is no different from a server that is away.
//
// [intent]: https://pkg.go.dev/github.com/dibs-go/dibs/intent
package serve
