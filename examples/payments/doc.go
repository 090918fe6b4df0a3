// Package payments is an example of an HTTP API that pays once, however often the request comes.
//
// A payment has two effects. The order to a bank, a system of a different company, goes out under
// the lease of the request's idempotence key, with its fencing token: if a server was stopped and
// goes on after its lease, the bank refuses its order. The row in the payments table is written in
// one transaction with the response, so both happen or neither does.
//
// If a server dies between the two, the bank has paid and the table does not show it. The next
// request with the key takes over the lease and orders again. The [Bank] of this example does not
// deduplicate, so there are as many orders as attempts, and never more. If a bank can answer
// whether it has paid, the server asks it from the second attempt on.
package payments
