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
// Write with the version that Get returns, even the first time: an empty stream is the zero entity
// at [messagestore.NoStream]. If another writer was first, the write has a conflict; get again, and
// decide again.
//
// A projection is strict: an event of a type without a function is an error, because the entity
// would lack it. [Ignore] names the events that do not change the entity. If an event was renamed,
// or had other fields, it is read in its older form: see package upcast.
//
// # Cache
//
// A [Store] keeps the entities it has loaded, with their versions, and reads only the messages
// after them. It never answers from the cache alone: every Get reads the stream, starting with the
// last known message. So it also notices that this message is gone because the database was
// restored, and then starts over.
//
// Your entity shares nothing with the cache. An entity without pointers, slices and maps is copied
// by assignment; any other needs a method Clone that copies it, or is refused with the name of the
// field.
//
// # Trimmed and deleted streams
//
// A trimmed stream does not show the entity's state. Get returns a [*TrimmedError], unless a
// snapshot covers the removed messages: a snapshot at the message before the first remaining one,
// or a later one. A consumer parks the message that needed the entity. So when you trim, keep at
// least [Snapshot.Every] messages plus one, and have a snapshot first.
//
// A deleted stream is a [*DeletedError] until a message is written to it again; then the entity is
// folded from the messages after the tombstone. The cache drops a deleted entity at its next Get,
// or when the cache is full, or when the process ends. The snapshots are in another stream, which
// must be deleted separately.
//
// # Snapshots
//
// If streams are long and processes short-lived, [Config.Snapshot] stores a copy in the database
// from time to time, in a separate stream: "account:snapshot-123" for "account-123". A snapshot is
// a hint. If its tag, its content or its place in the stream does not fit, it is ignored. If a
// snapshot cannot be written, that is logged.
package entity
