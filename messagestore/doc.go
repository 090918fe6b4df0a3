// Package messagestore writes messages to streams and reads them back in order.
//
// A [Store] is opened over a [Driver]. The driver owns the database; the store owns everything that
// is the same for every database: encoding, validation, identifiers, paging, error text.
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
// Every write states the version it expects. The version that reading gave is the version to write
// with, including the first time. Of any number of writers that expect the same version, one
// succeeds; the others get [ErrVersionConflict], which is an answer and not a failure.
//
// # Outcomes
//
// Every write ends in exactly one of three ways: it was written; it was not, and nothing changed;
// or the outcome is not known yet, [ErrOutcomeUnknown], because the answer was lost. The store asks
// again by itself while the context lasts, and [Store.Resolve] does so later.
//
// Every message has an id, and a message is written once for its id: writing it again, with the
// same id, stream, type, data and metadata, returns the position of the first time and says so, at
// any version that the stream has by then. So any write may be repeated, and [ErrIDConflict] tells
// when an id is used for something else.
//
// # Limits
//
// A write has at most [MaxWriteMessages] messages and 16 MiB, a message at most [MaxMessageBytes],
// a name at most 255 bytes. Data is one JSON object without U+0000. The drivers in this module keep
// it byte for byte; the promise is that it reads back equal as JSON, with exact numbers. Times are
// in microseconds.
//
// # For authors of drivers
//
// A service needs none of these. [Driver] is a database, and package storetest its test. A driver
// that runs functions in its database's transactions is a [TransactDriver] too. Their methods take
// an [Append], a [StreamQuery] or a [CategoryQuery] that the store has checked, and return the
// errors that a caller sees. [Encoded] is a body as it is stored, and [Store.Driver] gives a
// package beside this one the driver that it asks for more.
//
// # For operators
//
// Package report counts the messages of a store, package retention and the admin package of a
// driver remove them, and [Store.TrimCheckpoints] is for consumers alone.
package messagestore
