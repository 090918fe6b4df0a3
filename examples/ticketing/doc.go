// Package ticketing sells the seats of a theatre over HTTP: each request once, however often it is
// sent, and each seat to one customer.
//
//	POST /seats/12A/holds                Idempotency-Key: k1     {"email":"ann@example.com"}
//	202 Accepted                         Location: /seats/12A/holds/k1
//	GET  /seats/12A/holds/k1
//	200 OK                               {"seat":"12A","held":true}
//
// Any number of replicas of it run at a time. A request becomes a command, so no request waits for
// a handler. One replica's consumer decides about it: the reservation of the key, the event of the
// seat and a row of the box office's table are one transaction. Another consumer mails the customer
// about each event.
package ticketing
