// Package entity loads the current state of a thing from the stream of what
// happened to it.
//
//	account := entity.NewProjection[Account]()
//	entity.On(account, func(a Account, e Opened) Account { a.Customer = e.Customer; return a })
//	entity.On(account, func(a Account, e Deposited) Account { a.Balance += e.Amount; return a })
//
//	accounts, err := entity.New(store, "account", account, nil)
//	...
//	a, version, err := accounts.Get(ctx, "123")
//	...
//	_, err = store.Write(ctx, accounts.Stream("123"), version, Withdrawn{amount})
//
// The version that Get returns is the one to write with, also the first time: an
// empty stream is the zero entity at [messagestore.NoStream]. If somebody else has
// written in between, the write conflicts; get again, decide again.
//
// # Cache
//
// A [Store] remembers the entities it has loaded, with their versions, and reads
// only what came since. It never answers from memory alone: every Get reads the
// stream, starting with the last message it knows, so it also sees when that
// message is gone because the database was restored, and starts over.
//
// What is remembered is nobody else's. An entity without pointers, slices and maps
// is copied by assignment; any other has a method Clone that copies it, or New
// refuses it, and names the field.
//
// # What was removed
//
// A stream that was trimmed does not say what the entity is. Get returns a
// [*TrimmedError], unless a snapshot has what was removed: one that was taken at the
// message before the first that is left, or later. So keep at least
// [Snapshot.Interval] messages and one when trimming, and have a snapshot first.
//
// A stream that was deleted is a [*DeletedError], until somebody writes to it again;
// then the entity is what came after the tombstone. Memory forgets a deleted entity
// when it is next asked for, or when it has to make room, or when the process ends. The
// snapshots are in a stream of their own, which is deleted by itself.
//
// # Snapshots
//
// Where streams are long and processes short, [Config.Snapshot] keeps a copy in the
// database from time to time, in a stream beside the entity's:
// "account:snapshot-123" for "account-123". A snapshot is a hint. One that does
// not fit, by its tag, its content or its place in the stream, is passed over, and
// one that cannot be written is logged.
package entity
