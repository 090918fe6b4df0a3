// Package messagestore writes messages to streams and reads them back in order.
//
// A [Store] is opened over a [Driver]. The driver talks to the database; the store does everything
// that is the same for every database: encoding, validation, identifiers, paging, error text.
//
//	driver, err := postgres.New(pool, nil)
//	...
//	store, err := messagestore.New(driver, nil)
//	...
//	written, err := store.Write(ctx, account.Stream("123"), messagestore.NoStream, Opened{Name: "Ann"})
//
// # Streams and categories
//
// A stream is named by its category and its identifier, joined by a dash: "account-123". Reading
// the stream gives one entity's history; reading the category "account" gives every entity's, in
// the order the store accepted them.
//
// # Versions
//
// A stream's [Version] is the position of its last message, so an empty stream is at [NoStream].
// Every write states the version it expects. Write with the version that you read, NoStream
// included. If several writers expect the same version, one succeeds; the others get
// [ErrVersionConflict], which is an answer and not a failure.
//
// # Outcomes
//
// Every write ends in exactly one of three ways. It was written. It was not written, and nothing
// changed. Or the outcome is not known yet, because the answer was lost: [ErrOutcomeUnknown]. The
// store asks again until the context ends, and you can ask later with [Store.Resolve].
//
// Every message has an id, and is written once for that id. If you write it again, with the same
// id, stream, type, data and metadata, the store returns the position of the first time and says
// so, at any version of the stream. So you may repeat any write. [ErrIDConflict] means that the id
// is used for something else.
//
// # Limits
//
// A write has at most [MaxWriteMessages] messages and 16 MiB, a message at most [MaxMessageBytes],
// a name at most 255 bytes. Data is one JSON object without U+0000. It reads back equal as JSON,
// with exact numbers; the drivers in this module keep it byte for byte. Times are in microseconds.
//
// # For authors of drivers
//
// A service does not need these. A [Driver] is for one database; package storetest tests it. A
// driver that runs functions in its database's transactions is a [TransactDriver] too. Their
// methods take an [Append], a [StreamQuery] or a [CategoryQuery] that the store has checked, and
// return the errors that you see as a caller. [Encoded] is a body in stored form. [Store.Driver]
// returns the driver, for packages that need more of it than a Store offers.
//
// # For operators
//
// Package report counts the messages of a store. Package retention and the admin package of a
// driver remove messages. [Store.TrimCheckpoints] is for consumers only.
package messagestore
