// Package payments is an example of an HTTP API that pays once, however often it is asked to.
//
// A payment has two effects. The order to a bank, which is another company's system, goes out
// under the lease of the request's idempotence key, with its fencing token: a server that was
// stopped, and goes on after its lease, is refused there. The row in the payments table is written
// in one transaction with the response, so that either all of it has happened or none of it.
//
// A server that dies between the two leaves a bank that has paid and a table that does not know.
// The next request with the key takes the lease over and orders again: the [Bank] of this example
// dedupes nothing, so there are as many orders as attempts, and never more. A bank that can be
// asked is asked, from the second attempt on.
package payments
