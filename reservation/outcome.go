package reservation

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/steer"
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

// A Result is the answer to an attempt to reserve, or to a look-up.
type Result struct {
	Outcome Outcome
	Key     string // as it was given; of [Initiate], the started stream's identifier
	Stream  messagestore.StreamName

	// Winner is the message that has the reservation, the first of Stream. Its
	// metadata names the command that it follows.
	Winner *messagestore.Message

	// Deleted says that the stream was deleted since. Winner is then the tombstone, which
	// keeps the digest of the command.
	Deleted bool
}

// ErrWinnerUnseen is matched by the error for a reservation whose winner the caller's
// transaction cannot read, because its snapshot is older. Try again in another transaction.
var ErrWinnerUnseen = errors.New("the winner cannot be seen")

// A KeyReusedError names the command that has the key. A consumer parks the second command
// at once, under every policy, because it is neither handled nor a duplicate.
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

// Unwrap has a consumer park the message at once.
func (e *KeyReusedError) Unwrap() error { return steer.Parked }
