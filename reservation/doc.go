// Package reservation makes a command that may be sent more than once take effect once, and shows
// which copy of the command took effect.
//
//	once, err := reservation.New(store, "accounts", nil)
//	...
//	handler.Register(mux, reservation.Copy(once, Deposit.Key, accounts.deposit))
//
// The sender gives every copy of a command the same idempotence key. A reservation is an initial
// write to a stream named after that key: only one of any number of copies can make it. The others
// have a version conflict, which is an answer and not a failure. Each of them is compared with the
// winner: it is either a [Duplicate] of it, or another command under the same key, [KeyReused],
// which is never dropped.
//
// # Three ways to arrive twice
//
// A command arrives twice in one of three ways, each with its own remedy.
//
//   - It is sent again: the sender did not get an answer, and writes a second message. The
//     reservation makes that harmless. The sender chose the key, so both messages have it.
//   - It is redelivered: the consumer stopped before its checkpoint, and delivers the same message
//     once more. The id of the reservation's message is derived from the command's id, so making it
//     again changes nothing, and the outcome is [Redelivered]. But the copy is redelivered too, so
//     the handler of [Copy] must make its own effect repeatable: it gives its events an id by
//     [DeriveID], or sees from the entity that the work is done. [Inline] needs neither, because it
//     writes reservation and effect together.
//   - Two processes or handlers handle it at once. The expected version of their writes makes that
//     harmless: one of them has a conflict.
//
// # Ways to reserve
//
// [Copy] copies the command to its reservation stream and handles it when the copy arrives, in a
// second consumer. The handler may do anything, and the copy keeps the command's data byte for
// byte. [Initiate] starts another stream with an answer to the command, and another consumer goes
// on from there. [Inline] writes the reservation and the handler's own events together, without a
// second hop. [Transact] does the same with your own SQL in the same transaction; package inbox
// does it for requests from outside. [Reserver.Reserve] only reserves, and you make the effect: in
// your own transaction, make it if the outcome is [Reserved], and not otherwise.
//
// # The outcome
//
// A handler of [Inline] stores an answer with the reservation, by [Answer]. Every copy of the
// command gets it ([Result.Answer]), and [Reserver.Outcome] returns it to any caller with the key,
// together with the events that followed; [Reserver.Await] waits until it exists.
//
// # Names of reservation streams
//
// A reserver named accounts reserves a command in account:command-123 with key AAA in stream
// account:command+reservation+accounts-123+AAA. The stream keeps the entity's cardinal id, so that
// consumer groups keep the entity's order. The category is the reserver's own
// ([Reserver.Category]): a consumer of the commands does not get the reservations. Only the copies
// of [Copy] need a consumer, with the same name and mux as the commands' consumer.
//
// A key is only valid within the stream of its command, by the stream's whole identifier: key AAA
// of account:command-123 and key AAA of account:command-456 are two keys, and so is key AAA of
// account:command-123+more, or of another category.
//
// Commands of all types share their keys: if a Deposit and a Refund of one account have equal keys,
// the second is [KeyReused], and parked. If types may have equal keys, begin each key with the
// type.
//
// The name keeps the reservations of two consumers of one category apart, so that each of them
// handles every key's command once. Each reservation records the name of its consumer. A second
// consumer with a reserver of the same name would find every key taken, and have no effect: it is
// stopped at once, and so is a second consumer of one reserver. If you rename a consumer, put its
// other name in [Config].Consumers.
//
// A reserver must use the store of its consumer: otherwise the consumer is refused when it starts,
// with an error that matches [messagestore.ErrInvalid].
//
// # How long a key is taken
//
// A key is taken for ever, or at least for the [Config].KeyLife that the first reserver of a name
// declared in its category, before its first key. dibs forget removes older reservations: their
// keys are free, and if a command with such a key is sent again, it is carried out again. It keeps
// a reservation as long as a consumer of the commands has not passed every command that may have
// its key, as long as a copy is not delivered, and as long as the copy or a message of the
// command's stream is parked. So a command that is redelivered or redriven finds its own
// reservation.
//
// dibs trim does not touch reservations, and dibs delete removes one stream, but its tombstone
// keeps the key taken.
//
// # Deleted reservations
//
// If an administrator deletes a reservation stream, the key stays taken. A second command is a
// [Duplicate] or [KeyReused] as before, because the tombstone keeps the digest of the winner, and
// [Result.Deleted] is true. If the winning command itself is sent or delivered again, it is a
// duplicate too. A stream whose first message makes a reservation is not trimmed.
//
// # Keys
//
// A key comes with the command (a deposit's id, which the sender made when the person decided to
// deposit), is made by the sender, such as a UUID, or is computed from the command by [ContentKey],
// if senders cannot remember a key: then two equal commands are one.
//
// An empty key is refused. It would make every command without a key a duplicate of the first one,
// and lose it. For the same reason keys are neither trimmed nor case-folded: keys are equal if
// their bytes are.
//
// # Limits
//
// A copy has a few hundred bytes more metadata than its command: its cause, the key, the name, a
// digest, the streams that were written with it, and an answer. If a command is closer than that to
// [messagestore.MaxMessageBytes], it can be written but not copied: [Copy], [Inline] and
// [Reserver.Reserve] always return an error that matches [messagestore.ErrInvalid] for it. Leave
// two kilobytes free, and room for the answer.
package reservation
