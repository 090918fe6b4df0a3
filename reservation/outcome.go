package reservation

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/messagestore"
)

// An Outcome is the answer to an attempt to reserve.
type Outcome int

const (
	// Reserved says that the reservation is this message's: it made it now, or has
	// made it before.
	Reserved Outcome = iota + 1

	// Duplicate says that another message with the same key and content was first.
	Duplicate

	// KeyReused says that another message was first, with the same key and other
	// content. One of the two senders is wrong, and it is not known which.
	KeyReused
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Reserved:
		return "reserved"
	case Duplicate:
		return "duplicate"
	case KeyReused:
		return "key reused"
	}
	return fmt.Sprintf("outcome %d", int(o))
}

// A Result says who has a reservation.
type Result struct {
	Outcome Outcome
	Key     string // as it was given; of [Initiate], the started stream's identifier
	Stream  messagestore.StreamName

	// Winner is the message that has the reservation, the first of Stream. Its
	// metadata names the command that it follows. If it was written just now, the Time
	// is zero, for only the store knows it.
	Winner *messagestore.Message

	// Deleted says that the stream was deleted since. Winner is the tombstone then, which
	// keeps what counted of the command as a hash.
	Deleted bool
}

var (
	// ErrKeyReused is matched by the error of a handler for a command whose key was
	// used for something else. See [KeyReusedError].
	ErrKeyReused = errors.New("idempotence key reused")

	// ErrLoop is matched by the error for reservations that would be consumed as
	// commands again. See [LoopError].
	ErrLoop = errors.New("reservation loop")

	// ErrOtherConsumer is matched by the error for a reservation that another consumer
	// made for an effect of its own. See [OtherConsumerError].
	ErrOtherConsumer = errors.New("reserved by another consumer")

	// ErrWinnerUnseen is matched by the error for a reservation that is taken by a
	// message that cannot be read: in a transaction whose snapshot is older. Try
	// again, in another transaction.
	ErrWinnerUnseen = errors.New("the winner cannot be seen")
)

// A KeyReusedError says what a key was used for first. A consumer parks its message
// at once, whatever its policy, because it is neither handled nor a duplicate.
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

// Is reports whether target is [ErrKeyReused].
func (e *KeyReusedError) Is(target error) bool { return target == ErrKeyReused }

// Park tells a consumer to park the message: trying again will not help.
func (e *KeyReusedError) Park() bool { return true }

// An OtherConsumerError stops a consumer that found a command reserved, by [Inline],
// with the effect of another. Without a [Config.Name] a key is taken once for all
// consumers of a category, so this one would never have its effect, and nobody can
// tell whether it should.
type OtherConsumerError struct {
	Consumer string // that has the reservation, and whose effect was written with it
	Stream   messagestore.StreamName
}

// Error names the consumer, and what to do.
func (e *OtherConsumerError) Error() string {
	return fmt.Sprintf("reserved by another consumer: %s is done by consumer %s, and without a name of its own this one's reserver cannot tell whether its effect is written too: set Config.Name", e.Stream, e.Consumer)
}

// Is reports whether target is [ErrOtherConsumer].
func (e *OtherConsumerError) Is(target error) bool { return target == ErrOtherConsumer }

// A LoopError names the category that would be consumed and reserved in.
type LoopError struct {
	Category messagestore.Category
}

// Error names the category.
func (e *LoopError) Error() string {
	return fmt.Sprintf("reservation loop: %s is the category that is consumed: what is reserved in it would be consumed as a command again", e.Category)
}

// Is reports whether target is [ErrLoop].
func (e *LoopError) Is(target error) bool { return target == ErrLoop }
