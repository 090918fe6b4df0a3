// Package dibs is a message store and a reservation framework for services on
// PostgreSQL: the first write wins, a message that is sent twice is handled
// once, and anyone can see who won.
//
// [Open] opens a store by its URL. The other packages:
//
// The store:
//
//   - [github.com/dibs-go/dibs/messagestore] has streams, versions and messages
//   - [github.com/dibs-go/dibs/messagestore/postgres] keeps them in PostgreSQL,
//     in a pool's connections or in your transaction
//   - [github.com/dibs-go/dibs/messagestore/sqlite] keeps them in a file
//   - [github.com/dibs-go/dibs/messagestore/memory] keeps them for a test
//   - [github.com/dibs-go/dibs/messagestore/storetest] tests a driver of your own
//   - [github.com/dibs-go/dibs/migrations] brings a PostgreSQL database up to date
//
// The services over it:
//
//   - [github.com/dibs-go/dibs/entity] folds a stream into the entity it tells of
//   - [github.com/dibs-go/dibs/logger] takes your zerolog logger or slog handler
//   - [github.com/dibs-go/dibs/handler] gives each message to the function for its type
//   - [github.com/dibs-go/dibs/handler/handlertest] tests such functions, with a database and without
//   - [github.com/dibs-go/dibs/consumer] reads a category from where it left off
//   - [github.com/dibs-go/dibs/reservation] has a command handled once, however
//     often it is sent
//
// The command dibs is in cmd/dibs; examples/quickstart is the shortest program
// and examples/account a whole component.
package dibs
