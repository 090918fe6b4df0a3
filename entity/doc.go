// Package entity loads the current state of an entity from the stream of its events.
//
//	account := entity.NewProjection[Account]()
//	entity.On(account, func(a Account, e Opened) Account { a.Customer = e.Customer; return a })
//	entity.On(account, func(a Account, e Deposited) Account { a.Balance += e.Amount; return a })
//
//	accounts, err := entity.New(store, "account", account, nil)
//	a, version, err := accounts.Get(ctx, "123")
//	...
//	_, err = store.Write(ctx, accounts.Stream("123"), version, Withdrawn{amount})
//
// The version that Get returns is the one to write with, also the first time: an
// empty stream is the zero entity at [messagestore.NoStream]. If another writer was first,
// the write conflicts; get again, decide again.
//
// A projection is strict: an event of a type that it has no function for is an error, for the
// entity would be without it. [Ignore] names the events that do not change the entity. An event that
// was renamed, or had other fields, is read in its older form: see package upcast.
//
// # Cache
//
// A [Store] keeps the entities it has loaded, with their versions, and reads only the
// messages after them. It never answers from the cache alone: every Get reads the
// stream, starting with the last message it knows, so it also sees when that
// message is gone because the database was restored, and starts over.
//
// The caller's entity shares nothing with the cache. An entity without pointers, slices and
// maps is copied by assignment; any other has a method Clone that copies it, or is refused
// with the name of the field.
//
// # Trimmed and deleted streams
//
// A trimmed stream does not show the entity's state. Get returns a [*TrimmedError], unless a
// snapshot has the removed messages: one from the message before the first that is left, or
// a later one. A consumer parks the message that needed the entity. So keep at least [Snapshot.Every] messages and one when trimming, and have a
// snapshot first.
//
// A deleted stream is a [*DeletedError] until a message is written to it again; then the
// entity is folded from the messages after the tombstone. The cache forgets a deleted entity
// at its next Get, or when the cache is full, or when the process ends. The
// snapshots are in a stream of their own, which is deleted by itself.
//
// # Snapshots
//
// Where streams are long and processes short, [Config.Snapshot] keeps a copy in the database from
// time to time, in a stream beside the entity's: "account:snapshot-123" for "account-123". A
// snapshot is a hint. A snapshot that does not fit, by its tag, its content or its place in the
// stream, is passed over. A snapshot that cannot be written is logged.
package entity
