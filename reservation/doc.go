// Package reservation makes sure that a command which may be sent more than once
// is handled once, and that anyone can see which of the copies it was.
//
//	once, err := reservation.New(store, nil)
//	...
//	handler.On(mux, reservation.Copy(once, Deposit.Key, accounts.deposit))
//
// The sender gives every copy of a command the same idempotence key. A reservation
// is an initial write to a stream named after that key: of any number of copies,
// one can make it. The rest meet a version conflict, which is an answer. They are
// compared with the one that was first, and are either a [Duplicate] of it, or
// something else under the same key, [KeyReused], which is never dropped.
//
// # What defeats what
//
// A command arrives twice in one of three ways, and each needs its own answer.
//
//   - It is issued again: the sender did not hear back, and writes a second message.
//     The reservation defeats that. The key is the sender's, so both messages have it.
//   - It is delivered again: the consumer stopped before it recorded its position, and
//     gets the same message once more. The reservation is not harmed by that: its
//     message has an id that is derived from the command's, so making it again
//     changes nothing. But what is reserved is delivered at least once too, so the
//     handler after [Copy] makes its own effect repeatable: it gives its events an
//     id by [DeriveID], or sees from the entity that it is done. [Inline] needs
//     neither, for reservation and effect are one write.
//   - It is handled by two at once, in two processes or two handlers. The expected
//     version of whatever they write defeats that: one of them conflicts.
//
// # Ways to reserve
//
// [Copy] copies the command to its reservation stream and handles it when the copy
// arrives. The handler may do anything, and the copy keeps the command's data byte
// for byte. [Initiate] starts another stream with an answer to the command, for
// another consumer to go on with. [Inline] writes the reservation and the handler's
// own events as one, without a second hop. [Reserver.Reserve] is what they are made
// of, for anything else, such as a transaction of the caller's own:
//
//	once, err := reservation.New(messagestore.New(postgres.New(tx, nil), nil), nil)
//
// # Where it is
//
// The reservation of a command in account:command-123 with key AAA is stream
// account:command-123+AAA. It keeps the entity's cardinal id, so that consumer groups
// keep the entity's order, and it is in the category that is consumed, so that the
// copy comes back to the same consumer. [Config.Category] puts reservations into a
// category of their own, and [NewPair] runs the two consumers that this takes.
//
// A key means something within the stream of its command, by its whole identifier:
// key AAA of account:command-123 and key AAA of account:command-456 are two, and so
// are those of account:command-123 and account:command-123+more. With
// [Config.Category] it is the cardinal id that tells them apart.
//
// Within it, a key is one for commands of all types: if a Deposit and a Refund of one
// account have equal keys, the one that comes second is [KeyReused], and parked. Types
// whose keys may be equal get keys that begin with the type.
//
// # Two consumers of one category
//
// Two consumers that read the same commands and both reserve NEED NAMES, each its own:
//
//	once, err := reservation.New(store, &reservation.Config{Name: "receipts"})
//
// A reservation is then for a key and a name, in account:command-123+receipts+AAA, and
// every consumer handles each key's command once. One of them may go without a name.
//
// If two do, they share their reservations. What one reserved by [Inline], with its
// effect, the other finds done, and cannot tell whether its own effect is: it stops
// with an [*OtherConsumerError], whatever it is called next. So give the reserver of an
// Inline a name from the start if its consumer may ever be renamed: with a name, it is
// the name that counts and not the consumer's. Two that use [Copy] both handle the
// one copy that there is, and do not notice.
//
// # What was deleted
//
// A reservation stream that an administrator deletes stays taken, with its name or
// without: what comes second is a [Duplicate] or [KeyReused] as before, for the tombstone
// keeps what counted of the command as a hash, and [Result.Deleted] says so. The command
// itself, sent or delivered again, is a duplicate too. A stream whose first message
// makes a reservation is not trimmed.
//
// # Keys
//
// A key comes with the command (a deposit's id, which the sender made when the
// person decided to deposit), is made by the sender with [NewKey], or is computed
// from the command by [ContentKey], for senders that cannot remember one: then two
// equal commands are one.
//
// An empty key is refused. It would make every command without a key a duplicate of
// the first one, and lose it. For the same reason nothing is trimmed and no case is
// folded: keys are equal if their bytes are.
//
// # Limits
//
// A copy has a few hundred bytes of metadata more than its command: its cause, the
// key, the name and a hash. A command that is nearer than that to
// [messagestore.MaxMessageBytes] can be written, but not copied: [Copy], [Inline] and
// [Reserver.Reserve] return an error that matches [messagestore.ErrInvalidData],
// however often it is tried. Keep two kilobytes free.
package reservation
