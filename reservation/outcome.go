package reservation

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
)

// An Outcome is the answer to an attempt to reserve.
type Outcome int

const (
	// Reserved says that this message has made the reservation now. For a look-up it says that the
	// key has a reservation.
	Reserved Outcome = iota + 1

	// Redelivered says that this message had made the reservation before: it was delivered again,
	// or the answer to an attempt was lost. An effect that is committed together with the
	// reservation already exists, and is not repeated. An effect that comes after the reservation
	// may or may not exist.
	Redelivered

	// Duplicate says that another message with the same key and content was first.
	Duplicate

	// KeyReused says that another message was first, with the same key and other content. One
	// sender is wrong, but the store cannot tell which.
	KeyReused

	// Undone says that the request was undone; after an undo it says that the undo was made now.
	// Only package inbox returns it.
	Undone
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Reserved:
		return "reserved"
	case Redelivered:
		return "redelivered"
	case Duplicate:
		return "duplicate"
	case KeyReused:
		return "key reused"
	case Undone:
		return "undone"
	}
	return fmt.Sprintf("outcome %d", int(o))
}

// A Result is the answer to an attempt to reserve, or to a look-up.
type Result struct {
	Outcome Outcome
	Key     string // as given; for [Initiate], the started stream's identifier
	Stream  messagestore.StreamName

	// Winner is the message that has the reservation, the first of Stream. Its
	// metadata names the command that it follows.
	Winner *messagestore.Message

	// Answer is the value that the winner's function stored by [Answer], as JSON, or nil. It is the
	// same for all copies of a command or request. It is nil if package inbox found the key reused.
	Answer json.RawMessage

	// Deleted says that the stream was deleted later. Winner is then the tombstone, which keeps the
	// digest of the command.
	Deleted bool
}

// ErrWinnerUnseen is returned if the caller's transaction cannot read the winner of a reservation,
// because its snapshot is older. Try again in another transaction.
var ErrWinnerUnseen = errors.New("the winner cannot be seen")

// A KeyReusedError names the command that has the key. A consumer always parks the second command
// at once, because it is neither handled nor a duplicate.
type KeyReusedError struct {
	Key    string
	Stream messagestore.StreamName
	Winner *messagestore.Message
}

// Error names the key and the winner.
func (e *KeyReusedError) Error() string {
	if e.Winner.IsTombstone() {
		return fmt.Sprintf("idempotence key reused: %.64q was first used with other content, in %s, which was deleted", e.Key, e.Stream)
	}
	return fmt.Sprintf("idempotence key reused: %.64q was first used with other content, by %s", e.Key, e.Winner)
}

// Unwrap makes a consumer park the message at once.
func (e *KeyReusedError) Unwrap() error { return calling.Parked }

// A NoReservationError says that the stream named after the key of a command begins with a message
// that is not a reservation: it was written there without one, or by another client. Or the stream
// was deleted, and its tombstone has no digest of a reservation; the tombstone of a request in an
// inbox never has one. So the key has no winner, and the command is neither reserved nor a
// duplicate. A consumer always parks the command at once.
type NoReservationError struct {
	Stream messagestore.StreamName
	First  *messagestore.Message // the first message of the stream
}

// Error names the message.
func (e *NoReservationError) Error() string {
	if e.First.IsTombstone() {
		return fmt.Sprintf("no reservation: %s was deleted, and its tombstone does not tell of one", e.Stream)
	}
	return fmt.Sprintf("no reservation: %s is in its place", e.First)
}

// Unwrap makes a consumer park the message at once.
func (e *NoReservationError) Unwrap() error { return calling.Parked }

// An otherConsumerError says that two consumers use one [Reserver], or two reservers with one name:
// the second would find each key taken by the first, and have no effect. Make a reserver for each
// of them, with different names. If it is one consumer that was renamed, put its other name in
// [Config].Consumers.
type otherConsumerError struct {
	Reserver    string                  // its name
	Consumer    string                  // which it serves, or which made the reservation
	Other       string                  // which also uses it
	Reservation messagestore.StreamName // which Consumer made; "" if the reserver itself serves it
}

// Error names the consumers.
func (e *otherConsumerError) Error() string {
	if e.Reservation != "" {
		return fmt.Sprintf("reserver %q of consumer %s has the name of a reserver of consumer %s, which made the reservation %s: each consumer has a reserver with a name of its own, and a consumer that was renamed has its other name in Config.Consumers",
			e.Reserver, e.Other, e.Consumer, e.Reservation)
	}
	return fmt.Sprintf("reserver %q serves consumer %s, and was handed to consumer %s too: each consumer has a reserver with a name of its own",
		e.Reserver, e.Consumer, e.Other)
}

// Is matches ErrLasting: the consumer always stops at once, because every message would fail the
// same way.
func (*otherConsumerError) Is(target error) bool { return target == calling.ErrLasting }

// A lastingError always makes a consumer stop at once, because every message would fail the same
// way.
type lastingError struct{ error }

func (e *lastingError) Unwrap() error { return e.error }

// Is reports whether target is ErrLasting.
func (*lastingError) Is(target error) bool { return target == calling.ErrLasting }

// An otherStoreError says that a reserver and its consumer use different stores: a reservation
// would not be in one write with the events, and the consumer would not see it. The consumer is
// refused when it starts. The error matches [messagestore.ErrInvalid].
type otherStoreError struct {
	Reserver string                // its name
	Consumer string                // "" if no consumer delivers
	Message  *messagestore.Message // of the consumer, missing in the store of the reserver
}

// Error names the consumer, and the message.
func (e *otherStoreError) Error() string {
	of := "the delivered messages"
	if e.Consumer != "" {
		of = "consumer " + e.Consumer
	}
	return fmt.Sprintf("invalid store of reserver %q: it is another store than that of %s: %s is not there", e.Reserver, of, e.Message)
}

// Is reports whether target is [messagestore.ErrInvalid]. It also matches ErrLasting: the consumer
// always stops at once, because every message would fail the same way.
func (*otherStoreError) Is(target error) bool {
	return target == messagestore.ErrInvalid || target == calling.ErrLasting
}
