// Package reservation makes a command that may be sent more than once take effect once,
// and shows which copy of the command did.
//
//	once, err := reservation.New(store, "accounts", nil)
//	...
//	handler.Register(mux, reservation.Copy(once, Deposit.Key, accounts.deposit))
//
// The sender gives every copy of a command the same idempotence key. A reservation
// is an initial write to a stream named after that key: of any number of copies,
// one can make it. The others meet a version conflict, which is an answer and not a
// failure. Each of them is compared with the winner, and is either a [Duplicate] of it,
// or another command under the same key, [KeyReused], which is never dropped.
//
// # Three ways to arrive twice
//
// A command arrives twice in one of three ways, and each has its own remedy.
//
//   - It is sent again: the sender did not get an answer, and writes a second message.
//     The reservation makes that harmless. The sender chose the key, so both messages
//     have it.
//   - It is redelivered: the consumer stopped before its checkpoint, and delivers the same
//     message once more. The message of the reservation has an id that is derived from the
//     command's, so making it again changes nothing, and the outcome is [Redelivered]. But the
//     copy is redelivered too, so the handler after [Copy] makes its own effect repeatable: it
//     gives its events an id by [DeriveID], or sees from the entity that it is done. [Inline]
//     needs neither, for reservation and effect are one write.
//   - It is handled by two at once, in two processes or two handlers. The expected
//     version of their writes makes that harmless: one of them conflicts.
//
// # Ways to reserve
//
// [Copy] copies the command to its reservation stream and handles it when the copy
// arrives, at a second consumer. The handler may do anything, and the copy keeps the command's data byte
// for byte. [Initiate] starts another stream with an answer to the command, for
// another consumer to go on with. [Inline] writes the reservation and the handler's
// own events as one, without a second hop. [Transact] does as [Inline] does, with the
// caller's own SQL in the same transaction; package inbox does so for requests from outside. [Reserver.Reserve] reserves, and the effect is the
// caller's: in a transaction of the caller's own it happens with [Reserved], and with no other
// outcome.
//
// # The outcome
//
// A handler of [Inline] records an answer with the reservation, by [Answer]. Every copy of the
// command is told it ([Result.Answer]), and [Reserver.Outcome] returns it to any caller that has the
// key, with the events that followed; [Reserver.Await] waits until it is there.
//
// # Names of reservation streams
//
// A reserver named accounts reserves a command in account:command-123 with key AAA in
// stream account:command+reservation+accounts-123+AAA. The stream keeps the entity's cardinal id, so
// that consumer groups keep the entity's order. The category is the reserver's own
// ([Reserver.Category]): a consumer of the commands does not meet the reservations. Only the copies
// of [Copy] take a consumer, with the same name and mux as the commands' consumer.
//
// A key means something within the stream of its command, by its whole identifier:
// key AAA of account:command-123 and key AAA of account:command-456 are two keys, and so
// is key AAA of account:command-123+more, or of another category.
//
// A key is one for commands of all types: if a Deposit and a Refund of one account have
// equal keys, the second is [KeyReused], and parked. Types whose keys may be equal get
// keys that begin with the type.
//
// The name tells the reservations of two consumers of one category apart, so that each
// of them handles every key's command once. Each reservation has the name of its consumer on record.
// A second consumer whose reserver has the same name would find every key taken, and have no effect: it
// is stopped at once, and so is a second consumer of one reserver. A consumer
// that is renamed names its other name in [Config].Consumers.
//
// A reserver is over the store of the consumer: another is refused when the consumer starts, with an
// error that matches [messagestore.ErrInvalid].
//
// # How long a key is taken
//
// For ever, or at least for the [Config].KeyLife that the first reserver of a name declared in its
// category, before its first key. dibs forget removes reservations that are older: their keys are free, and
// a command with such a key that is sent again is carried out again. It leaves a reservation as long as a
// consumer of the commands has yet to pass a command that may have its key, a copy was not delivered, or the copy
// or a message of the command's stream is parked. So a command that is redelivered, or redriven, meets its own
// reservation.
//
// dibs trim leaves reservations as they are, and dibs delete removes one stream, whose
// tombstone keeps the key taken.
//
// # Deleted reservations
//
// A reservation stream that an administrator deletes stays taken. A second command is a
// [Duplicate] or [KeyReused] as before, for the tombstone keeps the digest of the winner,
// and [Result.Deleted] is true. The winning command itself, sent or delivered again, is a
// duplicate too. A stream whose first message makes a reservation is not trimmed.
//
// # Keys
//
// A key comes with the command (a deposit's id, which the sender made when the
// person decided to deposit), is made by the sender, as a UUID, or is computed
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
// key, the name, a digest, the streams that were written to with it, and an answer. A command that is closer than that to
// [messagestore.MaxMessageBytes] can be written, but not copied: [Copy], [Inline] and
// [Reserver.Reserve] return an error that matches [messagestore.ErrInvalid], however
// often they are tried. Keep two kilobytes free, and room for the answer.
package reservation
