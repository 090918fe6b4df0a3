// Package dibs is a message store and a reservation framework for services on PostgreSQL, with
// SQLite built in. The first write wins: a message that is sent twice is handled once, and anyone
// can see which copy won.
//
// [Open] opens a store by its URL. The other packages build on it.
//
// Jobs:
//
//   - [github.com/dibs-go/dibs/queue] takes jobs first come, first served, in order per key
//   - [github.com/dibs-go/dibs/queue/cron] inserts jobs at their times, without a leader
//   - [github.com/dibs-go/dibs/reservation] handles a command once, however often it is sent
//   - [github.com/dibs-go/dibs/inbox] carries out a request from outside once, with your own SQL
//   - [github.com/dibs-go/dibs/outbox] sends messages to a broker, an endpoint or another store
//   - [github.com/dibs-go/dibs/saga] runs a process over several steps, which are all done or all undone
//   - [github.com/dibs-go/dibs/intent] reserves a request under a lease, and keeps its result
//   - [github.com/dibs-go/dibs/idempotency] is HTTP middleware for the Idempotency-Key header
//
// Handlers:
//
//   - [github.com/dibs-go/dibs/consumer] reads a category from where it left off
//   - [github.com/dibs-go/dibs/operate] says how all that works on a store is doing, tells the story of any id, and changes many items in one call
//   - [github.com/dibs-go/dibs/ui] is a page for operators, which dibs ui serves
//   - [github.com/dibs-go/dibs/consumer/operate] shows where consumers are, moves them, and has what they parked
//   - [github.com/dibs-go/dibs/handler] passes each message to the function for its type
//   - [github.com/dibs-go/dibs/handler/handlertest] tests such functions, with a database and without
//   - [github.com/dibs-go/dibs/entity] loads an entity from the stream of its events
//   - [github.com/dibs-go/dibs/upcast] reads messages that were written in an older form
//   - [github.com/dibs-go/dibs/logger] takes your zerolog logger or slog handler
//
// The store:
//
//   - [github.com/dibs-go/dibs/messagestore] has streams, versions and messages
//   - [github.com/dibs-go/dibs/messagestore/postgres] keeps them in PostgreSQL, over a pool or in your transaction
//   - [github.com/dibs-go/dibs/messagestore/sqlite] keeps them in a file
//   - [github.com/dibs-go/dibs/messagestore/memory] keeps them for a test
//   - [github.com/dibs-go/dibs/messagestore/retention] has the types for trimming, forgetting and verifying
//   - [github.com/dibs-go/dibs/messagestore/postgres/admin] does so on PostgreSQL
//   - [github.com/dibs-go/dibs/messagestore/postgres/postgrestest] gives a test a database of its own
//   - [github.com/dibs-go/dibs/migrations] brings a PostgreSQL database up to date
//
// A driver of your own:
//
//   - [github.com/dibs-go/dibs/messagestore/storetest] tests a driver
//   - [github.com/dibs-go/dibs/intent/intenttest] tests a store of intents
//
// The command dibs is in cmd/dibs. The shortest program is examples/quickstart, and a whole
// component is examples/account.
package dibs
